"""What is changed in a model last, for the provider that runs it (or for the standard, in a file).

Casts around the nodes whose element types have no kernel there: narrow types are computed in a
wider one and rounded back, bfloat16 and float16 in float32, small integers and bool in int32 or
int64. float64 is not narrowed: such a node is given back.

Other nodes in the place of those that the kernels at hand compute wrongly.

onnxruntime 1.19 gives 1 for the error function of NaN, NaN for the square root of infinity and 0.0
for that of -0.0, 0.0 for -0.0 rounded up or down, 0 for the Relu of a single NaN of float16, a
number for the Min and the Max of a NaN of float16 that is repeated along the last axis, NaN for
the PRelu of infinity, and the Log of the smallest normal number for those below it. Up to 1.32,
Tanh and Sigmoid of float32 are above 1 at some numbers (8.34, 17.84), Sigmoid is 0 below -18, and
Where, which adds zeros to what it chooses, makes 0.0 of -0.0: ONNX has no other one, but there is
our kernel.

OpenVINO's kernels for processors take a number for a NaN in Relu, Clip, Max and Min, infinity in
Exp, a NaN for larger than any number, 0.0 for the negation of 0.0 and for the Elu of -0.0, and
leave a row of Softmax numbers beside a NaN; a layer norm with its moments is refused by some
releases. Seen with ``onnxruntime-ep-openvino`` 1.8.1 and ``onnxruntime-openvino`` 1.24.1.

Products of a value with itself get a copy: onnxruntime 1.19 counts who still reads a Transpose (or
the Cast behind it) that it takes into a product, and one product that reads it twice as two: there
is no session, or one whose runs fail.

Unused results of kernels get no name, and are not computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx.defs
import onnx_ir as ir

from dort_rewriter.dtypes import holds
from dort_rewriter.graph.defects import MOVES
from dort_rewriter.graph.schemas import in_standard
from dort_rewriter.graph.writer import signed_one
from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES
from dort_rewriter.optimize.patterns.base import Emitter, Replacer
from dort_rewriter.optimize.patterns.kernels.programs import is_instruction, write_program
from dort_rewriter.optimize.view import take_place

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
        tensors = [
            t if value is not None and isinstance(value.type, ir.TensorType) else None
            for t, value in zip(types, node.inputs, strict=True)
        ]
        is_there = onnx.defs.has(node.op_type, version)
        return not is_there or in_standard(node.op_type, "", version, tensors)

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

Write = Callable[..., Any]
"""Writes what stands for a node, given the node and its inputs; None where it stays as it is."""


def _log(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value:
    """Of small numbers that of a product which is a normal number, less that of the factor."""
    small = op.Sub(op.Log(op.Mul(x, 2.0**60)), 60 * math.log(2))
    return op.Where(op.Less(x, 2.0**-100), small, op.Log(x))


def _sqrt(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value:
    """In float64, of which the rounded root is the root rounded once."""
    assert x.dtype is not None
    return op.cast(op.Sqrt(op.cast(x, ir.DataType.DOUBLE)), x.dtype)


def _with_sign(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value:
    """A rounded number, which has the sign of the number, or is zero."""
    return op.Mul(op.Abs(op.again(node, x)), signed_one(op, x))


def _in_float(op: Emitter, node: ir.Node, *inputs: ir.Value) -> ir.Value:
    dtype = inputs[0].dtype
    assert dtype is not None
    return op.cast(op.again(node, *(op.cast(x, ir.DataType.FLOAT) for x in inputs)), dtype)


def _relu(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value:
    return op.Where(op.Less(x, 0), 0, x)


def _exp(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value:
    """Of float64: zero below the least number."""
    return op.Where(op.Less(x, -745.2), 0, op.Exp(x))


def _softmax(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value:
    axis = [node.attributes.get_int("axis", -1)]
    parts = _exp(op, node, op.Sub(x, op.ReduceMax(x, axis, keepdims=1)))
    return op.Div(parts, op.ReduceSum(parts, axis, keepdims=1))


SUBSTITUTED: Mapping[str, Write] = {
    "Ceil": _with_sign,
    "Erf": lambda op, node, x: op.Where(op.IsNaN(x), x, op.Erf(x)),
    "Exp": _exp,
    "Floor": _with_sign,
    "Log": _log,
    "Max": _in_float,
    "Min": _in_float,
    "PRelu": lambda op, node, x, slope: op.Where(op.Less(x, 0), op.Mul(x, slope), x),
    "Relu": _relu,
    "Sigmoid": lambda op, node, x: op.Div(1, op.Add(op.Exp(op.Neg(x)), 1)),
    "Softmax": _softmax,
    "Sqrt": _sqrt,
    "Tanh": lambda op, node, x: op.Clip(op.Tanh(x), -1, 1),
}
"""What stands for the operators that onnxruntime computes wrongly."""


def _itself(op: Emitter, node: ir.Node, x: ir.Value, *_: ir.Value) -> ir.Value:
    """A NaN stays what it is."""
    return op.Where(op.IsNaN(x), x, op.again(node, *node.inputs))


def _extreme(op: Emitter, node: ir.Node, *inputs: ir.Value) -> ir.Value:
    def of_two(a: ir.Value, b: ir.Value) -> ir.Value:
        first = op.Less(a, b) if node.op_type == "Min" else op.Less(b, a)
        return op.Where(op.Or(first, op.IsNaN(a)), a, b)

    return functools.reduce(of_two, inputs)


def _to_bool(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value | None:
    """A NaN is true."""
    is_meant = node.attributes["to"].as_int() == ir.DataType.BOOL
    return op.Not(op.Equal(x, 0)) if is_meant else None


def _of_a_row(op: Emitter, node: ir.Node, x: ir.Value) -> ir.Value:
    """One NaN makes the row it is in NaN."""
    axis = node.attributes.get_int("axis", -1)
    computed = op.again(node, x)
    total = op.ReduceSum(computed, [axis], keepdims=1)
    return op.Where(op.IsNaN(total), math.nan, computed)


def _norm(
    op: Emitter, node: ir.Node, x: ir.Value, scale: ir.Value, *bias: ir.Value
) -> tuple[ir.Value, ...] | None:
    """A layer norm with its moments, which some releases refuse."""
    is_read = any(v.uses() or v.is_graph_output() for v in node.outputs[1:])
    if not is_read or x.shape is None:
        return None
    axes = list(range(node.attributes.get_int("axis", -1) % len(x.shape), len(x.shape)))
    mean = op.ReduceMean(x, axes, keepdims=1)
    apart = op.Sub(x, mean)
    epsilon = node.attributes.get_float("epsilon", 1e-5)
    spread = op.Add(op.ReduceMean(op.Mul(apart, apart), axes, keepdims=1), epsilon)
    inverse = op.Reciprocal(op.Sqrt(spread))
    result = op.Mul(op.Mul(apart, inverse), scale)
    for added in bias:
        result = op.Add(result, added)
    return result, mean, inverse


_SMALLEST = 2.0**-126
"""The smallest normal number of float32."""


def _quotient(op: Emitter, node: ir.Node, a: ir.Value, b: ir.Value) -> ir.Value | None:
    """A quotient that is not a product with the reciprocal of a denormal number: infinite."""
    if _is_zero_or_normal(b):
        return None
    factor = op.Where(op.Less(op.Abs(b), _SMALLEST), 2.0**64, 1)
    return op.Div(op.Mul(a, factor), op.Mul(b, factor))


_WHOLE = (ir.DataType.INT32, ir.DataType.INT64, ir.DataType.BOOL)
_ABOVE_ZERO = frozenset({"Abs", "Exp", "ReduceSumSquare", "Sigmoid", "Softplus", "Sqrt"})
"""Operators whose results are not below zero."""


def _is_zero_or_normal(value: ir.Value | None) -> bool:
    """Whether a float32 number is known not to be a denormal one."""
    if value is None:
        return False
    if value.const_value is not None:
        known = abs(value.const_value.numpy())
        return not bool(((known > 0) & (known < _SMALLEST)).any())
    producer = value.producer()
    if producer is None or producer.domain:
        return False
    if producer.op_type in ("Expand", "Reshape", "Squeeze", "Unsqueeze"):
        return _is_zero_or_normal(producer.inputs[0])
    if producer.op_type == "Sqrt":
        return True
    if producer.op_type == "Cast":
        return producer.inputs[0] is not None and producer.inputs[0].dtype in _WHOLE
    if producer.op_type == "Add":
        first, second = producer.inputs
        return any(
            one is not None
            and one.const_value is not None
            and bool((one.const_value.numpy() >= _SMALLEST).all())
            and _is_above_zero(other)
            for one, other in ((first, second), (second, first))
        )
    return False


def _is_above_zero(value: ir.Value | None) -> bool:
    """Whether a number is known not to be below zero, where it is one."""
    producer = None if value is None else value.producer()
    if producer is None or producer.domain:
        return False
    if producer.op_type == "Where":  # what keeps a NaN
        condition = producer.inputs[0]
        of_nan = None if condition is None else condition.producer()
        return (
            of_nan is not None
            and of_nan.op_type == "IsNaN"
            and of_nan.inputs[0] is producer.inputs[1]
            and _is_above_zero(producer.inputs[2])
        )
    squares = producer.op_type == "Mul" and producer.inputs[0] is producer.inputs[1]
    return squares or producer.op_type in _ABOVE_ZERO


KEEPING: Mapping[str, Write] = {
    "Cast": _to_bool,
    "Clip": _itself,
    "Div": _quotient,
    "Elu": lambda op, node, x: op.Where(op.Less(x, 0), op.again(node, x), x),
    "Exp": _itself,
    "Greater": lambda op, node, a, b: op.Less(b, a),
    "GreaterOrEqual": lambda op, node, a, b: op.LessOrEqual(b, a),
    "HardSigmoid": _itself,
    "LayerNormalization": _norm,
    "LogSoftmax": _of_a_row,
    "Max": _extreme,
    "Min": _extreme,
    "Neg": lambda op, node, x: op.Mul(x, -1),
    "Relu": _relu,
    "Softmax": _of_a_row,
}
"""What OpenVINO computes as torch does, in the place of operators that let NaN go."""


def substitute(model: ir.Model, is_wrong: IsWrong, *, own_kernels: bool) -> int:
    """Replace the nodes with a wrong kernel, by kernels of ours if they may be used; return how
    many there were."""

    def choose(node: ir.Node) -> Write | None:
        dtype = node.outputs[0].dtype
        if node.op_type not in SUBSTITUTED and node.op_type != "Where":
            return None
        if dtype is None or not is_wrong(node.op_type, dtype):
            return None
        shape = node.outputs[0].shape
        if own_kernels and shape is not None and len(shape) <= OWN_MOST_AXES:
            return _by_ours if is_instruction(node) else SUBSTITUTED.get(node.op_type)
        return SUBSTITUTED.get(node.op_type)

    return _replace_nodes(model, choose, "substitute")


def _by_ours(op: Emitter, node: ir.Node, *_: ir.Value) -> ir.Value:
    program = write_program([node], node.outputs)
    return op.call(
        "Elementwise",
        *program.inputs,
        domain=OWN_DOMAIN,
        program=program.code,
        results=program.results,
    )


def keep_special_numbers(model: ir.Model) -> int:
    """Replace the nodes of float32 that OpenVINO computes otherwise than torch; return how many
    there were."""

    def choose(node: ir.Node) -> Write | None:
        first = node.inputs[0] if node.inputs else None
        is_meant = first is not None and first.dtype == ir.DataType.FLOAT
        return KEEPING.get(node.op_type) if is_meant else None

    return _replace_nodes(model, choose, "special numbers")


_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Pow", "Sub"})


def keep_ranks(model: ir.Model) -> int:
    """Give operands as many axes as that of one element has which they meet; return how many.

    OpenVINO moves a Reshape or a Transpose behind such an operator, and loses the axes that only
    the one element has: a result of another shape, or a graph that it refuses.
    """

    def choose(node: ir.Node) -> Write | None:
        if node.op_type not in _ARITHMETIC:
            return None
        shapes = [v.shape for v in node.inputs if v is not None and v.shape is not None]
        if len(shapes) < 2:
            return None
        first, second = sorted(shapes, key=len)
        is_longer = len(first) < len(second) and all(size == 1 for size in second)
        return _of_equal_rank if is_longer else None

    return _replace_nodes(model, choose, "ranks")


def _of_equal_rank(op: Emitter, node: ir.Node, *inputs: ir.Value) -> ir.Value:
    ranks = [len(x.shape or ()) for x in inputs]
    missing = [list(range(max(ranks) - rank)) for rank in ranks]
    raised = [
        op.Unsqueeze(x, axes) if axes else x for x, axes in zip(inputs, missing, strict=True)
    ]
    return op.call(node.op_type, *raised)


def _replace_nodes(model: ir.Model, choose: Callable[[ir.Node], Write | None], rule: str) -> int:
    """Replace what is chosen of the standard operators; what was written here stays."""
    replacer = Replacer(model.graph.opset_imports.get("", 18), rule=rule)
    done = 0
    for node in list(model.graph.all_nodes()):
        if node.domain or node.metadata_props.get("rule") == rule:
            continue
        if node.op_type in ("Max", "Min") and len(node.inputs) == 1:  # a copy
            continue
        if isinstance(node.graph, ir.Graph) and (write := choose(node)) is not None:
            inputs = [x for x in node.inputs if x is not None]
            done += replacer.replace(node, functools.partial(_written, write, node, inputs))
    if any(node.domain == OWN_DOMAIN for node in model.graph.all_nodes()):
        model.graph.opset_imports.setdefault(OWN_DOMAIN, 1)
    return done


def _written(write: Write, node: ir.Node, inputs: list[ir.Value], op: Emitter) -> Any:
    return write(op, node, *inputs)


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
