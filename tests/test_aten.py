"""What a graph says about its values: sizes without guards, layouts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dort_rewriter.aten import (
    COUNTED,
    hint_of,
    input_orders,
    is_contiguous,
    is_dense,
    is_same_size,
    lineage,
    overlaps,
    owners_of,
    storage_order,
)
from dort_rewriter.backends.custom import onnx_custom_backend
from dort_rewriter.backends.debug import onnx_debug_backend
from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.runtime import executor
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.reference import ReferenceExecutor
from dort_rewriter.runtime.session import create_session
from dort_rewriter.signature import GraphSignature, InputSlot
from tests.runtime.graphs import parse, result

Make = Callable[[torch.Tensor], torch.Tensor]


def traced() -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of 5 rows, any number in the next call, and its rows that a mask selects."""
    mode = FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True))
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.randn(5, 6), symbolic_context=context)
    mask = mode.from_tensor(torch.ones(5, dtype=torch.bool))
    with mode:
        return x, x[mask.nonzero()[:, 0]]


@pytest.mark.parametrize(
    ("view", "contiguous", "order"),
    [
        (lambda y: y, True, None),
        (lambda y: y.t(), False, (1, 0)),
        (lambda y: y[:, None].permute(2, 1, 0), False, (1, 2, 0)),
        (lambda y: y.unsqueeze(1), True, None),
        (lambda y: y.unsqueeze(1).expand(-1, 2, -1), False, None),
        (lambda y: y[:, :5], False, None),
        (lambda y: y[:, :0], True, None),
        (lambda y: y.new_empty(3, y.shape[0], y.shape[0]), True, None),
        (lambda y: y.new_empty(3, y.shape[0]).t(), False, (1, 0)),
    ],
)
def test_layouts_of_counted_sizes(
    view: Make, contiguous: bool, order: tuple[int, ...] | None
) -> None:
    _, y = traced()
    shown = view(y)
    assert is_contiguous(shown) is contiguous
    assert storage_order(shown) == order
    assert is_dense(shown) is (contiguous or order is not None)
    assert overlaps(shown) is (0 in shown.stride())


def test_hints() -> None:
    x, y = traced()
    rows, count = x.shape[0], y.shape[0]
    assert [hint_of(n) for n in (7, rows, rows * 2, count)] == [7, 5, 10, COUNTED]
    assert hint_of(count * rows + 1, counted=3) == 16
    assert is_same_size(count * 2, count + count)
    assert not is_same_size(count, rows)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what is copied before a run."""
    found: list[tuple[int, ...]] = []
    original = executor.dense

    def dense(tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
        found.append(tuple(tensor.shape))
        return original(tensor, *rest)

    monkeypatch.setattr(executor, "dense", dense)
    return found


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_order_of_each_argument(mode: str) -> None:
    x = torch.zeros(2, 3, 4)
    args = [x, x.permute(2, 0, 1), x[:, :, :2], x.expand(5, 2, 3, 4), torch.zeros(3)]
    graph = make_fx(lambda *a: [b + 1 for b in a], tracing_mode=mode)(*args)
    names = [n.name for n in graph.graph.nodes if n.op == "placeholder"]
    assert input_orders(graph) == {names[1]: (1, 2, 0)}


def test_a_model_reads_what_is_stored() -> None:
    slot = InputSlot(name="x", kind="tensor", dtype=torch.float32, shape=(3, 2), order=(1, 0))
    assert slot.read_shape == (2, 3)
    model = parse("(float[2,3] x) => (float[3,2] y) { y = Transpose(x) }")
    signature = GraphSignature(inputs=(slot,), outputs=(result("y"),))
    run = Executor(create_session(model), signature)
    stored = torch.arange(6.0).view(2, 3)
    other = stored.t().contiguous()  # the same numbers in another order: copied, still right
    for call in (run, ReferenceExecutor(model, signature)):
        for argument in (stored.t(), other):
            assert torch.equal(call(argument)[0], stored.t())
    check, shapes = run.boxed.__globals__["KNOWN"].latest  # what it learnt
    assert check(stored.t())
    assert not check(other)
    assert shapes == ((2, 3),)


class Heads(torch.nn.Module):
    """What saves permuted tensors for its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = (f(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for f in (self.query, self.key))
        return torch.softmax(q @ k.transpose(2, 3), -1) @ q


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_without_a_copy(dynamic: bool, copies: list[tuple[int, ...]]) -> None:
    torch._dynamo.reset()
    model, backend = Heads(), OrtBackend({"fallback": False})
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    for rows in (3, 5):
        x = torch.randn(2, rows, 8)
        got = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
    assert copies == []


# Positive: sums in another order differ by rounding only where nothing cancels.
CHANNELS_LAST = torch.rand(2, 3, 8, 8).to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.functional.conv2d(x, torch.ones(4, 3, 3, 3)).relu(),
        lambda x: (x + 1, x.sum(1)),
        lambda x: x.permute(0, 2, 3, 1),
        lambda x: (x, x * 2),
        lambda x: x.mul_(2).sum(),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_channels_last(function: Callable[..., Any], dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend(), dynamic=dynamic)
    for x in (CHANNELS_LAST, CHANNELS_LAST.contiguous(), CHANNELS_LAST[:1]):
        given, wanted = x.clone(), x.clone()
        results = zip(
            torch.utils._pytree.tree_leaves(compiled(given)),
            torch.utils._pytree.tree_leaves(function(wanted)),
            strict=True,
        )
        for a, b in results:
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
        assert torch.equal(given, wanted)


@pytest.mark.parametrize("backend", [onnx_custom_backend, onnx_debug_backend])
def test_models_to_look_at_keep_the_shapes_of_the_arguments(backend: Callable[..., Any]) -> None:
    torch._dynamo.reset()
    shapes = []

    def keep(model: onnx.ModelProto) -> None:
        shapes.append([d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim])

    given = functools.partial(backend, pre_ort_model_transforms=keep)
    result = torch.compile(lambda x: x + 1, backend=given)(CHANNELS_LAST)
    torch.testing.assert_close(result, CHANNELS_LAST + 1)
    assert shapes == [[2, 3, 8, 8]]


def test_owners_are_the_ends_of_lineages() -> None:
    """Views of arguments, of what is computed, and one of several results."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (x + 1).t()
        return x.view(-1), y.reshape(-1), *y.split(1), *torch.sort(x)

    graph = make_fx(function, tracing_mode="fake")(torch.randn(3, 2)).graph
    owners = owners_of(graph)
    assert owners == {node: lineage(node)[-1] for node in graph.nodes}
    assert any(owner is not node for node, owner in owners.items())
