"""``torch.onnx.ops.symbolic``: a node of the model, spelled in the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.schemas import op_info
from dort_rewriter.graph.values import Value


@converter("onnx_symbolic::_symbolic")
@by_name
def symbolic(op: Recorder, given: Arguments) -> Value:
    """_symbolic(Tensor?[] inputs, str op_type, int onnx_dtype, *, SymInt[] shape, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain="", int? version=None) -> Tensor"""
    return _record(op, given, [given.onnx_dtype])[0]


@converter("onnx_symbolic::_symbolic_multi_out")
@by_name
def symbolic_multi_out(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_symbolic_multi_out(Tensor?[] inputs, str op_type, int[] onnx_dtypes, *, SymInt[][] shapes, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain="", int? version=None) -> Tensor[]"""
    return _record(op, given, given.onnx_dtypes)


def _record(op: Recorder, given: Arguments, dtypes: Sequence[int]) -> tuple[Value, ...]:
    stored = {"i": given.attr_ints, "f": given.attr_floats, "s": given.attr_strs}
    attributes: dict[str, Any] = {}
    spans = zip(given.attr_keys, given.attr_types, given.attr_pos, strict=True)
    for key, kind, (start, end) in spans:
        values = list(stored[kind[0]][start:end])
        attributes[key] = values if kind.endswith("s") and len(kind) == 2 else values[0]
    op_type, domain = given.op_type, given.domain
    if given.version is not None:
        _check_version(op, op_type, "" if domain == "ai.onnx" else domain, given.version)
    keys, values = given.metadata_props_keys, given.metadata_props_values
    op.provenance = {**op.provenance, **dict(zip(keys, values, strict=True))}
    results = op.call(op_type, *given.inputs, domain=domain, outputs=len(dtypes), **attributes)
    results = results if isinstance(results, tuple) else (results,)
    for result, dtype in zip(results, dtypes, strict=True):
        result.type = ir.TensorType(ir.DataType(dtype))
    return results


def _check_version(op: Recorder, op_type: str, domain: str, version: int) -> None:
    """Refuse a version that a model cannot have: it has one of each domain."""
    if domain:
        op.import_domain(domain, version)
        return
    if op_info(op_type, version).version != op_info(op_type, op.opset).version:
        raise Refused(f"{op_type} of opset {version} is another than that of opset {op.opset}")
