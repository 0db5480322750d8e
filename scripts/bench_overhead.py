"""What the executor adds to a raw session call, in microseconds.

usage: python scripts/bench_overhead.py [--json FILE] [--seconds S]

Raw: ``run_with_ortvaluevector`` on values made once. Executor: the whole call, tensors in and out.
Both run in turns; medians are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.helper as helper
import torch

from dort_rewriter.ort_module import bindings, describe, load_onnxruntime, max_ir_version
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.ort_values import to_ort
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.runtime.session import Session, create_session
from dort_rewriter.signature import GraphSignature, InputSlot, OutputSlot
from dort_rewriter.tools.benchmark import alternate

SHAPES = {"5 in, 1 out": (5, 1, 10.0), "60 in, 60 out": (60, 60, 60.0)}
"""Inputs, outputs and the microseconds not to exceed."""


def model(inputs: int, outputs: int) -> onnx.ModelProto:
    """Each output is the negation of an input, or the sum of all when there is only one."""
    names = [f"x{i}" for i in range(inputs)]
    if outputs == 1:
        nodes = [helper.make_node("Sum", names, ["y0"])]
    else:
        nodes = [helper.make_node("Neg", [names[i]], [f"y{i}"]) for i in range(outputs)]
    value = [helper.make_tensor_value_info(n, 1, ["N", 4]) for n in names]
    results = [helper.make_tensor_value_info(f"y{i}", 1, ["N", 4]) for i in range(outputs)]
    graph = helper.make_graph(nodes, "overhead", value, results)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, ir_version=max_ir_version(), opset_imports=opsets)


def calls(inputs: int, outputs: int) -> dict[str, Callable[[], Any]]:
    session = create_session(model(inputs, outputs))
    shape = ("N", 4)
    signature = GraphSignature(
        inputs=tuple(
            InputSlot(name=f"x{i}", kind="tensor", dtype=torch.float32, shape=shape)
            for i in range(inputs)
        ),
        outputs=tuple(
            OutputSlot(kind="tensor", source="model", index=i, name=f"y{i}", dtype=torch.float32)
            for i in range(outputs)
        ),
    )
    executor = Executor(session, signature)
    tensors = [torch.randn(3, 4) for _ in range(inputs)]
    return {
        "raw": raw_call(session, tensors, signature),
        "boxed": lambda: executor.boxed([*tensors]),
    }


def raw_call(
    session: Session, tensors: list[torch.Tensor], signature: GraphSignature
) -> Callable[[], Any]:
    feeds, options = to_ort(tensors), load_onnxruntime().RunOptions()
    vector, device = bindings().OrtValueVector, ort_device(None)
    names, fetched = list(signature.input_names), list(signature.output_names)
    devices = [device] * len(fetched)

    def call() -> Any:
        fetches = vector()
        session.ort.run_with_ortvaluevector(options, names, feeds, fetched, fetches, devices)
        return fetches

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each")
    arguments = parser.parse_args()
    report: dict[str, Any] = {"onnxruntime": describe(), "torch": torch.__version__}
    for title, (inputs, outputs, limit) in SHAPES.items():
        spent = alternate(calls(inputs, outputs), arguments.seconds, time.perf_counter)
        medians = {name: statistics.median(values) * 1e6 for name, values in spent.items()}
        added = medians["boxed"] - medians["raw"]
        report[title] = {"us": medians, "added_us": added, "limit_us": limit}
        print(
            f"{title}: raw {medians['raw']:.1f} us, executor adds {added:.1f} us "
            f"(limit {limit:.0f})"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
