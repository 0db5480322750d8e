from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func

from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.capture.resizing import keep_resizing

CASES = [
    ((2, 3, 7), {"scale_factor": 2.0, "mode": "nearest"}),
    ((2, 3, 7, 6), {"scale_factor": 1.5, "mode": "nearest"}),
    ((2, 3, 7, 6), {"size": (5, 9), "mode": "nearest-exact"}),
    ((2, 3, 4, 5, 6), {"scale_factor": 2.0, "mode": "nearest"}),
    ((2, 3, 7), {"scale_factor": 1.5, "mode": "linear"}),
    ((2, 3, 7, 6), {"scale_factor": 2.0, "mode": "bilinear"}),
    ((2, 3, 7, 6), {"size": (5, 9), "mode": "bilinear", "align_corners": True}),
    ((2, 3, 7, 6), {"scale_factor": 2.0, "mode": "bicubic"}),
    ((2, 3, 4, 5, 6), {"scale_factor": 2.0, "mode": "trilinear"}),
]


def _kernels() -> list[dict[Any, Any]]:
    aten = torch.ops.aten
    overloads = (aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default)
    return [dict(op.py_kernels) for op in (*overloads, aten.upsample_bilinear2d_backward.default)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_resizing_reaches_the_compiler_whole(
    shape: tuple[int, ...], options: dict[str, Any], dynamic: bool
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def compile_graph(graph: torch.fx.GraphModule, args: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, args: Any) -> Any:
        return compile_with_aot(graph, args, compile_graph=compile_graph, decompositions={})

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, **options)

    torch._dynamo.reset()
    x = torch.randn(shape, requires_grad=True)
    result = torch.compile(function, backend=backend, dynamic=dynamic)(x)
    gradient = torch.randn_like(result)
    (got,) = torch.autograd.grad(result, x, gradient)
    expected = function(x)
    (wanted,) = torch.autograd.grad(expected, x, gradient)
    torch.testing.assert_close((result, got), (expected, wanted))
    called = [str(n.target) for g in graphs for n in g.graph.nodes if "aten" in str(n.target)]
    assert len(called) == 2
    assert all("upsample" in name for name in called)


def test_torchs_kernels_come_back() -> None:
    before = _kernels()
    with keep_resizing({}):
        assert _kernels() != before
    assert _kernels() == before
    with pytest.raises(RuntimeError, match="stop"), keep_resizing({}):
        raise RuntimeError("stop")
    assert _kernels() == before


def test_what_the_table_decomposes_is_left_alone() -> None:
    before = _kernels()
    with keep_resizing({torch.ops.aten.upsample_bilinear2d.default: lambda *args: None}):
        assert _kernels() == before
