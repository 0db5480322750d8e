"""Operators that run faster in torch are left there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend
from dort_rewriter.plan import placement
from dort_rewriter.plan.placement import CONVOLUTIONS, choose_place, work_of

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
    monkeypatch.setattr(placement, "_convolves_bfloat16", lambda: True)

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
    ("mode", "place"), [("fake", "torch kernel"), ("symbolic", "onnxruntime")]
)
def test_windows_of_one_element_of_fixed_images(
    mode: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are products where the pixels are known, and torch's convolution is slow elsewhere."""
    monkeypatch.setattr(placement, "_convolves_bfloat16", lambda: True)

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        return torch.ops.aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)

    args = (torch.ones(4, 64, 16, 15).bfloat16(), torch.ones(96, 64, 1, 1).bfloat16())
    graph = make_fx(function, tracing_mode=mode)(*args)
    (node,) = (n for n in graph.graph.nodes if "convolution" in str(n.target))
    assert choose_place(node, "aten::convolution") == place


@pytest.mark.parametrize(
    ("image", "weight", "stride", "place", "gradient"),
    [
        pytest.param((8, 64, 28, 28), (64, 64, 3, 3), 1, True, True, id="large"),
        pytest.param((4, 256, 4, 4), (256, 256, 3, 3), 1, True, False, id="few-pixels"),
        pytest.param((4, 64, 16, 16), (128, 64, 3, 3), 2, True, False, id="leaves-out-pixels"),
        pytest.param((16, 16, 16, 16), (32, 16, 3, 3), 1, False, True, id="few-channels"),
        pytest.param((1, 128, 14, 14), (32, 128, 3, 3), 1, False, False, id="little-work"),
        pytest.param((1, 3, 224, 224), (64, 3, 7, 7), 1, False, False, id="three-channels"),
        pytest.param((8, 512, 16, 16), (128, 512, 1, 1), 1, False, False, id="products"),
        pytest.param((8, 64, 64, 64), (64, 1, 3, 3), 1, False, False, id="by-channel"),
        pytest.param((2, 256, 1000), (256, 256, 3), 1, False, False, id="one-axis"),
        pytest.param((2, 32, 8, 32, 32), (32, 32, 3, 3, 3), 1, False, False, id="three-axes"),
    ],
)
@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_large_convolutions_whose_weights_are_no_constants(
    image: tuple[int, ...], weight: tuple[int, ...], stride: int, place: bool, gradient: bool,
    mode: str, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of float32: those, and those gradients, are torch's that it computes faster."""
    monkeypatch.setattr(placement, "_convolves_float32", lambda: True)
    axes, groups = len(weight) - 2, image[1] // weight[1]

    def function(x: torch.Tensor, w: torch.Tensor) -> Any:
        one, none = [1] * axes, [0] * axes
        how = [stride] * axes, [weight[2] // 2] * axes, one, False, none, groups
        y = torch.ops.aten.convolution(x, w, None, *how)
        return torch.ops.aten.convolution_backward(y, x, w, None, *how, [True, True, False])

    graph = make_fx(function, tracing_mode=mode)(torch.ones(image), torch.ones(weight))
    nodes = [n for n in graph.graph.nodes if "aten.convolution" in str(n.target)]
    for node, name, faster in zip(nodes, CONVOLUTIONS, (place, gradient), strict=True):
        assert choose_place(node, name) == ("torch kernel" if faster else "onnxruntime")
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
    for of in ("float32", "bfloat16"):
        monkeypatch.setattr(placement, f"_convolves_{of}", lambda: True)
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


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
@pytest.mark.parametrize(
    ("length", "dtype", "threads", "place"),
    [
        (64, torch.float32, 1, "torch kernel"),
        (32, torch.bfloat16, 1, "torch kernel"),
        (64, torch.float32, 2, "onnxruntime"),
        (512, torch.float32, 2, "torch kernel"),
        (64, torch.bfloat16, 2, "torch kernel"),
    ],
)
def test_short_attention_of_threads_stays(
    length: int,
    dtype: torch.dtype,
    threads: int,
    place: str,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In float32: the scores are few, and made by faster kernels; forward and backward."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    nodes = _attention(length, dtype, mode)
    names = [f"aten::{n.target.__name__.split('.')[0]}" for n in nodes]
    assert [choose_place(n, name) for n, name in zip(nodes, names, strict=True)] == [place, place]


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_short_attention_whose_gradient_is_by_mkl(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no scores, unless nobody reads what its gradient does."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    forward, backward = _attention(64, torch.float32, mode)
    names = [f"aten::{n.target.__name__.split('.')[0]}" for n in (forward, backward)]
    by_mkl = {"by_mkl": lambda: True}
    assert choose_place(backward, names[1], **by_mkl) == "torch kernel"
    assert choose_place(forward, names[0], **by_mkl) == "torch kernel"
    (sums,) = (u for u in forward.users if u.args[1] == 1)
    sums.replace_all_uses_with(next(iter(forward.users)))
    assert choose_place(forward, names[0], **by_mkl) == "onnxruntime"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("mode", "place"), [("fake", "onnxruntime"), ("symbolic", "torch kernel")]
)
def test_few_tokens_are_not_torchs(
    mode: str, place: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are not more of them at another call."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for node in _attention(32, torch.float32, mode):
        name = f"aten::{node.target.__name__.split('.')[0]}"
        assert choose_place(node, name, by_mkl=lambda: True) == place


@pytest.mark.parametrize(("mkl", "place"), [(True, "torch kernel"), (False, "onnxruntime")])
def test_threads_of_openmp_cost_more(
    mkl: bool, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the session do not spin beside them."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    node, _ = _attention(256, torch.float32)
    assert choose_place(node, "aten::_scaled_dot_product_flash_attention_for_cpu") == place


@pytest.mark.parametrize("key", [SOFTMAX, "*"])
def test_overrides_come_first(key: str) -> None:
    """By operator, or for all of them."""
    assert choose_place(_softmax_backward(4096), SOFTMAX, {key: "onnxruntime"}) == "onnxruntime"
    assert choose_place(_softmax_backward(4), SOFTMAX, {key: "torch"}) == "torch"


def test_symbolic_sizes_count_as_captured() -> None:
    """The sizes of the example arguments decide."""
    assert work_of(_softmax_backward(6, "symbolic"), SOFTMAX) == 6 * 1024


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
