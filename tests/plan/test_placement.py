"""What runs in torch and what in ONNX Runtime, of equal elements too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.plan import placement
from dort_rewriter.plan.graph_plan import plan_graph
from dort_rewriter.plan.placement import CONVOLUTIONS, TIES, choose_place, work_of
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.providers import CPU
from tests.backends.kernels.test_own_kernels import compiled

SOFTMAX = "aten::_softmax_backward_data"


def _softmax_backward(rows: int, mode: str = "fake") -> torch.fx.Node:
    def function(grad: torch.Tensor, y: torch.Tensor) -> Any:
        return torch.ops.aten._softmax_backward_data(grad, y, -1, torch.float32)

    graph = make_fx(function, tracing_mode=mode)(torch.zeros(rows, 1024), torch.zeros(rows, 1024))
    return next(n for n in graph.graph.nodes if n.op == "call_function")


@pytest.mark.parametrize(("threads", "rows"), [(1, 4096), (2, 65536)])
def test_large_work_goes_to_torch(
    threads: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is saved pays for the cut, which costs more beside other threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert choose_place(_softmax_backward(rows), SOFTMAX) == "torch"
    fewer = "torch" if threads == 1 else "onnxruntime"
    assert choose_place(_softmax_backward(4096), SOFTMAX) == fewer


def test_small_work_stays() -> None:
    """The cut would cost more than it saves."""
    assert choose_place(_softmax_backward(4), f"{SOFTMAX}") == "onnxruntime"


def test_what_is_not_in_the_table_stays() -> None:
    """Most operators."""
    assert choose_place(_softmax_backward(4096), "aten::cumsum") == "onnxruntime"


def test_a_gradient_of_a_convolution_is_torchs_on_cuda() -> None:
    """ONNX Runtime has no kernel for it there."""

    def function(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.aten.convolution_backward(
            grad, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        )

    name = "aten::convolution_backward"
    args = (torch.ones(1, 2, 3, 3), torch.ones(1, 2, 5, 5), torch.ones(2, 2, 3, 3))
    graph = make_fx(function, tracing_mode="fake")(*args)
    node = next(n for n in graph.graph.nodes if n.op == "call_function" and n.args)
    assert choose_place(node, name) == "onnxruntime"
    with FakeTensorMode():
        for argument in node.all_input_nodes:
            argument.meta["val"] = torch.empty(argument.meta["val"].shape, device="cuda")
    assert choose_place(node, name) == "torch"
    assert choose_place(node, name, {name: "onnxruntime"}) == "onnxruntime"
    assert choose_place(node, "aten::mm") == "onnxruntime"


@pytest.mark.parametrize(
    ("groups", "stride", "place"),
    [
        (1, 1, "torch kernel"),
        (1, 2, "torch kernel"),
        (4, 1, "torch kernel"),
        (4, 2, "onnxruntime"),
    ],
)
def test_gradients_of_groups_that_leave_out_pixels_stay(
    groups: int, stride: int, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's kernel is slow there; in bfloat16."""
    monkeypatch.setattr(placement, "convolves_bfloat16", lambda: True)
    monkeypatch.setattr(placement, "multiplies_bfloat16", lambda: True)

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        steps = [stride, stride]
        y = torch.ops.aten.convolution(x, w, None, steps, [1, 1], [1, 1], False, [0, 0], groups)
        return torch.ops.aten.convolution_backward(
            y, x, w, None, steps, [1, 1], [1, 1], False, [0, 0], groups, [True, True, False]
        )

    args = (torch.ones(1, 4, 8, 8).bfloat16(), torch.ones(4, 4 // groups, 3, 3).bfloat16())
    graph = make_fx(function, tracing_mode="fake")(*args)
    forward, backward = (n for n in graph.graph.nodes if "convolution" in str(n.target))
    assert choose_place(forward, "aten::convolution") == "torch kernel"
    assert choose_place(backward, "aten::convolution_backward") == place


@pytest.mark.parametrize(
    ("filters", "groups", "has_amx", "place"),
    [
        (32, 1, False, "onnxruntime"),
        (34, 1, False, "torch kernel"),
        (32, 2, False, "torch kernel"),
        (32, 1, True, "torch kernel"),
    ],
)
def test_few_filters_of_bfloat16_are_convolved_in_float32(
    filters: int, groups: int, has_amx: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "convolves_bfloat16", lambda: True)
    monkeypatch.setattr(placement, "multiplies_bfloat16", lambda: has_amx)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x, w, padding=1, groups=groups)

    args = torch.ones(1, 4, 8, 8).bfloat16(), torch.ones(filters, 4 // groups, 3, 3).bfloat16()
    graph = make_fx(function, tracing_mode="fake")(*args)
    (node,) = (n for n in graph.graph.nodes if "convolution" in str(n.target))
    assert choose_place(node, "aten::convolution") == place


@pytest.mark.parametrize(
    ("mode", "place"), [("fake", "torch kernel"), ("symbolic", "onnxruntime")]
)
def test_windows_of_one_element_of_fixed_images(
    mode: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are products where the pixels are known, and torch's convolution is slow elsewhere."""
    monkeypatch.setattr(placement, "convolves_bfloat16", lambda: True)

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    args = (torch.ones(4, 64, 16, 15).bfloat16(), torch.ones(96, 64, 1, 1).bfloat16())
    graph = make_fx(function, tracing_mode=mode)(*args)
    (node,) = (n for n in graph.graph.nodes if "convolution" in str(n.target))
    assert choose_place(node, "aten::convolution") == place


@pytest.mark.parametrize(
    ("image", "weight", "stride", "faster"),
    [
        pytest.param((8, 64, 28, 28), (64, 64, 3, 3), 1, True, id="large"),
        pytest.param((16, 16, 16, 16), (32, 16, 3, 3), 1, True, id="few-channels"),
        pytest.param((4, 256, 4, 4), (256, 256, 3, 3), 1, False, id="few-pixels"),
        pytest.param((4, 64, 16, 16), (128, 64, 3, 3), 2, False, id="leaves-out-pixels"),
        pytest.param((1, 128, 14, 14), (32, 128, 3, 3), 1, False, id="little-work"),
        pytest.param((1, 3, 224, 224), (64, 3, 7, 7), 1, False, id="three-channels"),
        pytest.param((8, 512, 16, 16), (128, 512, 1, 1), 1, False, id="products"),
        pytest.param((8, 64, 64, 64), (64, 1, 3, 3), 1, False, id="by-channel"),
        pytest.param((2, 256, 1000), (256, 256, 3), 1, False, id="one-axis"),
        pytest.param((2, 32, 8, 32, 32), (32, 32, 3, 3, 3), 1, False, id="three-axes"),
    ],
)
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_large_gradients_of_convolutions_whose_weights_are_no_constants(
    image: tuple[int, ...], weight: tuple[int, ...], stride: int, faster: bool, mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of float32: those are torch's that it computes faster; convolutions are ours."""
    monkeypatch.setattr(placement, "_convolves_float32", lambda: True)
    axes, groups = len(weight) - 2, image[1] // weight[1]

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        one, none = [1] * axes, [0] * axes
        how = [stride] * axes, [weight[2] // 2] * axes, one, False, none, groups
        y = torch.ops.aten.convolution(x, w, None, *how)
        return torch.ops.aten.convolution_backward(y, x, w, None, *how, [True, True, False])

    graph = make_fx(function, tracing_mode=mode)(torch.ones(image), torch.ones(weight))
    nodes = [n for n in graph.graph.nodes if "aten.convolution" in str(n.target)]
    for node, name, torchs in zip(nodes, CONVOLUTIONS, (False, faster), strict=True):
        assert choose_place(node, name) == ("torch kernel" if torchs else "onnxruntime")
        assert choose_place(node, name, frozen=True) == "onnxruntime"
        assert choose_place(node, name, {name: "onnxruntime"}) == "onnxruntime"


def _gradient_of_weights(
    image: tuple[int, ...], weight: tuple[int, ...], dtype: torch.dtype
) -> torch.fx.Node:
    def function(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
        how = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
        return torch.ops.aten.convolution_backward(y, x, w, None, *how, [False, True, False])

    x, w = torch.ones(image, dtype=dtype), torch.ones(weight, dtype=dtype)
    y = torch.nn.functional.conv2d(x, w, padding=1)
    graph = make_fx(function, tracing_mode="fake")(y, x, w)
    return next(n for n in graph.graph.nodes if "convolution" in str(n.target))


def test_gradients_of_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a first layer are torch's where they are large, of bfloat16 in any case."""
    for name in ("_convolves_float32", "convolves_bfloat16"):
        monkeypatch.setattr(placement, name, lambda: True)
    for batch, of_floats in ((16, "torch kernel"), (2, "onnxruntime")):
        shapes = (batch, 3, 48, 48), (64, 3, 3, 3)
        for dtype, place in ((torch.float32, of_floats), (torch.bfloat16, "torch kernel")):
            assert choose_place(_gradient_of_weights(*shapes, dtype), CONVOLUTIONS[1]) == place


def test_as_many_parts_as_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of pictures or of channels: where there are fewer, ONNX Runtime's threads share the work."""
    monkeypatch.setattr(placement, "_convolves_float32", lambda: True)
    node = _gradient_of_weights((4, 3, 96, 96), (64, 3, 3, 3), torch.float32)
    for threads, place in ((4, "torch kernel"), (5, "onnxruntime")):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert choose_place(node, CONVOLUTIONS[1]) == place


def _product(dtype: torch.dtype) -> torch.fx.Node:
    graph = make_fx(torch.mm)(torch.zeros(2, 3, dtype=dtype), torch.zeros(3, 4, dtype=dtype))
    return next(n for n in graph.graph.nodes if n.op == "call_function")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_products_of_halves_go_to_torchs_kernels(dtype: torch.dtype) -> None:
    """Inside the model, unless a user chooses otherwise."""
    assert choose_place(_product(dtype), "aten::mm") == "torch kernel"
    assert choose_place(_product(dtype), "aten::mm", {"*": "onnxruntime"}) == "onnxruntime"
    assert choose_place(_product(torch.float32), "aten::mm") == "onnxruntime"


def _attention(length: int, dtype: torch.dtype, mode: str = "fake") -> list[torch.fx.Node]:
    """Attention and its gradient."""
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def function(q: torch.Tensor) -> Any:
        y, sums = forward(q, q, q)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            y, q, q, q, y, sums, 0.0, False
        )

    graph = make_fx(function, tracing_mode=mode)(torch.zeros(1, 2, length, 8, dtype=dtype))
    return [n for n in graph.graph.nodes if "flash" in str(n.target)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [8, 2048])
def test_attention_makes_no_scores(
    length: int, dtype: torch.dtype, mode: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward and backward."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for node in _attention(length, dtype, mode):
        name = f"aten::{node.target.__name__.split('.')[0]}"
        assert choose_place(node, name) == "torch kernel"
        assert choose_place(node, name, {name: "onnxruntime"}) == "onnxruntime"


def test_attention_of_float64_is_written_out() -> None:
    for node in _attention(64, torch.float64):
        name = f"aten::{node.target.__name__.split('.')[0]}"
        assert choose_place(node, name) == "onnxruntime"


@pytest.mark.parametrize("key", [SOFTMAX, "*"])
def test_overrides_come_first(key: str) -> None:
    """By operator, or for all of them."""
    assert choose_place(_softmax_backward(4096), SOFTMAX, {key: "onnxruntime"}) == "onnxruntime"
    assert choose_place(_softmax_backward(4), SOFTMAX, {key: "torch"}) == "torch"


def test_symbolic_sizes_count_as_captured() -> None:
    """The sizes of the example arguments decide."""
    assert work_of(_softmax_backward(6, "symbolic")) == 6 * 1024


def test_a_placed_operator_is_no_fallback() -> None:
    """It runs in torch by choice: nothing is refused, even when refusing is an error."""
    torch._dynamo.reset()
    options = {"placement": {"aten::tanh": "torch"}, "fallback": False, "min_block_size": 1}
    backend = OrtBackend(options)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.tanh(x + 1) * 2)

    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))
    table = backend._all_ort_execution_info.execution_info_per_graph_module
    assert len(table) == 2  # before and after


aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SIZES = (3, 17, 200)
"""On both sides of where torch's algorithms change."""


def ties(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of few distinct numbers; of floats also NaN, infinities and two zeros."""
    generator = torch.Generator().manual_seed(n)
    x = torch.cat([torch.randint(0, m, (6, n), generator=generator) for m in (1, 2, 5)]).to(dtype)
    if dtype.is_floating_point:
        for value in (math.nan, math.inf, -math.inf, -0.0):
            x[1::2][torch.rand(9, n, generator=generator) < 0.1] = value
    return x


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_eagers_order(dtype: torch.dtype) -> None:
    """Of rows and columns, by every operator whose ties torch decides."""
    rows = [ties(n, dtype) for n in SIZES]

    def order(*rows: torch.Tensor) -> Any:
        results: list[torch.Tensor] = []
        for x in rows:
            n = x.shape[1]
            for largest in (False, True):
                results += aten.sort(x, -1, largest)
                results += aten.sort.stable(x.t(), stable=False, dim=0, descending=largest)
                results += aten.sort.stable(x, stable=True, dim=1, descending=largest)
                for k in (2, n // 2) if dtype is not torch.bool else ():
                    results += aten.topk(x, k, 1, largest)
                    results += aten.topk(x.t(), k, 0, largest, False)
            results += [*aten.max(x, 1), *aten.min(x, 0)]
            if dtype is not torch.bool:
                results += [*aten.median(x, 1), *aten.median(x, 0), *aten.nanmedian(x, 1)]
                results += [aten.argmax(x, 1), aten.argmin(x, 0), aten.argmax(x)]
            whole = x[::2]  # torch sorts for a mode by a comparison that a NaN breaks
            results += [*aten.mode(whole, 1), *aten.mode(whole, 0)]
        return results

    run, used = compiled(order, *rows, mode="fake")
    got, expected = run(*rows), order(*rows)
    assert used - {"ElementwiseList"} == {"Order"}  # results of medians may be made in one node
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=f"result {i}")


def left(
    function: Callable[..., Any], x: torch.Tensor, *, dynamic: bool = False, patterns: str = "all"
) -> tuple[str, ...]:
    """The operators of a function that stay in torch for their ties."""
    wanted = "default+onnxruntime+kernels" if patterns == "all" else patterns
    recipe = Recipe(
        dispatcher=Dispatcher(),
        options=OrtBackendOptions(
            optimization=OptimizationOptions(patterns=wanted), fallback=False
        ),
        select_providers=lambda graph, args: [(CPU, {})],
    )
    graph = make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(x)
    graph.graph.eliminate_dead_code()
    found = plan_graph(graph, recipe).fallbacks
    assert all(f.reason == TIES for f in found)
    return tuple(f.op for f in found)


def test_what_stays_in_torch() -> None:
    """What our kernel does not do, or all of it without the kernel, where ties show."""
    x, many = torch.zeros(4, 40), torch.zeros(40000, dtype=torch.int64)
    assert left(lambda x: x.topk(2), x) == ()
    assert left(lambda x: x.kthvalue(2), x) == ("aten::kthvalue",)
    assert left(lambda x: x.kthvalue(2)[0] + 1, x) == ()
    assert left(lambda x: x.sort()[1], many) == ("aten::sort",)
    assert left(lambda x: x.sort(descending=True)[1], many) == ()
    assert left(lambda x: x.sort()[1], many[:9]) == ()
    assert left(lambda x: x.sort()[1], many[:9], dynamic=True) == ("aten::sort",)
    assert left(lambda x: x.topk(2), x, patterns="default") == ("aten::topk",)
    assert left(lambda x: x.topk(2)[0] + 1, x, patterns="default") == ()
    unsorted = left(lambda x: x.topk(2, sorted=False)[0], x, patterns="default")
    assert unsorted == ("aten::topk",)
    assert left(lambda x: x.sort(stable=True), x, patterns="default") == ()
    assert left(lambda x: x.argsort(), x, patterns="default") == ("aten::sort",)
    assert left(lambda x: x.mode(), x, patterns="default") == ("aten::mode",)


class Experts(nn.Module):
    """A mixture of experts whose router starts at zero."""

    def __init__(self, experts: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(8, experts)
        nn.init.zeros_(self.router.weight)
        nn.init.zeros_(self.router.bias)
        self.experts = nn.Parameter(torch.randn(experts, 8, 8))
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).sigmoid()
        weights, chosen = scores.topk(self.chosen, dim=-1)
        outputs = torch.einsum("nd,nkde->nke", x, self.experts[chosen])
        return (outputs * weights[..., None]).sum(1)


@pytest.mark.parametrize(
    ("experts", "chosen", "dynamic"), [(8, 2, False), (64, 6, True), (128, 2, False)]
)
def test_a_router_that_starts_at_zero(experts: int, chosen: int, dynamic: bool) -> None:
    """Eager's experts are chosen, and get the gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Experts(experts, chosen)
    fast = torch.compile(model, backend="onnxrt", dynamic=dynamic, options={"fallback": False})
    for n in (5, 7):
        x = torch.randn(n, 8)
        results = []
        for function in (model, fast):
            model.zero_grad()
            y = function(x)
            y.square().sum().backward()
            results.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
