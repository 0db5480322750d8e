"""Nodes whose result is known before the model runs: constants, and inputs as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.writer import FOLDABLE
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView


class Identity(Rule):
    """``Identity(x) -> x``   unless the model returns its input under another name."""

    roots = ("Identity",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | None:
        (x,) = node.inputs
        if x is None:
            return None
        return Match([node.outputs[0]], lambda op: x)


class Dropout(Rule):
    """``Dropout(x) -> x``   in inference, when the mask is unused."""

    roots = ("Dropout",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x = node.inputs[0]
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if x is None or (training is not None and graph.scalar(training) is not False):
            return None
        if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
            return Refusal("the mask is read", node.name)
        return Match.of_known(node, x)


Array = np.ndarray[Any, Any]
Compute = Callable[[Sequence[Array], Mapping[str, Any]], "Array | None"]

_SMALL = 1024
"""Integers and truth values that are always worth computing: positions, masks of short texts."""
_LARGE = 1 << 20
"""Elements that a model may have more of for a node less, when the caller asks for folding."""


def _ufunc(function: Callable[..., Any]) -> Compute:
    return lambda xs, attributes: function(*xs)


def _cast(xs: Sequence[Array], attributes: Mapping[str, Any]) -> Array | None:
    dtype = ir.DataType(int(attributes["to"]))
    if xs[0].dtype.kind == "f" and not dtype.is_floating_point():
        return None  # out-of-range conversions are the runtime's to define
    return xs[0].astype(dtype.numpy())


def _cumulate(xs: Sequence[Array], attributes: Mapping[str, Any]) -> Array | None:
    if attributes.get("exclusive") or attributes.get("reverse") or xs[0].dtype.kind != "i":
        return None
    return np.cumsum(xs[0], axis=int(xs[1])).astype(xs[0].dtype)


def _gather_nd(xs: Sequence[Array], attributes: Mapping[str, Any]) -> Array | None:
    if attributes.get("batch_dims"):
        return None
    return xs[0][tuple(np.moveaxis(xs[1], -1, 0))]


_EXACT: Mapping[str, Compute] = {
    **{k: v for k, v in FOLDABLE.items() if k not in ("Div", "Size")},
    "Add": _ufunc(np.add),
    "And": _ufunc(np.logical_and),
    "Equal": _ufunc(np.equal),
    "Greater": _ufunc(np.greater),
    "GreaterOrEqual": _ufunc(np.greater_equal),
    "Less": _ufunc(np.less),
    "LessOrEqual": _ufunc(np.less_equal),
    "Mul": _ufunc(np.multiply),
    "Neg": _ufunc(np.negative),
    "Not": _ufunc(np.logical_not),
    "Or": _ufunc(np.logical_or),
    "Range": _ufunc(np.arange),
    "Sub": _ufunc(np.subtract),
    "Where": _ufunc(np.where),
    "Xor": _ufunc(np.logical_xor),
    "Cast": _cast,
    "CumSum": _cumulate,
    "Expand": lambda xs, a: np.broadcast_to(
        xs[0], np.broadcast_shapes(xs[0].shape, tuple(map(int, xs[1])))
    ),
    "GatherND": _gather_nd,
    "Transpose": lambda xs, a: np.transpose(xs[0], a.get("perm")),
}
"""Operators that give the same bits wherever they are computed.

NOTE: sums of many numbers, products of matrices and functions such as Exp do not.
"""


_OF_NUMBERS: Mapping[str, Compute] = {
    **_EXACT,
    "Div": _ufunc(np.divide),
    "Reciprocal": _ufunc(np.reciprocal),
    "Sqrt": _ufunc(np.sqrt),
}
"""Operators that are rounded once, on floating-point numbers of one element: what becomes of an
epsilon or a scale on its way to the operator that wants it."""


class ConstantFolding(Rule):
    """``Add(1, 2) -> 3``   for operators with one right answer.

    Only small integers, truth values and single numbers, unless the caller asks for more.
    """

    roots = tuple(_OF_NUMBERS)
    reads = ("Constant",)

    def __init__(self, everything: bool = False) -> None:
        self.everything = everything

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        if any(v is None or v.const_value is None for v in node.inputs) or not node.inputs:
            return None
        result = node.outputs[0]
        limit = _LARGE if self.everything else _SMALL
        dims = graph.static(result)
        known = _OF_NUMBERS if _is_number(result, dims) else _EXACT
        if node.op_type not in known:
            return None
        if not self.everything and not _is_discrete(result) and known is not _OF_NUMBERS:
            return None
        size = None if dims is None else int(np.prod(dims))
        if size is None or size > limit or any(_size(v) > limit for v in node.inputs):
            return Refusal("too large, or of an unknown size", result.name)
        arrays = [graph.constant(v) for v in node.inputs]
        given = [a for a in arrays if a is not None]
        if len(given) < len(arrays):
            return None
        attributes = {k: a.value for k, a in node.attributes.items()}
        with np.errstate(all="ignore"):  # infinities are a right answer too
            computed = known[node.op_type](given, attributes)
        if computed is None or result.dtype is None or computed.shape != dims:
            return Refusal("not defined the same everywhere", result.name)
        tensor = ir.Tensor(np.ascontiguousarray(computed).reshape(dims), dtype=result.dtype)
        return Match([result], lambda op: op.tensor(tensor))


def _is_discrete(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.numpy().kind in "biu"


def _is_number(value: ir.Value, dims: tuple[int, ...] | None) -> bool:
    """Whether a value is one number of a type that is computed in itself."""
    wide = value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    return wide and dims is not None and int(np.prod(dims)) == 1


def _size(value: ir.Value | None) -> int:
    return 0 if value is None or value.const_value is None else int(value.const_value.size)
