"""Operators without a converter, called in torch from inside a session, which is not cut."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch.nn.functional as F
from packaging.version import Version

from dort_rewriter import OrtBackend, onnx_custom_backend, to_onnx
from dort_rewriter.backends.onnxrt import torch_compile_backend
from dort_rewriter.errors import CaptureError, ExecutionError, UnsupportedOpError
from dort_rewriter.kernels.torch_calls import _calls
from dort_rewriter.runtime.session import create_session
from tests.collecting import collect

Tensor = torch.Tensor

CHECKS_ARE_ORDERED = Version(torch.__version__).release >= (2, 13)

seen: list[Tensor] = []
"""What the operators of this file were given."""


@torch.library.custom_op("dort_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: float, plus: int, sizes: list[int], flag: bool = False) -> Tensor:
    seen.append(x)
    return x * by + plus + sum(sizes) + int(flag)


@scaled.register_fake
def _(x: Tensor, by: float, plus: int, sizes: list[int], flag: bool = False) -> Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.by = inputs[1]


def _backward(ctx: Any, grad: Tensor) -> Any:
    return grad * ctx.by, None, None, None, None


scaled.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("dort_tests::parts", mutates_args=())
def parts(xs: list[Tensor], least: Tensor | None) -> list[Tensor]:
    return [x.flip(0) if least is None else x.flip(0).maximum(least) for x in xs]


@parts.register_fake
def _(xs: list[Tensor], least: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(x) for x in xs]


@torch.library.custom_op("dort_tests::positive", mutates_args=())
def positive(x: Tensor) -> tuple[Tensor, Tensor]:
    """As many as there are."""
    return x[x > 0].clone(), (x > 0).sum()


@positive.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(size), x.new_empty((), dtype=torch.int64)


@torch.library.custom_op("dort_tests::picky", mutates_args=())
def picky(x: Tensor) -> Tensor:
    if bool((x > 10).any()):
        raise KeyError("no number above ten")
    return x.clone()


@picky.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("dort_tests::state", mutates_args=())
def state(x: Tensor) -> Tensor:
    """What holds where it is called."""
    flags = [torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")]
    return torch.tensor(flags) | (x.sum() != x.sum())


@state.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((2,), dtype=torch.bool)


@torch.library.custom_op("dort_tests::liar", mutates_args=())
def liar(x: Tensor) -> Tensor:
    return x.double()


@liar.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@pytest.fixture(autouse=True)
def forget_calls() -> None:
    seen.clear()


def compiled(
    function: Callable[..., Any], dynamic: bool | None = None, **options: Any
) -> tuple[Any, OrtBackend]:
    backend = OrtBackend({"cache": False, **options})
    return torch.compile(function, backend=backend, dynamic=dynamic), backend


def models(dumped: Path) -> list[list[str]]:
    """The operators of each model."""
    return [[n.op_type for n in onnx.load(p).graph.node] for p in sorted(dumped.glob("*.onnx"))]


def calls(dumped: Path) -> list[int]:
    """How many calls there are in each model."""
    return [operators.count("TorchCall") for operators in models(dumped)]


def square(x: Tensor) -> Tensor:
    return x @ x.mT + 3 * torch.eye(x.shape[-1], dtype=x.dtype)


OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "inverse": lambda x: torch.linalg.inv_ex(square(x))[0].relu() * 2,
    "determinant": lambda x: torch.linalg.slogdet(square(x))[1] * 2 + 1,
    "cholesky": lambda x: torch.linalg.cholesky_ex(square(x))[0] @ x,
    "singular values": lambda x: torch.linalg.svdvals(x.exp()).sum(-1).relu(),
    "eigenvalues": lambda x: torch.linalg.eigvalsh(square(x)).cumsum(-1) * 2,
    "resized smoothly": lambda x: F.interpolate(
        x[None, None].exp() + 1, (3, 9), mode="bilinear", antialias=True
    ).relu(),
    "distances": lambda x: F.pdist(x.exp()).relu() + 1,
    "several": lambda x: torch.linalg.inv_ex(torch.linalg.inv_ex(square(x))[0].tanh() + x.T @ x)[
        0
    ].sin(),
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_eager_mode(
    name: str, dtype: torch.dtype, dumped: Path
) -> None:
    function = OPERATORS[name]
    x = torch.randn(6, 6, dtype=dtype, requires_grad=True)
    ours, _ = compiled(function)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), function(x))
    assert max(calls(dumped)) > 0
    expected, got = function(x), ours(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride()
    weights = torch.randn_like(expected)
    (a,), (b,) = (torch.autograd.grad(y, [x], weights) for y in (expected, got))
    torch.testing.assert_close(b, a)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.bfloat16])
def test_other_types(dtype: torch.dtype, dumped: Path) -> None:
    def function(x: Tensor) -> Tensor:
        (first,) = torch.ops.dort_tests.parts([x * x], None)
        return (first == x).sum(0) + 1

    x = torch.randint(0, 3, (4, 5)).to(dtype)
    ours, _ = compiled(function)
    torch.testing.assert_close(ours(x), function(x))
    assert calls(dumped) == [1]


def test_lists_and_what_is_left_out(dumped: Path) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        first, second = torch.ops.dort_tests.parts([x.sin(), y.cos()], None)
        (third,) = torch.ops.dort_tests.parts([x.exp()], first.sum())
        return first * second.sum() + third

    given = torch.randn(4, 3), torch.randn(2)
    ours, _ = compiled(function)
    torch.testing.assert_close(ours(*given), function(*given))
    assert calls(dumped) == [2]


def test_numbers_and_sizes_that_change() -> None:
    """Integers of the graph reach the operator as integers; it is differentiated."""

    def function(x: Tensor, by: int) -> Tensor:
        y = torch.ops.dort_tests.scaled(x.sin(), 2.5, x.shape[0], [x.shape[1], 3, by], flag=True)
        return y.relu() * x

    ours, _ = compiled(function, dynamic=True)
    for rows, by in ((3, 2), (5, 4), (9, 7)):
        x = torch.randn(rows, 4, requires_grad=True)
        expected, got = function(x, by), ours(x, by)
        torch.testing.assert_close(got, expected)
        (a,), (b,) = (torch.autograd.grad(y.sum(), [x]) for y in (expected, got))
        torch.testing.assert_close(b, a)


def test_as_many_results_as_there_are(dumped: Path) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        found, count = torch.ops.dort_tests.positive(x.sin())
        return found.exp() * 2, count + 1

    ours, _ = compiled(function)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(3):
            x = torch.randn(20)
            torch.testing.assert_close(ours(x), function(x))
        torch.testing.assert_close(ours(-torch.ones(20)), function(-torch.ones(20)))
    assert calls(dumped) == [1]


def test_an_operator_of_a_program_gets_copies_that_lie_as_in_eager_mode(dumped: Path) -> None:
    """It may keep them: the memory of a session is used again."""

    def function(x: Tensor) -> Tensor:
        return torch.ops.dort_tests.scaled((x.sin() + 1).mT, 1.0, 1, []).cos() * 2

    ours, _ = compiled(function)
    given = [torch.randn(3, 4) for _ in range(4)]
    for x in given:
        ours(x)
    assert calls(dumped) == [1]
    got, seen[:] = list(seen), []
    for x, kept in zip(given, got, strict=True):
        function(x)
        assert kept.stride() == seen[-1].stride() == (1, 4)
        torch.testing.assert_close(kept, seen[-1])


def test_neither_gradients_nor_autocast_are_on_where_it_is_called(dumped: Path) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.ops.dort_tests.state(x.sin() * 2) | (x.sum() != x.sum())

    ours, _ = compiled(function)
    x = torch.randn(4)
    assert ours(x).tolist() == [False, False]
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).tolist() == [False, False]
        assert torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert min(calls(dumped)) == 1


def above(x: Tensor) -> Tensor:
    return torch.ops.dort_tests.picky(x.relu() + 1) * 2  # what raises


def test_what_it_raises_is_raised() -> None:
    """With its own words and the Python line; the session stays."""
    ours, backend = compiled(above)
    x = torch.ones(3)
    torch.testing.assert_close(ours(x), above(x))
    with pytest.raises(KeyError, match="no number above ten") as info:
        ours(x * 20)
    assert info.value.__cause__ is None
    if sys.version_info >= (3, 11):
        (note,) = info.value.__notes__
        assert "dort_tests::picky" in note
        assert "# what raises" in note
    torch.testing.assert_close(ours(x), above(x))
    assert backend.execution_count == 2


def test_what_torch_raises_is_raised() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.ops.aten.linalg_inv_ex(square(x).sin() * 0, check_errors=True)[0] + 1

    ours, _ = compiled(function)
    with pytest.raises(torch.linalg.LinAlgError) as expected:
        function(torch.randn(3, 3))
    with pytest.raises(torch.linalg.LinAlgError) as got:
        ours(torch.randn(3, 3))
    assert str(got.value) == str(expected.value)


@pytest.mark.skipif(not CHECKS_ARE_ORDERED, reason="torch leaves the check out of its graphs")
def test_checks_of_linear_algebra_are_inside() -> None:
    """They raise as in eager mode, and cut nothing."""

    def function(x: Tensor) -> Tensor:
        return torch.linalg.inv(torch.linalg.inv(square(x)).relu() * x.sum() + 1) * 2

    for training in (False, True):
        ours, _ = compiled(function, fallback=False, placement={"*": "torch kernel"})
        x = torch.randn(3, 3, requires_grad=training)
        torch.testing.assert_close(ours(x), function(x))
        for call in (function, ours):
            with pytest.raises(torch.linalg.LinAlgError, match="singular"):
                call(torch.zeros(3, 3, requires_grad=training))


def test_an_operator_that_is_not_as_it_said_is_left_to_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its memory would be read as something else."""

    def function(x: Tensor) -> Tensor:
        return torch.ops.dort_tests.liar(x.sin() + 1).cos()  # type: ignore[no-any-return]

    ours, _ = compiled(function)
    x = torch.randn(3)
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"):
        torch.testing.assert_close(ours(x), function(x))
    assert "dort_tests::liar gave torch.float64 instead of torch.float32" in caplog.text


def test_several_threads_call() -> None:
    function = OPERATORS["several"]
    ours, backend = compiled(function)
    given = [torch.randn(5, 5) for _ in range(8)]
    with torch.no_grad():
        expected = [function(x) for x in given]
        ours(given[0])
    ((info,),) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    run = info.executor.boxed
    start = threading.Barrier(4)

    def work(_: int) -> None:
        start.wait()
        for _ in range(20):
            for x, y in zip(given, expected, strict=True):
                torch.testing.assert_close(run([x])[0], y)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_calls() -> None:
    function = OPERATORS["inverse"]
    ours, _ = compiled(function)
    x = torch.randn(4, 4)
    expected = ours(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(ours(x), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_calls_end_with_what_calls_them() -> None:
    torch._dynamo.reset()
    collect()
    before = set(_calls)
    ours, backend = compiled(OPERATORS["inverse"])
    ours(torch.randn(4, 4))
    made = set(_calls) - before
    assert len(made) == 1
    del ours, backend
    torch._dynamo.reset()
    collect()
    assert not made & set(_calls)


# -- when -----------------------------------------------------------------------------------------


def inverse(x: Tensor) -> Tensor:
    return OPERATORS["inverse"](x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "options",
    [
        {"optimization": {"patterns": "default"}},
        {"placement": {"aten::linalg_inv_ex": "onnxruntime"}},
        {"placement": {"aten::linalg_inv_ex": "torch"}},
        {"placement": {"*": "onnxruntime"}},
        {"pre_ort_model_transforms": (lambda model: None,)},
    ],
)
def test_a_user_may_choose_otherwise(options: dict[str, Any], dumped: Path) -> None:
    """The graph is cut, and torch runs the operator between two sessions."""
    ours, _ = compiled(inverse, **options)
    x = torch.randn(4, 4)
    torch.testing.assert_close(ours(x), inverse(x))
    assert calls(dumped) == [0, 0]


def divisors(x: Tensor) -> Tensor:
    whole = (x * 9).long()
    return (torch.gcd(whole * 3, whole.flip(0)) + whole).float().exp()


def smaller(x: Tensor) -> Tensor:
    image = x[None, None].exp() + 1
    return F.interpolate(image, (3, 2), mode="bilinear", antialias=True).exp() * 2


def running(x: Tensor) -> Tensor:
    return (x.exp().cumprod(0) + (x * 2).cummax(0)[0]).exp() * 2


@pytest.mark.parametrize("function", [divisors, smaller, running])
@pytest.mark.parametrize(
    ("options", "called"),
    [({}, 1), ({"fallback": False}, 0), ({"placement": {"*": "onnxruntime"}}, 0)],
)
def test_what_is_one_kernel_in_torch(
    function: Callable[[Tensor], Tensor], options: dict[str, Any], called: int, dumped: Path
) -> None:
    """It takes a part of the time, but is not needed."""
    ours, _ = compiled(function, function is running, **options)
    x = torch.randn(5, 4)
    torch.testing.assert_close(ours(x), function(x))
    assert calls(dumped) == [called * (2 if function is running else 1)]


def test_a_running_product_of_known_size_is_nodes_of_onnx(dumped: Path) -> None:
    ours, _ = compiled(running, False)
    x = torch.randn(5, 4)
    torch.testing.assert_close(ours(x), running(x))
    assert calls(dumped) == [0]


def test_without_fallback_it_is_an_error_unless_asked_for(dumped: Path) -> None:
    """What cannot be converted is said; what `placement` names is meant."""
    ours, _ = compiled(inverse, fallback=False)
    with pytest.raises(Exception, match="linalg_inv_ex") as info:
        ours(torch.randn(4, 4))
    assert isinstance(getattr(info.value, "inner_exception", info.value), UnsupportedOpError)
    torch._dynamo.reset()
    named = {"aten::linalg_inv_ex": "torch kernel"}
    ours, _ = compiled(inverse, fallback=False, placement=named)
    x = torch.randn(4, 4)
    torch.testing.assert_close(ours(x), inverse(x))
    assert calls(dumped) == [1]


def test_alone_it_stays_in_torch(caplog: pytest.LogCaptureFixture, dumped: Path) -> None:
    """A session that does nothing else only costs."""
    ours, _ = compiled(lambda x: torch.linalg.inv_ex(x)[0])
    x = torch.randn(4, 4)
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"):
        torch.testing.assert_close(ours(x), torch.linalg.inv(x))
    assert models(dumped) == []
    assert "A graph runs in torch as a whole" in caplog.text
    assert "linalg_inv_ex" in caplog.text
    assert "fallback=True" not in caplog.text  # which is what happened


reset_backend: Callable[[], None] = torch_compile_backend.reset  # type: ignore[attr-defined]


class Inverses(torch.nn.Module):
    """Layers that are a graph each, of another size each: none has a converter."""

    def __init__(self, count: int, found: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.count, self.found = count, found

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.count):
            x = self.found(x)[1:, 1:] + 1
            torch._dynamo.graph_break()
        return x


def test_graphs_left_for_the_same_operators_are_a_warning_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def said(function: Callable[[Tensor], Tensor], size: int = 9) -> list[tuple[int, str]]:
        caplog.clear()
        model = Inverses(5, function)
        x = torch.eye(size) * 3 + torch.rand(size, size)
        ours = torch.compile(model, backend="onnxrt", dynamic=False)
        torch.testing.assert_close(ours(x), model(x))
        found = [r for r in caplog.records if "A graph runs in torch as a whole" in r.message]
        return [(r.levelno, r.message) for r in found]

    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        inverses = said(lambda x: torch.linalg.inv_ex(x)[0])
        assert [level for level, _ in inverses] == [logging.WARNING, *[logging.INFO] * 4]
        assert all("linalg_inv_ex" in text for _, text in inverses)
        others = said(lambda x: torch.geqrf(x)[0])
        assert [level for level, _ in others] == [logging.WARNING, *[logging.INFO] * 4]
        again = said(lambda x: torch.linalg.inv_ex(x)[0], 8)
        assert {level for level, _ in again} == {logging.INFO}
        reset_backend()  # what torch._dynamo.reset() calls; torch 2.8's own class has none
        assert said(lambda x: torch.linalg.inv_ex(x)[0])[0][0] == logging.WARNING


def test_between_single_operators_it_stays_in_torch(dumped: Path) -> None:
    """There would be no session beside it."""

    def function(x: Tensor) -> Tensor:
        return torch.linalg.inv_ex(x.sin())[0].cos()

    ours, _ = compiled(function)
    x = torch.randn(4, 4)
    torch.testing.assert_close(ours(x), function(x))
    assert models(dumped) == []


def test_random_operators_stay_in_torch(dumped: Path) -> None:
    """In the order in which they draw."""

    def function(x: Tensor) -> Tensor:
        return inverse(x) + torch.rand(4, 4) * torch.distributions.Gamma(x.exp(), 1.0).sample()

    ours, _ = compiled(function)
    x = torch.rand(4, 4)
    results = []
    for f in (function, ours):
        torch.manual_seed(3)
        results.append(f(x))
    torch.testing.assert_close(*results)
    assert max(calls(dumped)) > 0


def test_what_goes_by_strides_stays_in_torch(dumped: Path) -> None:
    def function(x: Tensor) -> Tensor:
        part = (x * 2).relu().softmax(-1).t()[..., 1::2]
        return torch.as_strided_scatter(part, x.new_zeros(2, 2), (2, 2), (1, 1)).exp().relu() * 2

    ours, _ = compiled(function)
    x = torch.randn(6, 4)
    torch.testing.assert_close(ours(x), function(x))
    assert sum(calls(dumped)) == 0


def test_complex_numbers(dumped: Path) -> None:
    """The transform and the sizes are torch's, the rest has converters."""

    def function(x: Tensor) -> Tensor:
        return (torch.fft.rfft(x.sin() + 1) * 2).abs().cos() + 1

    ours, _ = compiled(function)
    x = torch.randn(8)
    torch.testing.assert_close(ours(x), function(x))
    assert calls(dumped) == [2]


class Segments(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.segment_reduce(x, "sum", lengths=torch.tensor([1, 3]))


def test_files_have_none() -> None:
    """They run where there is no torch."""
    with pytest.raises(UnsupportedOpError, match="segment_reduce"):
        to_onnx(Segments(), (torch.randn(4, 4),), options={"patterns": "default+kernels"})


def test_other_backends_have_none() -> None:
    """What they do not convert is an error."""
    ours = torch.compile(inverse, backend=onnx_custom_backend)
    with pytest.raises(Exception, match="linalg_inv_ex: no converter"):
        ours(torch.randn(4, 4))


def test_nothing_is_saved_with_them(tmp_path: Path) -> None:
    from dort_rewriter import save

    ours, _ = compiled(inverse)
    ours(torch.randn(4, 4))
    with pytest.raises(CaptureError, match="linalg_inv_ex"):
        save(ours, tmp_path / "saved", torch.randn(4, 4))


def test_models_on_disk_have_none(
    dumped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process would not know the call."""
    monkeypatch.setenv("DORT_CACHE_DIR", str(tmp_path))
    ours, _ = compiled(inverse, cache=True)
    ours(torch.randn(4, 4))
    assert calls(dumped) == [1]
    assert not [p for p in (tmp_path / "dort_rewriter_models").glob("*") if p.is_file()]


def _numbers(model: onnx.ModelProto) -> Sequence[onnx.AttributeProto]:
    return [a for n in model.graph.node for a in n.attribute if a.name == "call"]


def test_a_model_from_elsewhere_is_refused(dumped: Path) -> None:
    """A dumped one, once its graph is gone; one that names another number."""
    ours, _ = compiled(inverse)
    ours(torch.randn(4, 4))
    model = onnx.load(next(dumped.glob("*.onnx")))
    (call,) = _numbers(model)
    assert call.i in _calls
    create_session(model)
    call.i += 2
    with pytest.raises(ExecutionError, match="only in the process that made its model"):
        create_session(model)
    call.i -= 2
    del ours
    torch._dynamo.reset()
    collect()
    with pytest.raises(ExecutionError, match="only in the process that made its model"):
        create_session(model)
