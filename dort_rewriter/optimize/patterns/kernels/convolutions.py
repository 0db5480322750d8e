"""Convolutions for which ONNX Runtime makes a product of matrices of each channel, and those that
multiply the padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim
from dort_rewriter.graph.writer import Writer
from dort_rewriter.kernels.operators import (
    CONVOLUTION_LIMITS,
    OWN_DOMAIN,
    PADDING_LEFT_OUT,
    own_roots,
)
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.view import GraphView, operator


class DepthwiseConv(Rule):
    """``Conv(x, w, b) -> DepthwiseConv(x, w, b)``   of two axes, each channel having a filter
    of its own that is no constant: constants get a layout of ONNX Runtime's own.
    """

    roots = ("Conv",)
    lowers = "convolutions of onnxruntime"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, weight, bias = (*node.inputs, None)[:3]
        dims, filters = graph.dims(x), graph.static(weight)
        if x is None or weight is None or not dims or not filters or len(dims) != 4:
            return None
        channels = graph.attribute(node, "group", 1)
        if channels == 1 or filters[:2] != (channels, 1):
            return None
        if graph.constant(weight) is not None:
            return Refusal("the filters are constants", weight.name)
        if 0 in (*dims, *filters):
            return Refusal("there is nothing to convolve", (dims, filters))
        windows = _windows(node, graph, filters[2:])
        if windows is None:
            return Refusal(
                "the padding is not the same at both ends", graph.attribute(node, "pads")
            )
        if not _pays(windows, dims[2:], graph.dims(node.outputs[0])):
            return Refusal("other windows than the kernel is made for", (windows, dims))
        read = [x, weight, weight if bias is None else bias]
        if not graph.runs("DepthwiseConv", read, domain=OWN_DOMAIN, windows=windows):
            return Refusal("no kernel", x.dtype)

        def write(op: Writer) -> ir.Value:
            added = _or_zeros(op, bias, channels)
            return op.call("DepthwiseConv", x, weight, added, domain=OWN_DOMAIN, windows=windows)

        return Match([node.outputs[0]], write)


class DirectConv(Rule):
    """``Conv(x, w, b) -> DirectConv(x, w, b)``   of one or two axes, each channel reading all,
    with filters that are no constants: constants get a layout of ONNX Runtime's own.
    """

    roots = ("Conv",)
    lowers = "convolutions of onnxruntime"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, weight, bias = (*node.inputs, None)[:3]
        dims, filters = graph.dims(x), graph.static(weight)
        if x is None or weight is None or not dims or not filters or len(dims) not in (3, 4):
            return None
        if graph.attribute(node, "group", 1) != 1:
            return None
        if graph.constant(weight) is not None:
            return Refusal("the filters are constants", weight.name)
        if 0 in (*dims, *filters):
            return Refusal("there is nothing to convolve", (dims, filters))
        windows = _windows(node, graph, filters[2:])
        if windows is None:
            pads = graph.attribute(node, "pads")
            return Refusal("the padding is not the same at both ends", pads)
        if not _is_worth_it(windows, filters):
            return Refusal("a product of matrices is faster", (windows, filters))
        given = [x, weight, weight if bias is None else bias]
        made = list(node.outputs)
        if not graph.runs("DirectConv", given, domain=OWN_DOMAIN, outputs=made, windows=windows):
            return Refusal("no kernel", x.dtype)

        def write(op: Writer) -> ir.Value:
            added = _or_zeros(op, bias, filters[0])
            return op.call("DirectConv", x, weight, added, domain=OWN_DOMAIN, windows=windows)

        return Match([node.outputs[0]], write)


class TransposeDirectConv(Rule):
    """``DirectConv(x, Transpose(w), ...) -> DirectConv<channels_last = 1>(x, w, ...)``   of
    filters whose channels lie last."""

    roots = own_roots(("DirectConv",))
    lowers = "Transposes of filters"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, weight, *others = node.inputs
        before = graph.producer(weight, "Transpose")
        order = None if before is None else graph.order(before)
        if before is None or order is None or graph.attribute(node, "channels_last", 0):
            return None
        if order != [0, len(order) - 1, *range(1, len(order) - 1)]:
            return None
        read = [x, before.inputs[0], *others]
        return Match(list(node.outputs), lambda op: op.again(node, *read, channels_last=1))


_INPUTS = {"DirectConv": 3, "BatchNormInference": 5, "BatchNorm": 3}
_NORMALIZED = f"{OWN_DOMAIN}::BatchNormInference"


class Epilogue(Rule):
    """``Add(K(...), z) -> K(..., z)``   of the same shape, then
    ``Relu(K(...)) -> K<relu = 1>(...)``, for a kernel K of convolutions or batch normalizations;
    before them ``BatchNormalization(DirectConv(x, w, b), ...) -> DirectConv(x, w, b, ...)``, or
    ``BatchNormInference`` with all that follows it.
    """

    roots = own_roots(tuple(_INPUTS))
    lowers = "what follows a convolution or a batch normalization"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        made = node.outputs[0]
        following = graph.reader(made, "BatchNormalization", _NORMALIZED, "Add", "Relu")
        if following is None or graph.attribute(node, "relu", 0):
            return None
        given, result = list(node.inputs), following.outputs[0]
        if made.dtype != result.dtype:
            return Refusal("it is cast in between", following.name)
        changed: dict[str, Any] = {}
        if node.op_type == "DirectConv" and made.dtype != ir.DataType.FLOAT:
            changed["rounded"] = 1  # in between too, whatever the result is cast to later
        rest = len(given) - _INPUTS[node.op_type]  # a normalization's four, and what is added
        if following.op_type == "Relu":
            changed["relu"] = 1
        elif following.op_type == "Add":
            a, b = following.inputs
            other = b if a is made else a
            if node.op_type == "BatchNorm" and made.dtype != ir.DataType.FLOAT:
                return Refusal("it is rounded in between", following.name)
            if rest % 4:
                return Refusal("something was added before", following.name)
            if not graph.same_shape(other, result) or not graph.same_shape(made, result):
                return Refusal("what is added has another shape", graph.dims(other))
            given.append(other)
        else:
            if node.op_type != "DirectConv" or rest:
                return Refusal("it is normalized, or something added, before", following.name)
            if graph.attribute(following, "training_mode", 0) or following.inputs[0] is not made:
                return Refusal("it is normalized by the batch, or a parameter", following.name)
            given += following.inputs[1:]
            changed["epsilon"] = graph.attribute(following, "epsilon", 1e-5)
            if graph.attribute(following, "relu", 0):
                changed["relu"] = 1
        attributes = {name: a.value for name, a in node.attributes.items()} | changed
        results = [result, *node.outputs[1:]]  # statistics
        how = {"domain": OWN_DOMAIN, "outputs": results, **attributes}
        if not graph.runs(node.op_type, given, **how):
            return Refusal("no kernel", [v and v.dtype for v in given])
        return Match(results, lambda op: op.again(node, *given, **changed))


class PaddedConv(Rule):
    """``Conv(x, w, b) -> PaddingLeftOut(Conv(x, w, b), x, w, b)``   with a padding, which is not
    to be multiplied where ``w`` has an infinity or NaN. A Relu stays beside its convolution:
    ``Relu(Conv(x, w, b)) -> PaddingLeftOut<relu = 1>(Relu(Conv(x, w, b)), x, w, b)``.
    """

    roots = ("Conv",)
    of_type = ir.DataType.FLOAT
    lowers = "convolutions whose padding may be multiplied with what is not finite"
    late = True

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, weight, bias = (*node.inputs, None)[:3]
        pads = graph.attribute(node, "pads", [])
        if x is None or weight is None or not any(pads):
            return None
        made, (result, relu) = node.outputs[0], _with_relu(node, graph)
        if any(map(_is_check, graph.consumers(result))):
            return None
        numbers = graph.constant(weight)
        if numbers is not None and np.isfinite(numbers).all():
            return Refusal("the weights are finite constants", weight.name)
        how = _how(node, graph, pads)
        if how is None:
            return Refusal("other windows than torch's", pads)
        read = [v for v in (x, weight, bias) if v is not None]
        attributes = {**how, "relu": int(relu)}
        given = [made, *read]
        if not graph.runs(PADDING_LEFT_OUT, given, domain=OWN_DOMAIN, **attributes):
            return Refusal("no kernel", x.dtype)

        def write(op: Writer) -> ir.Value:
            again = op.again(node, *node.inputs)
            again.shape = made.shape  # onnxruntime writes over what has the shape of the result
            if relu:
                again = op.Relu(again)
            return op.call(PADDING_LEFT_OUT, again, *read, domain=OWN_DOMAIN, **attributes)

        return Match([result], write)


def _or_zeros(op: Writer, bias: ir.Value | None, channels: int) -> ir.Value:
    """A bias, which these kernels always read."""
    return op.constant([0.0] * channels, ir.DataType.FLOAT) if bias is None else bias


def _with_relu(node: ir.Node, graph: GraphView) -> tuple[ir.Value, bool]:
    """The result of a convolution, or of the Relu that alone reads it; whether there is one."""
    made = node.outputs[0]
    relu = graph.reader(made, "Relu")
    return (made, False) if relu is None else (relu.outputs[0], True)


def _is_check(node: ir.Node) -> bool:
    return operator(node) == f"{OWN_DOMAIN}::{PADDING_LEFT_OUT}"


def _how(node: ir.Node, graph: GraphView, pads: Sequence[int]) -> dict[str, Any] | None:
    """The windows of a convolution as torch counts them."""
    rank = len(pads) // 2
    if graph.attribute(node, "auto_pad", "NOTSET") != "NOTSET" or pads[:rank] != pads[rank:]:
        return None
    how = {
        "stride": graph.attribute(node, "strides", [1] * rank),
        "padding": pads[:rank],
        "dilation": graph.attribute(node, "dilations", [1] * rank),
        "output_padding": [0] * rank,
    }
    if any(n > CONVOLUTION_LIMITS[name] for name, numbers in how.items() for n in numbers):
        return None
    lists = {name: list(numbers) for name, numbers in how.items()}
    return {**lists, "groups": graph.attribute(node, "group", 1)}


_FEWEST_TAPS, _FEWEST_COLUMNS = 9, 7
_LARGEST_PLANE = 1 << 20
"""Numbers of an image with its padding, of which each thread has a copy."""


def _pays(windows: Sequence[int], sizes: Sequence[Dim], made: Sequence[Dim] | None) -> bool:
    """Whether the kernel is faster than a product: it makes 4 rows of 16 columns at once.

    Measured on one thread: 3x3 windows take 0.55 to 0.85 of the time, 7x7 windows 0.2 to 0.35; but
    1x1 windows four times as long, 2x2 and 3x1 ones half as long again, and so do windows that
    leave gaps; narrow images up to eight times.
    """
    (high, down, above, *_), (wide, across, beside, *_) = windows[:5], windows[5:]
    height, width = sizes
    columns = made[3] if made is not None and len(made) == 4 else None
    if not isinstance(height, int) or not isinstance(width, int) or not isinstance(columns, int):
        return False
    area = (height + 2 * above) * (width + 2 * beside)
    fits = area <= _LARGEST_PLANE and columns >= _FEWEST_COLUMNS
    return fits and high * wide >= _FEWEST_TAPS and down < high and across < wide


_FEWEST_PRODUCTS = 16


def _is_worth_it(windows: Sequence[int], filters: Sequence[int]) -> bool:
    """Whether the kernel is faster than a product: it does not write out the windows.

    Measured on one thread: 3x3 and larger windows take 0.5 to 0.9 of the time; single elements and
    windows that share none are as fast as a product of those that are there, and so are filters of
    so few numbers that results are most of the work.
    """
    (high, down, *_), (wide, across, *_) = windows[:5], windows[5:]
    shares = (down < high or high == 1) and (across < wide or wide == 1)
    return high * wide > 1 and shares and filters[1] * high * wide >= _FEWEST_PRODUCTS


def _windows(node: ir.Node, graph: GraphView, kernel: Sequence[int]) -> list[int] | None:
    """Kernel, stride, padding, dilation and whether windows may be cut off, by axis of two."""
    rank = len(kernel)
    pads = graph.attribute(node, "pads", [0] * 2 * rank)
    if graph.attribute(node, "auto_pad", "NOTSET") != "NOTSET" or pads[:rank] != pads[rank:]:
        return None
    strides, dilations = (graph.attribute(node, n, [1] * rank) for n in ("strides", "dilations"))
    axes = zip(kernel, strides, pads[:rank], dilations, strict=True)
    found = [int(n) for axis in axes for n in (*axis, 0)]
    return [1, 1, 0, 1, 0, *found] if rank == 1 else found
