"""Shapes of recorded nodes, for the operators converters emit between two annotated results.

A rule returns a tuple of sizes (numbers, symbols, or an unknown symbol), or None when even the
rank is unknown. Two symbols are the same size when they have the same name.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

Dim = int | ir.SymbolicDim
Dims = tuple[Dim, ...]
Inputs = Sequence[ir.Value | None]
Attributes = Mapping[str, Any]

UNKNOWN = ir.SymbolicDim(None)
_COUNTED = re.compile(r"\bz?uf?\d")

_SAME_AS_FIRST = frozenset(
    (
        "Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Cast CastLike Ceil Celu Clip Cos "
        "Cosh CumProd CumSum Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN "
        "LayerNormalization LeakyRelu Log LogSoftmax Mish Neg Not Reciprocal Relu Round "
        "ScatterElements ScatterND Selu Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt "
        "Swish SwiGLU Tan TensorScatter Tanh ThresholdedRelu Trilu EyeLike ReverseSequence "
        "BitwiseNot"
    ).split()
)
_BROADCAST = frozenset(
    (
        "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
        "LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor"
    ).split()
)


def same(a: Dim, b: Dim) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def may_be_zero(size: Dim | str) -> bool:
    """Whether a size is zero, or one that is counted, like the rows of a nonzero, or computed,
    like what is left of a batch. A symbol of torch's is at least 2.
    """
    name = size.value if isinstance(size, ir.SymbolicDim) else size
    return _may_come_out_as_zero(name) if isinstance(name, str) else name == 0


@functools.cache
def _may_come_out_as_zero(expression: str) -> bool:
    """Whether the expression of a size may come out as zero."""
    if _COUNTED.search(expression):
        return True
    if expression.isidentifier():
        return False
    try:
        return _bounds(ast.parse(expression, mode="eval").body)[0] <= 0
    except SyntaxError:  # a name that a user gave to a dimension
        return False


def _bounds(expression: ast.AST) -> tuple[float, float]:
    """The least and the largest that a size can be where each symbol is at least 2."""
    match expression:
        case ast.Name():
            return 2, math.inf
        case ast.Constant(value=int(number)):
            return number, number
        case ast.UnaryOp(ast.USub(), operand):
            low, high = _bounds(operand)
            return -high, -low
        case ast.BinOp(left, operation, right):
            (a, b), (c, d) = _bounds(left), _bounds(right)
            match operation:
                case ast.Add():
                    return a + c, b + d
                case ast.Sub():
                    return a - d, b - c
                case ast.Mult() if a >= 0 and c >= 0:
                    return a * c, b * d
                case ast.FloorDiv() if a >= 0 and c > 0:
                    return a // d, b / c
                case ast.Pow() if a >= 1 and c == d >= 1:
                    return a**c, b**c
        case ast.Call(ast.Name("Max" | "Min" as which), [_, *_] as arguments):
            extremum = max if which == "Max" else min
            bounds = [_bounds(a) for a in arguments]
            return extremum(low for low, _ in bounds), extremum(high for _, high in bounds)
    return 0, math.inf


def broadcast(shapes: Sequence[Dims]) -> Dims:
    """The shape that several shapes broadcast to."""
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        dims = [s[axis] for s in shapes if len(s) >= -axis and s[axis] != 1]
        big = [d for d in dims if isinstance(d, int)]
        if not dims:
            result.append(1)
        elif big:
            result.append(big[0])
        else:
            result.append(dims[0] if all(same(d, dims[0]) for d in dims) else UNKNOWN)
    return tuple(result)


def _integers(value: ir.Value | None) -> list[int] | None:
    if value is None or (tensor := value.const_value) is None:
        return None
    return [int(i) for i in tensor.numpy().ravel()]


def _unknown(shape: ir.Value | None) -> Dims | None:
    """As many unknown sizes as a shape computed at run time has."""
    dims = _dims(shape)
    if dims is None or len(dims) != 1 or not isinstance(dims[0], int):
        return None
    return (UNKNOWN,) * dims[0]


def _reshape(inputs: Inputs, attributes: Attributes) -> Dims | None:
    target = _integers(inputs[1])
    if target is None:
        return _unknown(inputs[1])
    source = _dims(inputs[0])
    dims: list[Dim] = list(target)
    for i, d in enumerate(target):
        if d == 0 and not attributes.get("allowzero"):
            dims[i] = source[i] if source is not None and i < len(source) else UNKNOWN
    if -1 in target:
        at = target.index(-1)
        dims[at] = missing_size(source, [d for i, d in enumerate(dims) if i != at])
    return tuple(dims)


def missing_size(source: Dims | None, others: Sequence[Dim]) -> Dim:
    """The size that a -1 stands for, when numbers alone tell it."""
    if source is None:
        return UNKNOWN
    left = list(source)
    rest: list[int] = []
    for d in others:
        found = next(
            (i for i, s in enumerate(left) if not isinstance(d, int) and same(s, d)), None
        )
        if found is not None:
            del left[found]
        elif isinstance(d, int):
            rest.append(d)
        else:
            return UNKNOWN
    symbols = [d for d in left if not isinstance(d, int)]
    total, divisor = math.prod(d for d in left if isinstance(d, int)), math.prod(rest)
    if divisor == 0 or total % divisor:
        return UNKNOWN
    if not symbols:
        return total // divisor
    return symbols[0] if len(symbols) == 1 and total == divisor else UNKNOWN


def _dims(value: ir.Value | None) -> Dims | None:
    return None if value is None or value.shape is None else tuple(value.shape)


def _matmul(a: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    if (b := _dims(inputs[1])) is None or len(a) < 2 or len(b) < 2:
        return None
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def _gemm(a: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    if (b := _dims(inputs[1])) is None:
        return None
    return (a[1 if attributes.get("transA") else 0], b[0 if attributes.get("transB") else 1])


def _transpose(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    perm = attributes.get("perm") or list(range(len(dims)))[::-1]
    return tuple(dims[i] for i in perm)


def _concat(inputs: Inputs, attributes: Attributes) -> Dims | None:
    shapes = [_dims(v) for v in inputs]
    known = [s for s in shapes if s is not None]
    if not known:
        return None
    axis = attributes["axis"] % len(known[0])
    parts = [s[axis] for s in known]
    sizes = [p for p in parts if isinstance(p, int)]
    total: Dim = sum(sizes) if len(sizes) == len(shapes) else UNKNOWN
    return (*known[0][:axis], total, *known[0][axis + 1 :])


def _unsqueeze(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    if (axes := _integers(inputs[1])) is None:
        return None
    rank = len(dims) + len(axes)
    new = {a % rank for a in axes}
    rest = iter(dims)
    return tuple(1 if i in new else next(rest) for i in range(rank))


def _squeeze(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    if len(inputs) < 2 or inputs[1] is None:
        return tuple(d for d in dims if d != 1) if all(isinstance(d, int) for d in dims) else None
    if (axes := _integers(inputs[1])) is None:
        return None
    gone = {a % len(dims) for a in axes}
    return tuple(d for i, d in enumerate(dims) if i not in gone)


def _reduce(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    keep = attributes.get("keepdims", 1)
    axes = reduced_axes(inputs, attributes)
    if axes is None:
        return (UNKNOWN,) * len(dims) if keep else None
    return _drop(dims, axes, bool(keep))


def reduced_axes(inputs: Inputs, attributes: Attributes) -> Sequence[int] | None:
    """The axes that a reduction of a known rank is over; None for those known at run time."""
    axes: Sequence[int] | None = attributes.get("axes", [])  # an input in newer opsets
    if len(inputs) > 1 and inputs[1] is not None:
        axes = _integers(inputs[1])
    if axes or axes is None:
        return axes
    return [] if attributes.get("noop_with_empty_axes") else range(len(_dims(inputs[0]) or ()))


def _drop(dims: Dims, axes: Sequence[int], keep: bool) -> Dims:
    gone = {a % len(dims) for a in axes} if dims else set()
    if keep:
        return tuple(1 if i in gone else d for i, d in enumerate(dims))
    return tuple(d for i, d in enumerate(dims) if i not in gone)


def _arg_reduce(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    return _drop(dims, [attributes.get("axis", 0)], bool(attributes.get("keepdims", 1)))


def _shape(inputs: Inputs, attributes: Attributes) -> Dims | None:
    dims = _dims(inputs[0])
    if dims is None:
        return (UNKNOWN,)
    return (len(range(len(dims))[slice(attributes.get("start", 0), attributes.get("end"))]),)


def _gather(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    if (index := _dims(inputs[1])) is None:
        return None
    axis = attributes.get("axis", 0) % len(dims)
    return (*dims[:axis], *index, *dims[axis + 1 :])


def _expand(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    if (target := _integers(inputs[1])) is not None:
        return broadcast([dims, tuple(target)])
    unknown = _unknown(inputs[1])
    return None if unknown is None else (UNKNOWN,) * max(len(unknown), len(dims))


def _from_constant_shape(inputs: Inputs, attributes: Attributes) -> Dims | None:
    target = _integers(inputs[0])
    return _unknown(inputs[0]) if target is None else tuple(target)


def _slice(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    rank = len(dims)
    axes = _integers(inputs[3]) if len(inputs) > 3 else list(range(rank))
    if axes is None:
        return (UNKNOWN,) * rank
    result = list(dims)
    bounds = [_integers(inputs[1]), _integers(inputs[2])]
    steps = _integers(inputs[4]) if len(inputs) > 4 else [1] * len(axes)
    for i, axis in enumerate(axes):
        size = dims[axis % rank]
        if not isinstance(size, int) or None in bounds or steps is None:
            result[axis % rank] = UNKNOWN
            continue
        start, end = (bound[i] for bound in bounds if bound is not None)
        result[axis % rank] = (
            len(range(size)[slice(start, end, steps[i])]) if steps[i] > 0 else UNKNOWN
        )
    return tuple(result)


def _pad(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    axes = _integers(inputs[3]) if len(inputs) > 3 else list(range(len(dims)))
    pads = _integers(inputs[1])
    result = list(dims)
    for i, axis in enumerate(range(len(dims)) if axes is None else axes):
        size = dims[axis]
        known = pads is not None and axes is not None
        both = pads[i] + pads[i + len(pads) // 2] if known and pads is not None else None
        if both != 0:
            result[axis] = UNKNOWN if both is None or not isinstance(size, int) else size + both
    return tuple(result)


def _gather_nd(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    index = _dims(inputs[1])
    if not index or not isinstance(index[-1], int):
        return None
    return (*index[:-1], *dims[attributes.get("batch_dims", 0) + index[-1] :])


def _compress(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    if "axis" not in attributes:
        return (UNKNOWN,)
    axis = attributes["axis"] % len(dims)
    return (*dims[:axis], UNKNOWN, *dims[axis + 1 :])


def _split(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    """Of each of so many parts: they are equal, or of unknown sizes."""
    count = attributes.get("num_outputs")
    if not isinstance(count, int):
        return None
    axis = attributes.get("axis", 0) % len(dims)
    size = dims[axis]
    part = size // count if isinstance(size, int) and size % count == 0 else UNKNOWN
    return (*dims[:axis], part, *dims[axis + 1 :])


def _fourier(dims: Dims, inputs: Inputs, attributes: Attributes) -> Dims | None:
    """Of the whole axis, or of the half that says all; as pairs."""
    where = _integers(inputs[2]) if len(inputs) > 2 else [attributes.get("axis", 1)]
    if not where or (len(inputs) > 1 and inputs[1] is not None):
        return None
    axis = where[0] % len(dims)
    size = dims[axis]
    if attributes.get("onesided"):
        size = size // 2 + 1 if isinstance(size, int) else UNKNOWN
    return (*dims[:axis], size, *dims[axis + 1 : -1], 2)


_RULES: dict[str, Callable[[Inputs, Attributes], Dims | None]] = {
    "Concat": _concat,
    "ConstantOfShape": _from_constant_shape,
    "GatherElements": lambda inputs, attributes: _dims(inputs[1]),
    "Range": lambda inputs, attributes: (UNKNOWN,),
    "Reshape": _reshape,
    "Shape": _shape,
    "Size": lambda inputs, attributes: (),
}
_RULES_OF_FIRST: dict[str, Callable[[Dims, Inputs, Attributes], Dims | None]] = {
    "ArgMax": _arg_reduce,
    "ArgMin": _arg_reduce,
    "Compress": _compress,
    "DFT": _fourier,
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "NonZero": lambda dims, inputs, attributes: (len(dims), UNKNOWN),
    "Pad": _pad,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    **dict.fromkeys(
        (
            "ReduceMax ReduceMin ReduceMean ReduceSum ReduceProd ReduceSumSquare ReduceL1 "
            "ReduceL2 ReduceLogSum ReduceLogSumExp"
        ).split(),
        _reduce,
    ),
}
"""Rules that are asked where the shape of the first input, which they are given, is known."""


def infer_shape(op: str, inputs: Inputs, attributes: Attributes) -> Dims | None:
    """The shape of the first output of a node of the standard domain, of each of a Split."""
    if op in _SAME_AS_FIRST:
        return _dims(inputs[0])
    if op in _BROADCAST:
        shapes = [_dims(v) for v in inputs]
        known = [s for s in shapes if s is not None]
        return broadcast(known) if len(known) == len(shapes) else None
    if (rule := _RULES.get(op)) is not None:
        return rule(inputs, attributes)
    if (of_first := _RULES_OF_FIRST.get(op)) is None or (dims := _dims(inputs[0])) is None:
        return None
    return of_first(dims, inputs, attributes)
