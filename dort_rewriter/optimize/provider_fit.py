"""Casts around the nodes whose element types have no kernel where the model is to run.

The same for a file: there it is ONNX that says which types an operator takes.

Narrow types are computed in a wider one and rounded back: bfloat16 and float16 in float32, small
integers and bool in int32 or int64. float64 is not narrowed: such a node is given back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx.defs
import onnx_ir as ir

from dort_rewriter.dtypes import holds
from dort_rewriter.graph.defects import MOVES
from dort_rewriter.optimize.replacing import take_place

__all__ = ["HasKernel", "compute_halves_in_float", "fit_to_provider", "fit_to_standard"]

HasKernel = Callable[[ir.Node, Sequence[ir.DataType | None]], bool]
"""Whether a node runs when its inputs have these types."""

_D = ir.DataType
_AS_THEY_ARE = MOVES | {"Cast", "If", "Loop", "Scan", "Shape", "Size"}
"""What has kernels for float16, or none of its own."""
_WIDER: dict[ir.DataType, tuple[ir.DataType, ...]] = {
    _D.FLOAT16: (_D.FLOAT,),
    _D.BFLOAT16: (_D.FLOAT,),
    _D.BOOL: (_D.INT32, _D.INT64, _D.FLOAT),
    _D.INT8: (_D.INT32, _D.INT64),
    _D.INT16: (_D.INT32, _D.INT64),
    _D.UINT8: (_D.INT32, _D.INT64),
    _D.INT32: (_D.INT64,),
}


def fit_to_provider(model: ir.Model, has_kernel: HasKernel) -> list[ir.Node]:
    """Put casts where they are needed; return the nodes that no cast can help."""
    helpless = []
    for node in list(model.graph):
        if node.domain or node.op_type in ("Cast", "If", "Loop", "Scan"):
            continue
        types = [None if v is None else v.dtype for v in node.inputs]
        if has_kernel(node, types):
            continue
        wide = _find_types(model, node, types, has_kernel)
        if wide is None:
            helpless.append(node)
        else:
            _surround(model.graph, node, wide)
    return helpless


def compute_halves_in_float(model: ir.Model) -> int:
    """Put casts around the nodes of float16, as onnxruntime does on the CPU; return their number.

    It leaves a Cast to float16 out together with its own back: of two values that are equal once
    they are rounded, one is not, and their difference is not zero. Casts that are written are
    computed.
    """
    surrounded = 0
    for node in list(model.graph):
        halves = [v for v in node.inputs if v is not None and v.dtype == _D.FLOAT16]
        if not halves or node.domain or node.op_type in _AS_THEY_ARE:
            continue
        # NOTE: onnxruntime 1.19 makes one of two casts that start with integers, so none is
        # written; a Max of one stands between such casts.
        if any(map(_is_of_integers, halves)) or (node.op_type == "Max" and len(node.inputs) == 1):
            continue
        types = [None if v is None else v.dtype for v in node.inputs]
        _surround(model.graph, node, [_D.FLOAT if t == _D.FLOAT16 else t for t in types])
        surrounded += 1
    return surrounded


def fit_to_standard(model: ir.Model) -> list[ir.Node]:
    """Put casts around the nodes of types that ONNX does not know; return those beyond help."""
    version = model.graph.opset_imports[""]

    def is_known(node: ir.Node, types: Sequence[ir.DataType | None]) -> bool:
        if not onnx.defs.has(node.op_type, version):
            return True
        formals = onnx.defs.get_schema(node.op_type, version).inputs
        given = [
            (_formal(formals, i)[1], f"tensor({t.name.lower()})")
            for i, (t, value) in enumerate(zip(types, node.inputs, strict=True))
            if t is not None and value is not None and isinstance(value.type, ir.TensorType)
        ]
        return all(text in allowed for allowed, text in given)

    return fit_to_provider(model, is_known)


def _is_of_integers(value: ir.Value) -> bool:
    cast = value.producer()
    if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None:
        return False
    before = cast.inputs[0].dtype
    return before is not None and before.is_integer() and not holds(_D.FLOAT16, before)


def _find_types(
    model: ir.Model,
    node: ir.Node,
    types: Sequence[ir.DataType | None],
    has_kernel: HasKernel,
) -> list[ir.DataType | None] | None:
    """Input types that have a kernel: one type variable of the operator is widened."""
    version = model.graph.opset_imports[""]
    if not onnx.defs.has(node.op_type, version):
        return None
    schema = onnx.defs.get_schema(node.op_type, version)
    variables = [_formal(schema.inputs, i) for i in range(len(types))]
    for variable in dict.fromkeys(v for v, allowed in variables if len(allowed) > 1):
        narrow = next(t for t, (v, _) in zip(types, variables, strict=True) if v == variable)
        for wider in _WIDER.get(narrow, ()) if narrow is not None else ():
            wide = [
                wider if v == variable and t is not None else t
                for t, (v, _) in zip(types, variables, strict=True)
            ]
            if has_kernel(node, wide):
                return wide
    return None


def _formal(formals: Sequence[Any], index: int) -> tuple[str, frozenset[str]]:
    """The type variable of an actual input or output, and what it may stand for."""
    formal = formals[min(index, len(formals) - 1)]
    return formal.type_str, frozenset(formal.types)


def _surround(graph: ir.Graph, node: ir.Node, wide: Sequence[ir.DataType | None]) -> None:
    schema = onnx.defs.get_schema(node.op_type, graph.opset_imports[""])
    changed: dict[str, ir.DataType] = {}
    for i, (value, dtype) in enumerate(zip(tuple(node.inputs), wide, strict=True)):
        if value is None or dtype is None or value.dtype == dtype:
            continue
        changed[_formal(schema.inputs, i)[0]] = dtype
        cast = _cast(node, value, dtype)
        graph.insert_before(node, cast)
        node.replace_input_with(i, cast.outputs[0])
    for i, output in enumerate(tuple(node.outputs)):
        widened = changed.get(_formal(schema.outputs, i)[0])
        if widened is None or output.dtype is None:
            continue
        _narrow_output(graph, node, output, widened)


def _narrow_output(graph: ir.Graph, node: ir.Node, output: ir.Value, dtype: ir.DataType) -> None:
    """Cast a result back: the value everybody knows becomes that of the cast."""
    cast = _cast(node, output, output.dtype or dtype)
    result = cast.outputs[0]
    graph.insert_after(node, cast)
    take_place(output, result)
    cast.replace_input_with(0, output)
    output.type = ir.TensorType(dtype)


def _cast(node: ir.Node, value: ir.Value, dtype: ir.DataType) -> ir.Node:
    cast = ir.node(
        "Cast", [value], attributes={"to": dtype}, metadata_props=dict(node.metadata_props)
    )
    cast.outputs[0].type = ir.TensorType(dtype)
    cast.outputs[0].shape = value.shape
    return cast
