"""``torch.onnx.ops.symbolic``: a node of the model, spelled in the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.schemas import op_info
from dort_rewriter.graph.values import Value


@converter("onnx_symbolic::_symbolic")
def symbolic(
    op: Recorder,
    inputs: Sequence[Value | None],
    op_type: str,
    onnx_dtype: int,
    *,
    shape: Sequence[Any],
    domain: str = "",
    **attributes: Any,
) -> Value:
    """_symbolic(Tensor?[] inputs, str op_type, int onnx_dtype, *, SymInt[] shape, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain="", int? version=None) -> Tensor"""
    (result,) = _record(op, inputs, op_type, [onnx_dtype], domain, **attributes)
    return result


@converter("onnx_symbolic::_symbolic_multi_out")
def symbolic_multi_out(
    op: Recorder,
    inputs: Sequence[Value | None],
    op_type: str,
    onnx_dtypes: Sequence[int],
    *,
    shapes: Sequence[Any],
    domain: str = "",
    **attributes: Any,
) -> tuple[Value, ...]:
    """_symbolic_multi_out(Tensor?[] inputs, str op_type, int[] onnx_dtypes, *, SymInt[][] shapes, str[] attr_keys, str[] attr_types, int[][] attr_pos, int[] attr_ints, float[] attr_floats, str[] attr_strs, str[] metadata_props_keys, str[] metadata_props_values, str domain="", int? version=None) -> Tensor[]"""
    return _record(op, inputs, op_type, onnx_dtypes, domain, **attributes)


def _record(
    op: Recorder,
    inputs: Sequence[Value | None],
    op_type: str,
    dtypes: Sequence[int],
    domain: str,
    *,
    attr_keys: Sequence[str],
    attr_types: Sequence[str],
    attr_pos: Sequence[tuple[int, int]],
    attr_ints: Sequence[int],
    attr_floats: Sequence[float],
    attr_strs: Sequence[str],
    metadata_props_keys: Sequence[str] = (),
    metadata_props_values: Sequence[str] = (),
    version: int | None = None,
) -> tuple[Value, ...]:
    stored = {"i": attr_ints, "f": attr_floats, "s": attr_strs}
    attributes: dict[str, Any] = {}
    for key, kind, (start, end) in zip(attr_keys, attr_types, attr_pos, strict=True):
        values = list(stored[kind[0]][start:end])
        attributes[key] = values if kind.endswith("s") and len(kind) == 2 else values[0]
    if version is not None:
        _check_version(op, op_type, "" if domain == "ai.onnx" else domain, version)
    metadata = dict(zip(metadata_props_keys, metadata_props_values, strict=True))
    op.provenance = {**op.provenance, **metadata}
    results = op.call(op_type, *inputs, domain=domain, outputs=len(dtypes), **attributes)
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
