"""Models that differentiate as files of standard operators: force fields, penalties, Jacobians."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from dort_rewriter import CaptureError, UnsupportedOpError, to_onnx

pytestmark = [
    # What torch's forward mode imports when it is used first, and what linearize does.
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
]


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


class Forces(Base):
    """Energy and forces, as those who compute molecules export them."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = x.detach().requires_grad_(True)
        energy = self.n(x).sum()
        (gradient,) = torch.autograd.grad(energy, x, create_graph=True)
        return {"energy": energy, "forces": -gradient}


class Penalty(Base):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(self.n(x).sum(), x, create_graph=True)
        return (gradient.norm(dim=1) - 1).square().mean()


class OfParameters(Base):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(self.n(x).sum(), [*self.n.parameters()])


class Penalized(Penalty):
    """Gradients of a gradient, of which one parameter has none."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        loss = super().forward(x)
        return torch.autograd.grad(loss, [*self.n.parameters()], allow_unused=True)


class Backward(Base):
    """What ``backward`` leaves at what is made inside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor | None:
        point = x.detach().requires_grad_(True)
        self.n(point).sum().backward(inputs=[point])
        return point.grad


class OfArgument(Base):
    """An argument that requires its gradient, or is made to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(self.n(x).square().sum(), x)[0]


class InPlace(Base):
    """A step of a sampler, which writes to what it made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = x.clone()
        for _ in range(2):
            point = moved.detach().requires_grad_(True)
            (score,) = torch.autograd.grad(self.n(point).sum(), point)
            moved.add_(score, alpha=0.1)
        return moved


class Normalized(Base):
    """The gradient goes through batch norm in training, which writes to its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(self.n(self.norm(x)).square().sum(), x)
        return gradient


class Signs(Base):
    """The gradient of a sign is a zero that torch has no memory for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad((x.sgn() * 3 + x.square()).sum(), x)
        return gradient


class Largest(Base):
    """The gradient reads a result again, which torch.export of torch 2.8 takes for a constant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        (gradient,) = torch.autograd.grad(x.max() + torch.dist(x, x.detach() * 2), x)
        return gradient


class Transformed(Base):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> Any:
        func = torch.func
        total = lambda y: self.n(y).sum()  # noqa: E731
        if self.how == "grad":
            return func.grad(total)(x)
        if self.how == "jvp":
            return func.jvp(self.n, (x,), (torch.ones_like(x),))
        if self.how == "vjp":
            result, pull = func.vjp(self.n, x)
            return result, pull(torch.ones_like(result))
        if self.how == "linearize":
            return func.linearize(lambda y: torch.tanh(y) ** 3, x)[1](torch.ones_like(x))
        if self.how == "vmap":  # torch.export takes the columns for constants
            return func.vmap(torch.dot, in_dims=(1, None), out_dims=0)(x, x[:, 0])
        inner = {"hessian": func.hessian(total), "jacrev": func.jacrev(self.n)}
        return func.vmap({**inner, "jacfwd": func.jacfwd(self.n)}[self.how])(x)


MODELS: dict[str, Any] = {
    **{
        kind.__name__: kind
        for kind in (Forces, Penalty, OfParameters, InPlace, Normalized, Signs, Largest)
    },
    **{kind.__name__: kind for kind in (Penalized, Backward)},
    **{how: how for how in ("grad", "jvp", "vjp", "hessian", "jacrev", "jacfwd")},
    **{how: how for how in ("linearize", "vmap")},
}
DYNAMIC = (
    *("Forces", "Penalty", "OfParameters", "InPlace", "Normalized", "grad", "vjp"),
    *("Penalized", "Backward"),
)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    kind = MODELS[name]
    return Transformed(kind) if isinstance(kind, str) else kind()


def check(proto: onnx.ModelProto, model: Any, x: torch.Tensor) -> None:
    onnx.checker.check_model(proto)
    assert {o.domain for o in proto.opset_import} == {""}
    given = x.detach().clone().requires_grad_(x.requires_grad)
    found = [t for t in torch.utils._pytree.tree_leaves(model(given)) if t is not None]
    want = [t.detach().numpy() for t in found]
    fed = {proto.graph.input[0].name: x.detach().numpy()}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for got in (session.run(None, fed), ReferenceEvaluator(proto).run(None, fed)):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_eager_mode(name: str) -> None:
    model, x = made(name), torch.randn(4, 3)
    before = {n: (p, p.requires_grad) for n, p in model.named_parameters()}
    check(to_onnx(model, (x,)), model, x)
    assert not x.requires_grad
    assert {n: (p, p.requires_grad) for n, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", DYNAMIC)
def test_any_number_of_rows(name: str) -> None:
    model = made(name)
    proto = to_onnx(model, (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    for rows in (4, 7):
        check(proto, model, torch.randn(rows, 3))


def test_an_argument_that_requires_its_gradient() -> None:
    torch.manual_seed(0)
    model, x = OfArgument(), torch.randn(4, 3, requires_grad=True)
    check(to_onnx(model, (x,)), model, x)
    proto = to_onnx(model, (x,), dynamic_shapes=({0: "rows"},))
    check(proto, model, torch.randn(7, 3, requires_grad=True))
    assert x.grad is None


def test_shapes_that_fit_no_argument_are_refused() -> None:
    """They would be the fixed ones of the example."""

    class Several(Base):
        def forward(self, *points: torch.Tensor) -> torch.Tensor:
            return torch.func.grad(lambda y: self.n(y).sum())(points[0])

    model, x = Several(), torch.randn(4, 3)
    with pytest.raises(CaptureError, match="mismatch between the structure"):
        to_onnx(model, (x,), dynamic_shapes=({0: "rows"},))
    proto = to_onnx(model, (x,), dynamic_shapes=(({0: "rows"},),))
    check(proto, model, torch.randn(7, 3))


class Compared(Base):
    """Python code compares a size, with and without a gradient."""

    def __init__(self, *, differentiates: bool) -> None:
        super().__init__()
        self.differentiates = differentiates

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.differentiates:
            return torch.func.grad(lambda y: self.part(y).sum())(x)
        return self.part(x)

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return self.n(x) * 2 if x.shape[0] > 3 else self.n(x)


@pytest.mark.parametrize("differentiates", [False, True])
def test_what_python_code_asks_of_sizes_is_said(
    differentiates: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Compared(differentiates=differentiates), torch.randn(4, 3)
    to_onnx(model, (x,), dynamic_shapes=({0: "rows"},))
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "sizes with rows > 3, which " in said
    assert "test_to_onnx_gradients.py:" in said
    caplog.clear()
    to_onnx(Compared(differentiates=differentiates), (x,))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_sizes_that_torch_fixes_in_tracing_are_refused() -> None:
    with pytest.raises(CaptureError, match="could not capture Signs"):
        to_onnx(made("Signs"), (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))


def test_float64() -> None:
    model, x = made("Forces").double(), torch.randn(4, 3, dtype=torch.float64)
    proto = to_onnx(model, (x,))
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    got = session.run(None, {proto.graph.input[0].name: x.numpy()})
    for a, b in zip(got, model(x).values(), strict=True):
        np.testing.assert_allclose(a, b.detach(), rtol=1e-12)


def test_inputs_and_parameters_have_the_names_that_torch_export_gives() -> None:
    proto = to_onnx(made("Forces"), (torch.randn(4, 3),))
    assert [value.name for value in proto.graph.input] == ["x"]
    assert {value.name for value in proto.graph.initializer} >= {"p_n_0_weight", "p_n_2_weight"}


def closing_over() -> Any:
    """A function that reads tensors of its own, which transforms do not take beside fake ones."""
    weight, shift = torch.randn(3, 3), torch.randn(3)
    return torch.func.hessian(lambda row: torch.sin(row @ weight + shift).square().sum())


NET = Base()


def energy(x: torch.Tensor) -> torch.Tensor:
    return NET.n(x).square().sum()


FUNCTIONS: dict[str, Any] = {
    "grad": torch.func.grad(energy),
    "calls another": lambda x: -torch.func.grad(energy)(x),
    "closure": torch.func.vmap(closing_over()),
    "jvp of a closure": lambda x: torch.func.jvp(energy, (x,), (x,)),
    "method": NET.n.forward,
    "partial": functools.partial(torch.mul, other=torch.full((), 3.0)),
    "without a signature": torch.sin,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, x = FUNCTIONS[name], torch.randn(4, 3)
    check(to_onnx(function, (x,)), function, x)


def test_the_modules_that_a_function_reads_are_part_of_the_model() -> None:
    function = torch.func.vmap(torch.func.grad(energy))
    proto = to_onnx(function, (torch.randn(4, 3),), dynamic_shapes=({0: "rows"},))
    assert {v.name for v in proto.graph.initializer} >= {"p_NET_n_0_weight", "p_NET_n_2_bias"}
    check(proto, function, torch.randn(7, 3))


def test_a_transform_that_fails_is_ended() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(CaptureError, match="could not"):
        to_onnx(torch.func.vmap(torch.func.jacfwd(broken)), (torch.randn(4, 3),))
    assert torch._C._functorch.peek_interpreter_stack() is None
    model, x = made("jvp"), torch.randn(4, 3)
    check(to_onnx(model, (x,)), model, x)


def test_what_torch_refuses_is_refused_with_its_line() -> None:
    class Reading(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.n(x)[: int(x.sum().item() > 0)]

    class Failing(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.n(x).no_such_method()

    for model, line in ((Reading(), r"return self.n\(x\)\[:"), (Failing(), "no_such_method")):
        with pytest.raises(CaptureError, match=rf"at \S+gradients.py:\d+ in forward: .*{line}"):
            to_onnx(model, (torch.randn(2, 3),))


def test_what_depends_on_numbers_is_refused_as_before() -> None:
    class Branching(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(self.n(x).sum(), x)
            return gradient if gradient.sum() > 0 else x

    with pytest.raises(CaptureError, match="could not"):
        to_onnx(Branching(), (torch.randn(4, 3),))


def test_operators_of_gradients_are_named_with_their_lines() -> None:
    class Eigenvalues(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            x = x.detach().requires_grad_()
            total = torch.linalg.eigvals(x).abs().sum()
            return torch.autograd.grad(total, x)

    said = r"(?s)aten::linalg_eig: .*at .*: total = .*_linalg_solve_ex: .*at .*: return torch.auto"
    with pytest.raises(UnsupportedOpError, match=said):
        to_onnx(Eigenvalues(), (torch.eye(3),))
