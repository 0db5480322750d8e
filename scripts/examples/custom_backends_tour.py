"""A tour of custom backends: looking at graphs, breaks, names, compositions, a real network.

usage: python scripts/examples/custom_backends_tour.py [--image N] [--batch N] [--growth N]
                                                       [--blocks N N ...]

1. A function with a branch on data, under backends that print: three graphs.
2. `explain` says where the graph breaks; `fullgraph=True` refuses it, in torch's words.
3. A backend gets a name by a decorator, or by an entry point of its package.
4. Backends composed: the first that compiles a graph has it.
5. DenseNet-121 through `onnxrt`, checked against eager, then `torch.export` and `to_onnx`.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import onnxruntime
import torch
from torch import nn

from dort_rewriter import (
    compose_backends,
    explain,
    onnx_custom_backend,
    onnx_debug_backend,
    print_graph_backend,
    to_onnx,
)

# torch <= 2.8 has a backend of the same name: this gives its graphs to our exporter.
os.environ.setdefault("ONNXRT_CHANGE_REWRITER", "1")


def toy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


INPUTS = (torch.arange(10) / 10 - 0.4, torch.ones(10))
"""What takes one way of the branch; with the second negated, the other."""


def check_both_ways(backend: Any) -> None:
    """Compile the function and compare both ways of its branch with eager."""
    torch._dynamo.reset()
    compiled = torch.compile(toy, backend=backend)
    for sign in (1, -1):
        a, b = INPUTS[0], sign * INPUTS[1]
        torch.testing.assert_close(compiled(a, b), toy(a, b))


def look_at_graphs() -> None:
    print("== the graphs of a function with a branch on data")
    count = 0

    def counted(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
        nonlocal count
        count += 1
        print(f"\n-- graph {count}")
        return print_graph_backend(graph_module, args)

    check_both_ways(counted)
    print(f"\n{count} graphs: before the branch, and after it for each way")

    stream, storage = io.StringIO(), dict[str, Any]()
    check_both_ways(
        lambda graph, args: onnx_debug_backend(
            graph, args, compare=True, verbose=10, stream=stream, storage=storage
        )
    )
    print(f"\n-- the results of {len(storage['instance'])} models, each compared with torch")
    print(stream.getvalue())


def look_at_breaks() -> None:
    print("== where it breaks")
    print(explain(toy, *INPUTS))
    torch._dynamo.reset()
    try:
        torch.compile(toy, backend=onnx_custom_backend, fullgraph=True)(*INPUTS)
    except torch._dynamo.exc.Unsupported as error:
        print(f"\n== refused with fullgraph=True, in torch's words\n{error}")
    else:
        raise AssertionError("a branch on data went into one graph")


def register_names() -> None:
    print("\n== backends by name")

    @torch._dynamo.register_backend
    def opset20(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        return onnx_custom_backend(graph_module, args, target_opset=20)

    check_both_ways("opset20")
    print("opset20: registered by a decorator")
    if "onnx_custom" in torch._dynamo.list_backends(exclude_tags=None):
        check_both_ways("onnx_custom")
        print("onnx_custom: registered by an entry point of the package")
    else:
        print("onnx_custom: not found, the package is on the path but not installed")


def compose() -> None:
    print("\n== backends composed")

    def refuse(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        raise NotImplementedError("it takes no graph at all")

    backend = compose_backends("tensorrt", refuse, onnx_custom_backend, fallback="eager")
    check_both_ways(backend)
    print(backend.report())


# -- DenseNet, written with torch alone ------------------------------------------------------


class Layer(nn.Module):
    """A dense layer: it adds ``growth`` channels to what it gets."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.body(x)], dim=1)


def make_densenet(growth: int, blocks: Sequence[int], classes: int = 1000) -> nn.Module:
    """A DenseNet; growth 32 and blocks of 6, 12, 24 and 16 layers are DenseNet-121."""
    channels = 2 * growth
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for i, count in enumerate(blocks):
        for _ in range(count):
            layers.append(Layer(channels, growth))
            channels += growth
        layers.append(nn.BatchNorm2d(channels))
        layers.append(nn.ReLU())
        if i + 1 < len(blocks):
            layers.append(nn.Conv2d(channels, channels // 2, 1, bias=False))
            layers.append(nn.AvgPool2d(2, stride=2))
            channels //= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


def timed(function: Callable[[], torch.Tensor], repeat: int = 2) -> tuple[torch.Tensor, float]:
    """A result, and the shortest time in seconds after a first call."""
    result = function()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return result, min(times)


def run_densenet(image: int, batch: int, growth: int, blocks: Sequence[int]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = make_densenet(growth, blocks).eval().to(device)
    x = torch.randn(batch, 3, image, image, device=device)
    layers = 1 + 2 * sum(blocks) + len(blocks)
    print(f"\n== DenseNet-{layers}, {batch} images of {image}x{image} on {device}")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="onnxrt", dynamic=False, fullgraph=True)
    with torch.no_grad():
        expected, eager = timed(lambda: model(x))
        got, ours = timed(lambda: compiled(x))
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
    print(f"eager {eager:.3f} s, onnxrt {ours:.3f} s, the results are the same")

    program = torch.export.export(model.cpu(), (x.cpu(),))
    exported = to_onnx(program)
    session = onnxruntime.InferenceSession(
        exported.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (got_again,) = session.run(None, {session.get_inputs()[0].name: x.cpu().numpy()})
    torch.testing.assert_close(torch.from_numpy(got_again), expected.cpu(), atol=1e-3, rtol=1e-3)
    print(
        f"torch.export, then to_onnx: {len(exported.graph.node)} nodes, the results are the same"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--image", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--growth", type=int, default=32)
    parser.add_argument("--blocks", type=int, nargs="+", default=[6, 12, 24, 16])
    options = parser.parse_args()
    look_at_graphs()
    look_at_breaks()
    register_names()
    compose()
    run_densenet(options.image, options.batch, options.growth, options.blocks)


if __name__ == "__main__":
    main()
