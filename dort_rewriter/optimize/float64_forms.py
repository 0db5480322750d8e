"""Nodes of float64 that a runtime has no kernel for, in operators for which it has one.

ONNX Runtime has no float64 kernel on the CPU for convolutions, error functions and most
trigonometric functions (1.19 also none for cosines). A file that computes in float64 gets other
nodes in their place: products for convolutions, and for functions the formulas of Cephes, or those
of exponentials, logarithms and sines, right to some units of the last place.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from dort_rewriter.errors import ExportError
from dort_rewriter.graph.writer import Writer
from dort_rewriter.optimize.patterns.base import Emitter, Replacer
from dort_rewriter.optimize.view import GraphView

_attribute = GraphView.attribute
_DOUBLE = ir.DataType.DOUBLE

HasKernel = Callable[[str, str, int, Sequence[ir.DataType | None]], bool]
"""Whether an operator of a domain and an opset runs with inputs of some types."""


def write_float64(model: ir.Model, opset: int, has_kernel: HasKernel) -> None:
    """Change the nodes of float64 without a kernel in place.

    Raises :class:`ExportError` for one that has no other form.
    """
    replacer = Replacer(opset)
    found = False
    for node in list(model.graph.all_nodes()):
        form = None if node.domain else _FORMS.get(node.op_type)
        if form is None or node.inputs[0] is None or node.inputs[0].dtype is not _DOUBLE:
            continue
        types = [None if v is None else v.dtype for v in node.inputs]
        if has_kernel(node.op_type, "", opset, types) or not isinstance(node.graph, ir.Graph):
            continue
        write = _Functions(opset, has_kernel)
        replacer.replace(node, functools.partial(form, write, node))
        found = True
    if found:
        RemoveUnusedNodesPass()(model)


# -- functions ----------------------------------------------------------------------------------


class _Functions:
    """Functions of one float64 tensor, written by operators that have kernels."""

    def __init__(self, opset: int, has_kernel: HasKernel) -> None:
        self._has_cosine = has_kernel("Cos", "", opset, [_DOUBLE])

    def cos(self, op: Writer, x: Any) -> Any:
        if self._has_cosine:
            return op.Cos(x)
        half = op.Sin(op.Mul(x, 0.5))
        return op.Sub(1.0, op.Mul(2.0, op.Mul(half, half)))

    def tan(self, op: Writer, x: Any) -> Any:
        return op.Div(op.Sin(x), self.cos(op, x))

    def sinh(self, op: Writer, x: Any) -> Any:
        a = op.Abs(x)
        grown = _expm1(op, a)
        near = op.Mul(0.5, op.Add(grown, op.Div(grown, op.Add(grown, 1.0))))
        half = op.Exp(op.Mul(a, 0.5))  # its square may be infinite where half of it is not
        far = op.Sub(op.Mul(op.Mul(0.5, half), half), op.Div(op.Div(0.5, half), half))
        return _signed(op, x, op.Where(op.Less(a, 1.0), near, far))

    def cosh(self, op: Writer, x: Any) -> Any:
        half = op.Exp(op.Mul(op.Abs(x), 0.5))
        return op.Add(op.Mul(op.Mul(0.5, half), half), op.Div(op.Div(0.5, half), half))

    def asinh(self, op: Writer, x: Any) -> Any:
        a = op.Abs(x)
        square = op.Mul(a, a)
        root = op.Add(1.0, op.Sqrt(op.Add(square, 1.0)))
        near = _log1p(op, op.Add(a, op.Div(square, root)))
        far = op.Add(op.Log(a), math.log(2))
        return _signed(op, x, op.Where(op.Less(a, _LARGE), near, far))

    def acosh(self, op: Writer, x: Any) -> Any:
        above = op.Sub(x, 1.0)
        near = _log1p(op, op.Add(above, op.Sqrt(op.Mul(above, op.Add(above, 2.0)))))
        return op.Where(op.Less(x, _LARGE), near, op.Add(op.Log(x), math.log(2)))

    def atanh(self, op: Writer, x: Any) -> Any:
        a = op.Abs(x)
        found = _log1p(op, op.Div(op.Mul(2.0, a), op.Sub(1.0, a)))
        return _signed(op, x, op.Mul(0.5, found))

    def atan(self, op: Writer, x: Any) -> Any:
        a = op.Abs(x)
        is_far, is_near = op.Greater(a, 1 + math.sqrt(2)), op.LessOrEqual(a, 0.66)
        middle = op.Div(op.Sub(a, 1.0), op.Add(a, 1.0))
        z = op.Where(is_far, op.Div(-1.0, a), op.Where(is_near, a, middle))
        half, quarter, none = (op.constant(v, _DOUBLE) for v in (math.pi / 2, math.pi / 4, 0.0))
        start = op.Where(is_far, half, op.Where(is_near, none, quarter))
        rest = op.Where(is_far, _REST, op.Where(is_near, none, _REST / 2))
        square = op.Mul(z, z)
        curve = op.Div(_polynomial(op, square, _ATAN_P), _polynomial(op, square, _ATAN_Q))
        found = op.Add(op.Mul(z, op.Mul(square, curve)), z)
        return _signed(op, x, op.Add(start, op.Add(found, rest)))

    def asin(self, op: Writer, x: Any) -> Any:
        other = op.Sqrt(op.Mul(op.Sub(1.0, x), op.Add(1.0, x)))
        return self.atan(op, op.Div(x, other))

    def acos(self, op: Writer, x: Any) -> Any:
        return op.Mul(2.0, self.atan(op, op.Sqrt(op.Div(op.Sub(1.0, x), op.Add(1.0, x)))))

    def erf(self, op: Writer, x: Any) -> Any:
        a = op.Abs(x)
        square = op.Mul(x, x)
        curve = op.Div(_polynomial(op, square, _ERF_T), _polynomial(op, square, _ERF_U))
        near = op.Mul(a, curve)
        b = op.Where(op.Greater(a, 6.0), 6.0, a)  # from there on it is 1
        curve = op.Div(_polynomial(op, b, _ERFC_P), _polynomial(op, b, _ERFC_Q))
        far = op.Sub(1.0, op.Mul(op.Exp(op.Neg(op.Mul(b, b))), curve))
        return _signed(op, x, op.Where(op.LessOrEqual(a, 1.0), near, far))


_LARGE = 1e8
"""The square of larger numbers is that of themselves plus 1."""
_REST = 6.123233995736765886130e-17
"""What pi / 2 lacks in float64."""


def _polynomial(op: Writer, x: Any, coefficients: Sequence[float]) -> Any:
    """Of the highest power first."""
    first, *others = coefficients
    found: Any = first
    for number in others:
        found = op.Add(op.Mul(found, x), number)
    return found


def _signed(op: Writer, x: Any, of_magnitude: Any) -> Any:
    """An odd function, of its values for positive numbers.

    NOTE: ONNX Runtime's ``Where`` has no zeros below zero: a product gives them.
    """
    below = op.Or(op.Less(x, 0.0), op.Less(op.Div(1.0, x), 0.0))
    minus, plus = (op.constant(v, _DOUBLE) for v in (-1.0, 1.0))
    return op.Mul(of_magnitude, op.Where(below, minus, plus))


def _expm1(op: Writer, x: Any) -> Any:
    """Kahan's way, for numbers that are not large."""
    e = op.Exp(x)
    below = op.Sub(e, 1.0)
    return op.Where(op.Equal(e, 1.0), x, op.Div(op.Mul(below, x), op.Log(e)))


def _log1p(op: Writer, x: Any) -> Any:
    """Kahan's way."""
    u = op.Add(x, 1.0)
    found = op.Mul(op.Log(u), op.Div(x, op.Sub(u, 1.0)))
    found = op.Where(op.Equal(u, 1.0), x, found)
    return op.Where(op.Equal(x, math.inf), x, found)


_ATAN_P = (
    -8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1,
    -1.228866684490136173410e2, -6.485021904942025371773e1,
)  # fmt: skip
_ATAN_Q = (
    1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2,
    4.853903996359136964868e2, 1.945506571482613964425e2,
)  # fmt: skip
_ERF_T = (
    9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3,
    7.00332514112805075473e3, 5.55923013010394962768e4,
)  # fmt: skip
_ERF_U = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
    2.26290000613890934246e4, 4.92673942608635921086e4,
)  # fmt: skip
_ERFC_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
    9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
_ERFC_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
    1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
"""Moshier's Cephes: `atan.c` and `ndtr.c`."""


# -- convolutions -------------------------------------------------------------------------------


def _conv(write: _Functions, node: ir.Node, op: Emitter) -> Any:
    x, w, *rest = node.inputs
    spatial = _rank(node, w) - 2
    found = _products(
        op, node, x, w,
        strides=_attribute(node, "strides", [1] * spatial),
        dilations=_attribute(node, "dilations", [1] * spatial),
        pads=_pads(node, spatial),
    )  # fmt: skip
    return _with_bias(op, found, rest, spatial)


def _conv_transpose(write: _Functions, node: ir.Node, op: Emitter) -> Any:
    """The convolution of the input, with zeros in between, by the filters turned round."""
    x, w, *rest = node.inputs
    spatial = _rank(node, w) - 2
    strides = _attribute(node, "strides", [1] * spatial)
    dilations = _attribute(node, "dilations", [1] * spatial)
    more = _attribute(node, "output_padding", [0] * spatial)
    pads, group = _pads(node, spatial), _attribute(node, "group", 1)
    channels, outputs, *sizes = _filters(node, w)
    for i, stride in enumerate(strides):
        if stride > 1:
            x = _spread(op, x, 2 + i, stride)
    reach = [d * (k - 1) for d, k in zip(dilations, sizes, strict=True)]
    before = [r - p for r, p in zip(reach, pads[:spatial], strict=True)]
    after = [r - p + m - (s - 1)
             for r, p, m, s in zip(reach, pads[spatial:], more, strides, strict=True)]  # fmt: skip
    axes = list(range(2, 2 + spatial))
    w = op.Slice(w, [-1] * spatial, [-(2**62)] * spatial, axes, [-1] * spatial)
    each = channels // group
    w = op.Reshape(w, [group, each, outputs, *sizes])
    w = op.Transpose(w, perm=[0, 2, 1, *range(3, 3 + spatial)])
    w = op.Reshape(w, [group * outputs, each, *sizes])
    w.shape = ir.Shape([group * outputs, each, *sizes])
    x = _cut(op, x, [-min(b, 0) for b in before], [-min(a, 0) for a in after])
    wide = [max(p, 0) for p in (*before, *after)]
    ones = [1] * spatial
    found = _products(op, node, x, w, strides=ones, dilations=dilations, pads=wide)
    return _with_bias(op, found, rest, spatial)


def _spread(op: Writer, x: Any, axis: int, stride: int) -> Any:
    """Zeros behind each number along an axis."""
    rank = len(x.shape)
    zeros = [0] * (2 * rank + 2)
    zeros[rank + 1 + axis + 1] = stride - 1
    sizes = [_size(op, x, i) for i in range(rank)]
    sizes[axis] *= stride
    spread = op.Reshape(op.Pad(op.Unsqueeze(x, [axis + 1]), zeros), op.vector(sizes))
    spread.shape = ir.Shape([s if isinstance(s, int) else None for s in sizes])
    return spread


def _cut(op: Writer, x: Any, before: Sequence[int], after: Sequence[int]) -> Any:
    """Without the first and last numbers of each axis of a picture."""
    for axis, (first, last) in enumerate(zip(before, after, strict=True), 2):
        if first or last:
            x = op.Slice(x, [first], [-last if last else 2**62], [axis])
    return x


def _products(
    op: Writer, node: ir.Node, x: Any, w: Any, *, strides: Any, dilations: Any, pads: Any
) -> Any:
    """A convolution: each place's window of the input in a column, times the filters."""
    spatial, group = len(strides), _attribute(node, "group", 1)
    sizes = [_size(op, x, i) for i in range(2 + spatial)]
    if any(pads):
        begin, end = pads[:spatial], pads[spatial:]
        x = op.Pad(x, [0, 0, *begin, 0, 0, *end])
        sizes[2:] = [s + (b + e) for s, b, e in zip(sizes[2:], begin, end, strict=True)]
    filters, each, *windows = (_size(op, w, i) for i in range(2 + spatial))
    places = []
    for i, (stride, dilation) in enumerate(zip(strides, dilations, strict=True)):
        room = sizes[2 + i] - (windows[i] - 1) * dilation
        places.append(_through(room - 1, stride) + 1)
        starts = op.Mul(_range(op, places[i]), stride)
        offsets = op.Mul(_range(op, windows[i]), dilation)
        index = op.Add(op.Unsqueeze(starts, [1]), op.Unsqueeze(offsets, [0]))
        x = op.Gather(x, index, axis=2 + 2 * i)
    x = op.Transpose(
        x, perm=[0, 1, *(3 + 2 * i for i in range(spatial)), *(2 + 2 * i for i in range(spatial))]
    )
    column = functools.reduce(operator.mul, [each, *windows])
    count = functools.reduce(operator.mul, places)
    columns = op.Reshape(x, op.vector([sizes[0], group, column, count]))
    rows = op.Reshape(w, op.vector([group, _through(filters, group), column]))
    return op.Reshape(op.MatMul(rows, columns), op.vector([sizes[0], filters, *places]))


def _with_bias(op: Writer, found: Any, rest: Sequence[Any], spatial: int) -> Any:
    if not rest or rest[0] is None:
        return found
    return op.Add(found, op.Unsqueeze(rest[0], list(range(1, 1 + spatial))))


def _pads(node: ir.Node, spatial: int) -> Sequence[int]:
    if _attribute(node, "auto_pad", "NOTSET") != "NOTSET" or "output_shape" in node.attributes:
        raise _no_form(node, "its padding is not written out")
    return _attribute(node, "pads", [0] * (2 * spatial))


def _filters(node: ir.Node, w: ir.Value | None) -> list[int]:
    """The sizes of the filters, all known."""
    sizes = [] if w is None or w.shape is None else [s for s in w.shape if isinstance(s, int)]
    if len(sizes) < _rank(node, w):
        raise _no_form(node, "the size of its filters is not known")
    return sizes


def _rank(node: ir.Node, value: ir.Value | None) -> int:
    if value is None or value.shape is None:
        raise _no_form(node, "its rank is unknown")
    return len(value.shape)


def _no_form(node: ir.Node, reason: str) -> ExportError:
    place = node.metadata_props.get("source", "")
    return ExportError(
        f"{node.op_type} of float64 has no kernel in ONNX Runtime, and cannot be written "
        f"otherwise: {reason}.{f' {place}' if place else ''}"
    )


# -- sizes: numbers where they are known, else results of rank 1 ----------------------------------


def _size(op: Writer, value: ir.Value, axis: int) -> Any:
    dim = None if value.shape is None else value.shape[axis]
    return dim if isinstance(dim, int) else op.Slice(op.Shape(value), [axis], [axis + 1], [0])


def _through(size: Any, other: int) -> Any:
    return size // other if isinstance(size, int) else size / other


def _range(op: Writer, size: Any) -> Any:
    """Numbers from zero up to, and without, a size."""
    if isinstance(size, int):
        return op.constant(list(range(size)), ir.DataType.INT64)
    return op.Range(0, op.Squeeze(size, [0]), 1)


# -- all forms ----------------------------------------------------------------------------------

_Form = Callable[[_Functions, ir.Node, Emitter], Any]


def _of_one(name: str) -> _Form:
    def form(write: _Functions, node: ir.Node, op: Emitter) -> Any:
        return getattr(write, name)(op, node.inputs[0])

    return form


_FORMS: dict[str, _Form] = {
    **{name.capitalize(): _of_one(name) for name in (
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "sinh", "tan",
    )},
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
}  # fmt: skip
