"""A model of opset 18 as one of an older opset, 13 or more.

Converters and rules write what opset 18 defines. Here each node of an operator that is younger, or
that took other inputs then, becomes nodes that say the same in the older opset.

NOTE: onnx's own version converter has no adapter for most operators (Mul, Pad, Split, Relu ...),
and takes models below 2 GB only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx.defs
import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass, RemoveUnusedNodesPass

from dort_rewriter.errors import ExportError
from dort_rewriter.graph.schemas import ir_version_of
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Replacer
from dort_rewriter.optimize.view import GraphView

_attribute = GraphView.attribute

_WRITTEN = 18
"""The opset of the models that are lowered."""

_INT64, _UINT64 = ir.DataType.INT64, ir.DataType.UINT64

Inputs = Sequence[Any]
Lower = Callable[[Writer, ir.Node, Inputs], Any]
"""Writes other nodes for a node; takes its inputs, and returns its result or results."""


class _NotLowered(Exception):
    """Raised for a node that has no counterpart; the text says why."""


def lower_opset(model: ir.Model, opset: int) -> None:
    """Change a model of opset 18 in place into one of an older opset, if it is to be older.

    Raises :class:`ExportError` for a node that cannot be said in it.
    """
    if opset >= _WRITTEN:
        return
    graphs = [model.graph, *(f.graph for f in model.functions.values())]
    replacer = Replacer(opset)
    for graph in graphs:
        for node in list(graph.all_nodes()):
            if not node.domain and _changed(node.op_type, opset):
                _lower_node(node, opset, replacer)
    for function in model.functions.values():
        function.opset_imports[""] = opset
    for graph in graphs:
        for inner in (graph, *graph.subgraphs()):
            inner.opset_imports[""] = opset
    model.ir_version = ir_version_of(opset)
    RemoveUnusedNodesPass()(model)
    if any(n.op_type == "Loop" for n in model.graph.all_nodes()):
        NameFixPass()(model)  # onnx_ir counts from zero in each body


def _changed(op_type: str, opset: int) -> bool:
    """Whether an operator is another at the older opset, or is not there."""
    if not onnx.defs.has(op_type, _WRITTEN):
        return False
    since = onnx.defs.get_schema(op_type, _WRITTEN).since_version
    return int(since) > opset


def _lower_node(node: ir.Node, opset: int, replacer: Replacer) -> None:
    try:
        if _adjust(node, opset):
            return
        lower = _reduce if node.op_type in _REDUCTIONS else _LOWERED.get(node.op_type)
        if lower is None:
            raise _NotLowered("it is younger, or has other inputs there")
        if not isinstance(node.graph, ir.Graph):
            raise _NotLowered("it stands in a function")
        replacer.replace(node, lambda op: lower(op, node, list(node.inputs)))
    except _NotLowered as reason:
        place = node.metadata_props.get("source", "")
        raise ExportError(
            f"{node.op_type} cannot be written in opset {opset}: {reason}. Choose opset "
            f"{_WRITTEN} or more.{f' {place}' if place else ''}"
        ) from None


def _adjust(node: ir.Node, opset: int) -> bool:
    """Whether a node says the same in the older opset, without what it need not say."""
    if not onnx.defs.has(node.op_type, opset):
        return False
    for name, default in _DEFAULTS.get(node.op_type, {}).items():
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value == default:
            del node.attributes[name]
    schema = onnx.defs.get_schema(node.op_type, opset)
    least, most = schema.min_input, schema.max_input
    is_known = set(node.attributes) <= set(schema.attributes)
    return is_known and least <= _given(node) <= most


def _given(node: ir.Node) -> int:
    """How many inputs a node has, those left out in the end not counted."""
    return max((i + 1 for i, v in enumerate(node.inputs) if v is not None), default=0)


_DEFAULTS: dict[str, dict[str, Any]] = {
    "BatchNormalization": {"training_mode": 0},
    "GRU": {"layout": 0},
    "LSTM": {"layout": 0},
    "LpPool": {"ceil_mode": 0},
    "RNN": {"layout": 0},
    "Reshape": {"allowzero": 0},
    "Resize": {"antialias": 0, "keep_aspect_ratio_policy": "stretch"},
    "ScatterElements": {"reduction": "none"},
    "ScatterND": {"reduction": "none"},
}
"""Attributes that older opsets do not know, and the value that stands for their absence."""
_DEFAULTS |= {
    f"Reduce{name}": {"noop_with_empty_axes": 0}
    for name in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
}


def _integers(value: ir.Value | None, what: str) -> list[int]:
    """The numbers of a constant."""
    if value is None or value.const_value is None or value.is_graph_input():
        raise _NotLowered(f"{what} is computed at run time")
    return [int(i) for i in value.const_value.numpy().ravel()]


def _rank(value: ir.Value) -> int:
    if value.shape is None:
        raise _NotLowered("its rank is unknown")
    return len(value.shape)


def _size(op: Writer, value: ir.Value, axis: int) -> Any:
    """A size: a number where it is known, else a result of rank 1."""
    dim = None if value.shape is None else value.shape[axis]
    if isinstance(dim, int):
        return dim
    axis %= _rank(value)
    return op.Slice(op.Shape(value), [axis], [axis + 1], [0])


def _scalar(op: Writer, size: Any) -> Any:
    return size if isinstance(size, int) else op.Squeeze(size, [0])


# -- inputs that were attributes ---------------------------------------------------------------

_REDUCTIONS = frozenset(name for name in _DEFAULTS if name.startswith("Reduce"))


def _reduce(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    axes = None if len(inputs) < 2 or inputs[1] is None else _integers(inputs[1], "axes")
    if not axes and _attribute(node, "noop_with_empty_axes", 0):
        return inputs[0]
    keepdims = _attribute(node, "keepdims", 1)
    return op.call(node.op_type, inputs[0], axes=axes or None, keepdims=keepdims)


def _split(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    x, axis, count = inputs[0], _attribute(node, "axis", 0), len(node.outputs)
    size = None if x.shape is None else x.shape[axis]
    sizes: Any = inputs[1] if len(inputs) > 1 else None
    if sizes is None:
        if not isinstance(size, int):
            raise _NotLowered("the size of the parts is unknown")
        part = -(-size // count)
        sizes = op.constant([max(min(part, size - i * part), 0) for i in range(count)])
    return op.Split(x, sizes, axis=axis, outputs=count)


def _pad(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    x, pads, value, axes = (*inputs, None, None)[:4]
    rank = _rank(x)
    where = [a % rank for a in _integers(axes, "axes")]
    known = pads.const_value
    numbers = None if known is None else [int(i) for i in known.numpy().ravel()]

    def part(place: int) -> Any:
        if numbers is not None:
            return numbers[place]
        return op.Slice(pads, [place], [place + 1], [0])

    whole = [
        part(where.index(axis) + offset) if axis in where else 0
        for offset in (0, len(where))
        for axis in range(rank)
    ]
    mode = _attribute(node, "mode", "constant")
    return op.Pad(x, op.vector(whole), value, mode=mode)


def _shape(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    start, end = _attribute(node, "start", 0), _attribute(node, "end", 2**31)
    return op.Slice(op.Shape(inputs[0]), [start], [end], [0])


def _reshape(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    """A zero in the target is a size, where older ones take the input's: what is reshaped is
    filled up to ones in the place of zeros, and cut to the sizes."""
    x, target = inputs
    if target.const_value is not None and 0 not in target.const_value.numpy():
        return op.Reshape(x, target)
    filling = ir.tensor(np.zeros(1, x.dtype.numpy()), dtype=x.dtype)
    if target.const_value is not None:
        return op.ConstantOfShape(target, value=filling)
    positive = op.Where(op.Equal(target, 0), 1, target)
    flat = op.Reshape(x, [-1])
    missing = op.Sub(op.ReduceProd(positive, axes=[0]), op.Shape(flat))
    full = op.Concat(flat, op.ConstantOfShape(missing, value=filling), axis=0)
    sizes = list(range(_rank(node.outputs[0])))
    return op.Slice(op.Reshape(full, positive), [0] * len(sizes), target, sizes)


# -- operators that are younger ----------------------------------------------------------------


def _trilu(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    x, k = inputs[0], inputs[1] if len(inputs) > 1 and inputs[1] is not None else 0
    rows, columns = (op.Range(0, _scalar(op, _size(op, x, axis)), 1) for axis in (-2, -1))
    gap = op.Sub(columns, op.Unsqueeze(rows, [1]))
    outside = op.Less(gap, k) if _attribute(node, "upper", 1) else op.Greater(gap, k)
    return op.Where(outside, op.constant(0, x.dtype), x)


_HALF = 32


def _bitwise(name: str) -> Lower:
    def lower(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
        """Bit by bit, each a truth value: the powers of two that are left are added.

        NOTE: in two halves: onnxruntime adds int64 in float64, which has 53 bits.
        """
        wide = [op.cast(op.cast(x, _INT64), _UINT64) for x in inputs]
        low, high = (_half(op, name, wide, place) for place in (0, _HALF))
        return op.cast(op.Add(op.Mul(high, 1 << _HALF), low), inputs[0].dtype)

    return lower


def _half(op: Writer, name: str, numbers: Sequence[ir.Value], place: int) -> Any:
    """The bits from a place on, combined; the last one of all is the sign."""
    places = op.constant(list(range(place, place + _HALF)), _UINT64)
    bits = []
    for x in numbers:
        shifted = op.BitShift(op.Unsqueeze(x, [-1]), places, direction="RIGHT")
        bits.append(op.cast(op.Mod(shifted, op.constant(2, _UINT64)), ir.DataType.BOOL))
    powers = [1 << i for i in range(_HALF)]
    if place:
        powers[-1] = -powers[-1]
    chosen = op.Where(op.call(name, *bits), op.constant(powers, _INT64), 0)
    return op.ReduceSum(chosen, [-1], keepdims=0)


def _bitwise_not(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    wide = op.cast(inputs[0], _INT64)
    return op.cast(op.Sub(op.constant(-1, _INT64), wide), inputs[0].dtype)


def _scatter_elements(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    """One slice of the indices after the other: none meets an element twice."""
    data, indices, updates = inputs
    axis = _attribute(node, "axis", 0) % _rank(data)

    def step(inner: Writer, held: Any, turn: Any) -> Any:
        where, new = (inner.Gather(v, turn, axis=axis) for v in (indices, updates))
        old = inner.GatherElements(held, where, axis=axis)
        written = _combine(inner, node, old, new)
        return inner.ScatterElements(held, where, written, axis=axis)

    return _repeat(op, data, _scalar(op, _size(op, indices, axis)), step)


def _scatter_nd(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    """One index after the other."""
    data, indices, updates = inputs
    depth = None if indices.shape is None else indices.shape[-1]
    if not isinstance(depth, int):
        raise _NotLowered("the length of an index is unknown")
    flat = op.Reshape(indices, [-1, depth])
    rest = [_size(op, data, axis) for axis in range(depth, _rank(data))]
    rows = op.Reshape(updates, op.vector([-1, *rest]))

    def step(inner: Writer, held: Any, turn: Any) -> Any:
        where, new = inner.Gather(flat, turn, axis=0), inner.Gather(rows, turn, axis=0)
        written = _combine(inner, node, inner.GatherND(held, where), new)
        return inner.ScatterND(held, where, written)

    count = op.Squeeze(op.Slice(op.Shape(flat), [0], [1], [0]), [0])
    return _repeat(op, data, count, step)


def _combine(op: Writer, node: ir.Node, old: ir.Value, new: ir.Value) -> Any:
    name = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}[_attribute(node, "reduction")]
    dtype = new.dtype
    if dtype is None:
        raise _NotLowered("its type is unknown")
    return op.cast(op.call(name, *(op.cast(v, _summed(dtype)) for v in (old, new))), dtype)


def _summed(dtype: ir.DataType) -> ir.DataType:
    """A type in which older opsets add."""
    return ir.DataType.INT64 if dtype.is_integer() and dtype.bitwidth < 32 else dtype


def _repeat(op: Writer, start: Any, count: Any, step: Callable[..., Any]) -> Any:
    """A Loop over whole numbers below a count, which hands on one value."""
    body = ir.Graph([], [], nodes=[], opset_imports={"": op.opset}, name="body")
    inner = Writer(body, op.opset)
    turn, goes_on, held = (Value(inner, name=f"{n}_{start.name}") for n in ("turn", "on", "held"))
    turn.type, turn.shape = ir.TensorType(_INT64), ir.Shape([])
    goes_on.type, goes_on.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([])
    held.type, held.shape = start.type, start.shape
    body.inputs.extend((turn, goes_on, held))
    written = step(inner, held, inner.Reshape(turn, [1]))
    written.type, written.shape = start.type, start.shape
    body.outputs.extend((inner.copy(goes_on), written))
    body.outputs[0].type, body.outputs[0].shape = goes_on.type, goes_on.shape
    trips = op.constant(count, _INT64) if isinstance(count, int) else count
    return op.call("Loop", trips, op.constant(True), start, outputs=1, body=body)


def _layer_normalization(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    x, scale, *rest = inputs
    axes = list(range(_attribute(node, "axis", -1) % _rank(x), _rank(x)))
    stash = ir.DataType(_attribute(node, "stash_type", ir.DataType.FLOAT))
    wide = op.cast(x, stash)
    mean = op.ReduceMean(wide, axes=axes)
    centered = op.Sub(wide, mean)
    variance = op.ReduceMean(op.Mul(centered, centered), axes=axes)
    epsilon = op.constant(_attribute(node, "epsilon", 1e-5), stash)
    deviation = op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))
    y = op.Mul(op.cast(op.Mul(centered, deviation), x.dtype), scale)
    if rest and rest[0] is not None:
        y = op.Add(y, rest[0])
    return y, mean, deviation


def _bernoulli(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    (x,) = inputs
    drawn = op.RandomUniformLike(x, seed=_attribute(node, "seed"))
    to = ir.DataType(_attribute(node, "dtype", x.dtype))
    return op.cast(op.Less(drawn, x), to)


def _fourier(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
    """The product with the matrix of the transform."""
    x = inputs[0]
    axis = _attribute(node, "axis", 1) % _rank(x)
    size = None if x.shape is None else x.shape[axis]
    if not isinstance(size, int) or (len(inputs) > 1 and inputs[1] is not None):
        raise _NotLowered("of a size that is known when it runs")
    inverse = _attribute(node, "inverse", 0)
    count = size // 2 + 1 if _attribute(node, "onesided", 0) else size
    angles = 2 * np.pi * np.outer(np.arange(size), np.arange(count)) / max(size, 1)
    scale = 1 / size if inverse else 1.0
    real = ir.tensor((np.cos(angles) * scale).astype(x.dtype.numpy()))
    imaginary = ir.tensor(
        (np.sin(angles) * (scale if inverse else -scale)).astype(x.dtype.numpy())
    )
    order = [i for i in range(_rank(x) - 1) if i != axis]
    turned = [*order, axis]  # the axis is last
    back = [turned.index(i) for i in range(len(turned))]
    is_complex = x.shape is not None and x.shape[-1] == 2

    def part(index: int) -> Any:
        return op.Transpose(op.Gather(x, op.constant(index, _INT64), axis=-1), perm=turned)

    a = part(0)
    results = [op.MatMul(a, real), op.MatMul(a, imaginary)]
    if is_complex:
        b = part(1)
        results = [
            op.Sub(results[0], op.MatMul(b, imaginary)),
            op.Add(results[1], op.MatMul(b, real)),
        ]
    pair = [op.Unsqueeze(op.Transpose(r, perm=back), [-1]) for r in results]
    return op.Concat(*pair, axis=-1)


def _window(*weights: float) -> Lower:
    def lower(op: Writer, node: ir.Node, inputs: Inputs) -> Any:
        """A sum of cosines, in float32."""
        size = op.Squeeze(op.Reshape(inputs[0], [-1]), [0])
        period = size if _attribute(node, "periodic", 1) else op.Sub(size, 1)
        steps = op.cast(op.Range(0, op.cast(size, _INT64), 1), ir.DataType.FLOAT)
        turn = op.Div(op.Mul(steps, 2 * np.pi), op.cast(period, ir.DataType.FLOAT))
        total = op.constant(weights[0], ir.DataType.FLOAT)
        for i, weight in enumerate(weights[1:], 1):
            total = op.Add(total, op.Mul(op.Cos(op.Mul(turn, float(i))), weight))
        to = _attribute(node, "output_datatype", ir.DataType.FLOAT)
        return op.cast(total, ir.DataType(to))

    return lower


_LOWERED: dict[str, Lower] = {
    "Bernoulli": _bernoulli,
    "BitwiseAnd": _bitwise("And"),
    "BitwiseNot": _bitwise_not,
    "BitwiseOr": _bitwise("Or"),
    "BitwiseXor": _bitwise("Xor"),
    "BlackmanWindow": _window(0.42, -0.5, 0.08),
    "CastLike": lambda op, node, xs: op.cast(xs[0], xs[1].dtype),
    "DFT": _fourier,
    "HammingWindow": _window(25 / 46, -21 / 46),
    "HannWindow": _window(0.5, -0.5),
    "HardSwish": lambda op, node, xs: op.Mul(xs[0], op.HardSigmoid(xs[0], alpha=1 / 6, beta=0.5)),
    "LayerNormalization": _layer_normalization,
    "Mish": lambda op, node, xs: op.Mul(xs[0], op.Tanh(op.Softplus(xs[0]))),
    "Pad": _pad,
    "Reshape": _reshape,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Split": _split,
    "Trilu": _trilu,
}
