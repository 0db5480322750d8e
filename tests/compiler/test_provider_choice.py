"""Sessions on CUDA round the factors of float32 products to TF32 where torch may."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.compiler.provider_choice import may_use_tf32, select_providers
from dort_rewriter.runtime import providers
from dort_rewriter.runtime.providers import CPU, CUDA, OPENVINO

Graph = torch.fx.GraphModule

WIDE = torch.ones(64, 64)
KERNEL = torch.ones(8, 3, 3, 3)
PICTURES = torch.ones(2, 3, 32, 32)


def traced(function: Callable[..., object], *args: torch.Tensor, mode: str = "fake") -> Graph:
    return make_fx(function, tracing_mode=mode)(*args)


def product(mode: str = "fake") -> Graph:
    return traced(torch.mm, WIDE, WIDE, mode=mode)


def convolution(mode: str = "fake") -> Graph:
    return traced(F.conv2d, PICTURES, KERNEL, mode=mode)


def classifier() -> Graph:
    """A small product behind a convolution: a part in a hundred of the work."""
    return traced(
        lambda x, w, v: F.conv2d(x, w).mean((2, 3)) @ v, PICTURES, KERNEL, torch.ones(8, 16)
    )


def embedded_patches() -> Graph:
    """A small convolution before products, as in a transformer of pictures."""

    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        rows = F.conv2d(x, w, stride=8).flatten(2)
        return rows.transpose(1, 2) @ v @ v.t()

    return traced(function, PICTURES, KERNEL, torch.ones(8, 256))


@contextmanager
def settings(*, products: bool = False, convolutions: bool, **flags: bool) -> Iterator[None]:
    """torch's settings by their older names, also where its own tests have frozen them."""
    before = torch.backends.cuda.matmul.allow_tf32
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=convolutions, **flags):
        torch.backends.cuda.matmul.allow_tf32 = products
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # What products and convolutions may do: neither, convolutions (torch's default), products,
        # both.
        (product, (False, False, True, True)),
        (convolution, (False, True, False, True)),
        (classifier, (False, True, False, True)),
        (embedded_patches, (False, False, False, True)),
        (lambda: traced(torch.relu, WIDE), (False, False, True, True)),
        (lambda: traced(torch.mm, WIDE.double(), WIDE.double()), (False, False, True, True)),
        (lambda: convolution("symbolic"), (False, True, False, True)),
        (lambda: product("symbolic"), (False, False, True, True)),
    ],
)
def test_torch_decides(make: Callable[[], Graph], expected: tuple[bool, ...]) -> None:
    graph = make()
    found = []
    for products, convolutions in ((False, False), (False, True), (True, False), (True, True)):
        with settings(products=products, convolutions=convolutions):
            found.append(may_use_tf32(graph))
    assert tuple(found) == expected


def test_the_gradient_of_a_convolution_counts() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        y = F.conv2d(x, w)
        return list(torch.autograd.grad(y.sum(), [w]))

    graph = traced(function, PICTURES, KERNEL.clone().requires_grad_())
    for node in tuple(graph.graph.nodes):  # what is left is that of a backward graph
        if node.target is torch.ops.aten.convolution.default:
            with graph.graph.inserting_before(node):
                made = graph.graph.placeholder("y")
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            graph.graph.erase_node(node)
    with settings(convolutions=True):
        assert may_use_tf32(graph)


@pytest.mark.skipif(
    not hasattr(torch.backends.cudnn, "conv"), reason="the settings by operator are of torch 2.9"
)
def test_settings_by_operator_are_read() -> None:
    """The older names raise beside these."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    compiled = torch.compile(
        lambda x: x @ x, backend=OrtBackend(OrtBackendOptions(fallback=False, cache_graphs=True))
    )
    try:
        matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        assert may_use_tf32(product())
        torch.testing.assert_close(compiled(WIDE), WIDE @ WIDE)
    finally:
        matmul.fp32_precision = before


def test_the_provider_is_told_and_a_user_knows_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "built_in", lambda: (CUDA, CPU))

    def chosen(*preferred: tuple[str, dict[str, object]]) -> dict[str, object]:
        options = OrtBackendOptions(preferred_execution_providers=[*preferred, CUDA])
        return dict(dict(select_providers(options, convolution(), []))[CUDA])

    with settings(convolutions=True):
        assert chosen() == {"use_tf32": "1", "cudnn_conv_algo_search": "HEURISTIC"}
        assert chosen((CUDA, {"use_tf32": 0}))["use_tf32"] == "0"
    with settings(convolutions=True, benchmark=True):
        assert chosen()["cudnn_conv_algo_search"] == "EXHAUSTIVE"


def test_a_session_on_the_cpu_has_no_such_settings() -> None:
    options = OrtBackendOptions()
    assert select_providers(options, convolution(), [torch.ones(1)]) == [(CPU, {})]


def test_precisions_that_providers_would_lower(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are pinned, unless torch's settings or the user's own options say otherwise."""
    graph = traced(torch.relu, WIDE)

    def options_of(name: str, **own: str) -> Mapping[str, str]:
        monkeypatch.setattr(providers, "built_in", lambda: (name, CPU))
        asked = OrtBackendOptions(preferred_execution_providers=[(name, own)])
        ((first, found), _) = select_providers(asked, graph, [WIDE])
        assert first == name
        return found

    config = json.loads(options_of(OPENVINO)["load_config"])
    assert config == {kind: {"INFERENCE_PRECISION_HINT": "f32"} for kind in ("CPU", "GPU")}
    merged = options_of(OPENVINO, load_config='{"CPU": {"NUM_STREAMS": "1"}, "NPU": {}}')
    assert json.loads(merged["load_config"]) == {
        **config,
        "CPU": {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": "1"},
        "NPU": {},
    }
    own = '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'
    wins = json.loads(options_of(OPENVINO, load_config=own)["load_config"])
    assert wins["CPU"] == {"INFERENCE_PRECISION_HINT": "bf16"}
    assert options_of(OPENVINO, load_config="a/file.json")["load_config"] == "a/file.json"
    assert options_of(OPENVINO, precision="FP16") == {"precision": "FP16"}
    assert options_of("CoreMLExecutionProvider")["ModelFormat"] == "MLProgram"
    assert options_of("QNNExecutionProvider", enable_htp_fp16_precision="1") == {
        "enable_htp_fp16_precision": "1"
    }
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert options_of(OPENVINO) == {}
    finally:
        torch.set_float32_matmul_precision(before)
