"""How long it takes to convert a Llama, forward and backward, and how that grows with its depth.

usage: python scripts/bench_export.py [--json FILE] [--layers 1 2 4 8 16] [--repeat N]
                                      [--proof FOLDER]

Graphs are captured once through AOTAutograd (hidden 16, 2 x 8 tokens); conversions of a depth, up
to the bytes of the model, run in turn in the same loop, medians are reported. Beside ours: torch's
own exporter (the forward pass of the same module; it has no backward). With --proof, a folder that
holds a converter named ``recorder.py``: the same modules are captured once more, decomposed as far
as that one needs, and both convert these graphs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from functorch.compile import make_boxed_func

from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.interpreter import convert_graph
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher

TARGET_SECONDS = 0.15
TARGET_GROWTH = 1.15


class Tokens(torch.nn.Module):
    """A model called with token numbers only, returning one tensor."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        self.model = LlamaModel(
            LlamaConfig(
                hidden_size=16,
                num_hidden_layers=layers,
                vocab_size=1024,
                intermediate_size=16,
                max_position_embeddings=256,
                num_attention_heads=2,
                attn_implementation="eager",
                use_cache=False,
            )
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.model(tokens, use_cache=False).last_hidden_state
        return result


def capture(
    module: torch.nn.Module, args: Sequence[Any], table: Mapping[Any, Any] | None = None
) -> list[torch.fx.GraphModule]:
    """The forward and the backward graph."""
    if table is None:
        table = get_decomposition_table(OxsDispatcher())
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return compile_with_aot(graph, inputs, compile_graph=keep, decompositions=table)

    torch._dynamo.reset()
    torch.compile(module, backend=backend, fullgraph=True)(*args).sum().backward()
    return graphs


def ours(graphs: Sequence[torch.fx.GraphModule]) -> int:
    """Convert graphs up to the bytes that a session reads; return how many nodes they became."""
    dispatcher = OxsDispatcher()
    count = 0
    for graph in graphs:
        model = convert_graph(graph, dispatcher).model
        ir.to_proto(model).SerializeToString()
        count += len(model.graph)
    return count


def torch_exporter(module: torch.nn.Module, args: Sequence[Any]) -> None:
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(args), dynamo=True, verbose=False)


def rival(folder: str) -> Any:
    """The module ``recorder`` of a folder."""
    sys.path.insert(0, folder)
    return importlib.import_module("recorder")


def decomposed_for(recorder: Any) -> dict[Any, Any]:
    """The decompositions of what a rival does not convert."""
    table = torch._decomp.decomposition_table
    return {op: f for op, f in table.items() if recorder.lookup(op)[1] is None}


def convert_with(recorder: Any, graphs: Sequence[torch.fx.GraphModule]) -> None:
    for graph in graphs:
        ir.to_proto(recorder.convert(graph)[0]).SerializeToString()


def timed(function: Callable[[], Any]) -> float:
    gc.collect()  # what another side left behind is not this one's to pay for
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def attempt(function: Callable[[], Any]) -> str | None:
    """Run something once; return why it does not work, or None."""
    try:
        function()
    except Exception as e:  # a rival that fails is a result, not an error of this script
        return f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:200]
    return None


def measure(layers: int, repeat: int, recorder: Any) -> dict[str, Any]:
    """The medians of one depth."""
    module = Tokens(layers)
    args = (torch.randint(0, 1024, (2, 8)),)
    graphs = capture(module, args)
    sides: dict[str, Callable[[], Any]] = {"ours": lambda: ours(graphs)}
    if layers == 1:
        sides["torch.onnx.export (forward)"] = lambda: torch_exporter(module, args)
    if recorder is not None:
        shared = capture(module, args, decomposed_for(recorder))
        sides["ours, on the graphs of the proof"] = lambda: ours(shared)
        sides["proof"] = lambda: convert_with(recorder, shared)
    failures = {name: why for name, side in sides.items() if (why := attempt(side)) is not None}
    times: dict[str, list[float]] = {name: [] for name in sides if name not in failures}
    for _ in range(repeat):
        for name, spent in times.items():
            spent.append(timed(sides[name]))
    return {
        "layers": layers,
        "graphs": [len(g.graph.nodes) for g in graphs],
        "onnx_nodes": None if "ours" in failures else ours(graphs),
        "seconds": {name: statistics.median(spent) for name, spent in times.items()},
        "failures": failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--proof", help="a folder holding recorder.py, to compare with")
    arguments = parser.parse_args()
    recorder = rival(arguments.proof) if arguments.proof else None
    rows = [measure(n, arguments.repeat, recorder) for n in arguments.layers]
    first, last = rows[0], rows[-1]
    growth = (
        last["seconds"]["ours"] / first["seconds"]["ours"] / (last["layers"] / first["layers"])
    )
    report = {
        "torch": torch.__version__,
        "rows": rows,
        "seconds": first["seconds"]["ours"],
        "target_seconds": TARGET_SECONDS,
        "growth_over_linear": growth,
        "target_growth": TARGET_GROWTH,
    }
    for row in rows:
        print(row)
    print(f"{first['layers']} layer(s): {report['seconds']:.3f} s (target {TARGET_SECONDS})")
    print(f"growth to {last['layers']} layers: {growth:.2f} x linear (target {TARGET_GROWTH})")
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
