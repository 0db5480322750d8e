"""What is changed in a model last, for the provider that runs it (or for the standard, in a file).

Casts around the nodes whose element types have no kernel there: narrow types are computed in a
wider one and rounded back, bfloat16 and float16 in float32, small integers and bool in int32 or
int64. float64 is not narrowed: such a node is given back.

Other nodes in the place of those that the kernels at hand compute wrongly: onnxruntime 1.19 gives
1 for the error function of NaN, NaN for the square root of infinity and 0.0 for that of -0.0, 0.0
for -0.0 rounded up or down, 0 for the Relu of a single NaN of float16, a number for the Min and
the Max of a NaN of float16 that is repeated along the last axis, NaN for the PRelu of infinity,
and the Log of the smallest normal number for those below it. Up to 1.32, Tanh and Sigmoid of
float32 are above 1 at some numbers (8.34, 17.84), Sigmoid is 0 below -18, and Where, which adds
zeros to what it chooses, makes 0.0 of -0.0: ONNX has no other one, but there is our kernel.

Products of a value with itself get a copy: onnxruntime 1.19 counts who still reads a Transpose (or
the Cast behind it) that it takes into a product, and one product that reads it twice as two: there
is no session, or one whose runs fail.

Results of kernels that nobody reads get no name, and are not computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx.defs
import onnx_ir as ir

from dort_rewriter.dtypes import holds
from dort_rewriter.graph.defects import MOVES
from dort_rewriter.graph.writer import Writer, signed_one
from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES
from dort_rewriter.optimize.patterns.base import Emitter
from dort_rewriter.optimize.patterns.kernels.programs import is_instruction, write_program
from dort_rewriter.optimize.view import take_place

__all__ = [
    "SUBSTITUTED",
    "HasKernel",
    "IsWrong",
    "compute_halves_in_float",
    "drop_unused_results",
    "fit_to_provider",
    "fit_to_standard",
    "separate_operands",
    "substitute",
]

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


IsWrong = Callable[[str, ir.DataType], bool]
"""Whether the kernel of an operator is wrong for a type."""

_MARK = "substitute"


def _erf(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Where(op.IsNaN(x), x, op.Erf(x))
    return result


def _relu(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Where(op.Less(x, 0), 0, x)
    return result


def _sqrt(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    """In float64, of which the rounded root is the root rounded once."""
    (x,) = inputs
    assert x.dtype is not None
    return op.cast(op.Sqrt(op.cast(x, ir.DataType.DOUBLE)), x.dtype)


def _log(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    """Of small numbers that of a product which is a normal number, less that of the factor."""
    (x,) = inputs
    small = op.Sub(op.Log(op.Mul(x, 2.0**60)), 60 * math.log(2))
    result: ir.Value = op.Where(op.Less(x, 2.0**-100), small, op.Log(x))
    return result


def _prelu(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    x, slope = inputs
    result: ir.Value = op.Where(op.Less(x, 0), op.Mul(x, slope), x)
    return result


def _sigmoid(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Div(1, op.Add(op.Exp(op.Neg(x)), 1))
    return result


def _tanh(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
    (x,) = inputs
    result: ir.Value = op.Clip(op.Tanh(x), -1, 1)
    return result


def _with_sign(name: str) -> Callable[[Writer, Sequence[ir.Value]], ir.Value]:
    def computed(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
        """A rounded number, which has the sign of the number, or is zero."""
        (x,) = inputs
        result: ir.Value = op.Mul(op.Abs(op.call(name, x)), signed_one(op, x))
        return result

    return computed


def _in_float(name: str) -> Callable[[Writer, Sequence[ir.Value]], ir.Value]:
    def computed(op: Writer, inputs: Sequence[ir.Value]) -> ir.Value:
        dtype = inputs[0].dtype
        assert dtype is not None
        wide = [op.cast(x, ir.DataType.FLOAT) for x in inputs]
        return op.cast(op.call(name, *wide), dtype)

    return computed


SUBSTITUTED: dict[str, Callable[[Writer, Sequence[ir.Value]], ir.Value]] = {
    "Ceil": _with_sign("Ceil"),
    "Erf": _erf,
    "Floor": _with_sign("Floor"),
    "Log": _log,
    "Max": _in_float("Max"),
    "Min": _in_float("Min"),
    "PRelu": _prelu,
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Sqrt": _sqrt,
    "Tanh": _tanh,
}

_KNOWN = frozenset({*SUBSTITUTED, "Where"})


def substitute(model: ir.Model, is_wrong: IsWrong, *, own_kernels: bool) -> int:
    """Replace the nodes with a wrong kernel, by kernels of ours if they may be used; return how
    many there were."""
    found = [n for n in model.graph.all_nodes() if _is_meant(n, is_wrong)]
    changed = 0
    for node in found:
        if own_kernels and _by_ours(node):
            model.graph.opset_imports.setdefault(OWN_DOMAIN, 1)
        elif node.op_type in SUBSTITUTED:
            _by_standard(node, model.graph.opset_imports.get("", 18))
        else:
            continue
        changed += 1
    return changed


def _is_meant(node: ir.Node, is_wrong: IsWrong) -> bool:
    if node.domain or node.op_type not in _KNOWN or node.metadata_props.get("rule") == _MARK:
        return False
    if node.op_type in ("Max", "Min") and len(node.inputs) == 1:  # a copy
        return False
    dtype = node.outputs[0].dtype
    return dtype is not None and is_wrong(node.op_type, dtype)


def _by_ours(node: ir.Node) -> bool:
    value = node.outputs[0]
    if value.dtype is None or value.shape is None or len(value.shape) > OWN_MOST_AXES:
        return False
    if not is_instruction(node):
        return False
    program = write_program([node], [value])
    ours = ir.node(
        "Elementwise",
        program.inputs,
        {"program": program.code, "results": program.results},
        domain=OWN_DOMAIN,
        metadata_props={**node.metadata_props, "rule": _MARK},
    )
    _put(node, [ours], ours.outputs[0])
    return True


def _by_standard(node: ir.Node, opset: int) -> None:
    graph, inputs = node.graph, [x for x in node.inputs if x is not None]
    assert isinstance(graph, ir.Graph)
    emitter = Emitter(graph, opset)
    emitter.begin({**node.metadata_props, "rule": _MARK})
    result = SUBSTITUTED[node.op_type](emitter, inputs)
    _put(node, emitter.nodes, result)


def _put(node: ir.Node, nodes: list[ir.Node], result: ir.Value) -> None:
    graph = node.graph
    assert graph is not None
    graph.insert_before(node, nodes)
    take_place(node.outputs[0], result)
    graph.remove(node, safe=True)


_PRODUCTS = {("", "MatMul"), ("com.microsoft", "FusedMatMul")}
_TAKEN_IN = frozenset({"Cast", "Div", "Mul", "Transpose"})
"""Operators that onnxruntime moves into a product, or past one that it does."""


def separate_operands(model: ir.Model) -> int:
    """Copy one factor of each product of a value with itself; return how many there were.

    NOTE: a Max of one value is the copy that no optimizer of onnxruntime takes away.
    """
    nodes = list(model.graph.all_nodes())
    if all(n.op_type != "Transpose" for n in nodes):
        return 0
    found = [n for n in nodes if (n.domain, n.op_type) in _PRODUCTS and _is_square(n)]
    for node in found:
        graph, second = node.graph, node.inputs[1]
        assert graph is not None
        assert second is not None
        copy = ir.node("Max", [second], metadata_props=dict(node.metadata_props))
        copy.outputs[0].type, copy.outputs[0].shape = second.type, second.shape
        graph.insert_before(node, copy)
        node.replace_input_with(1, copy.outputs[0])
    return len(found)


def _is_square(node: ir.Node) -> bool:
    first, second = node.inputs[:2]
    return bool(_lineage(first) & _lineage(second))


def _lineage(value: ir.Value | None) -> set[ir.Value]:
    """A factor, and what it is a transposed, scaled or cast form of."""
    found: set[ir.Value] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if value is None or value in found or value.const_value is not None:
            continue
        found.add(value)
        producer = value.producer()
        if producer is not None and not producer.domain and producer.op_type in _TAKEN_IN:
            waiting.extend(producer.inputs)
    return found


_OPTIONAL = frozenset({"convolution_backward"})
"""Operators of ours all of whose results are optional."""


def drop_unused_results(model: ir.Model) -> int:
    """Change a model in place, and return how many results are left out.

    NOTE: done last: rules expect that each result has a name.
    """
    done = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain != OWN_DOMAIN or node.op_type not in _OPTIONAL:
            continue
        for result in node.outputs:
            if result.name and not result.uses() and not result.is_graph_output():
                result.name = ""
                done += 1
    return done
