"""Runtimes of ONNX other than onnxruntime, on which a file can be judged too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import onnx
from onnx.reference import ReferenceEvaluator

from dort_rewriter.errors import ExecutionError

__all__ = ["RUNTIMES", "Run"]

Run = Callable[[], list[Any]]
"""Computes the results of a model, in order."""


def _on_the_evaluator(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> Run:
    evaluator = ReferenceEvaluator(proto)
    return lambda: list(evaluator.run(None, dict(feeds)))


def _on_openvino(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> Run:
    core = _openvino()
    # Where the processor multiplies bfloat16, OpenVINO takes that for float32 unless told.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(proto.SerializeToString()), "CPU", settings)
    places = [next(i for i, o in enumerate(compiled.outputs) if name.name in o.get_names())
              for name in proto.graph.output]  # fmt: skip

    def run() -> list[Any]:
        found = compiled(dict(feeds))
        return [found[place] for place in places]

    return run


@functools.cache
def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise ExecutionError(f"OpenVINO is not there ({error}): pip install openvino.") from error
    return openvino.Core()


RUNTIMES: dict[str, Callable[[onnx.ModelProto, Mapping[str, Any]], Run]] = {
    "reference": _on_the_evaluator,
    "openvino": _on_openvino,
}
"""What prepares a model and its inputs, by name. Each raises whatever the runtime raises."""
