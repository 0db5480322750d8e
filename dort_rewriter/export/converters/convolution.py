"""Convolutions of one to three dimensions, transposed or not, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.axes import product, zeros
from dort_rewriter.export.converters.windows import (
    Windows,
    are_taken,
    convolution_windows,
    group_count,
    spatial_sizes,
    spread,
    transposed_convolution,
    unfold,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value
from dort_rewriter.kernels.torch_library import convolves_bfloat16, has_function


def _is_floating(node: torch.fx.Node) -> bool:
    """ONNX has no convolution of integers"""
    first = node.args[0]
    assert isinstance(first, torch.fx.Node)
    return bool(first.meta["val"].dtype.is_floating_point)


def _kernel(weight: Value) -> list[int]:
    kernel = weight.dims[2:]
    if not all(isinstance(k, int) for k in kernel):
        raise Refused("the size of the kernel is symbolic")
    return [int(k) for k in kernel]  # type: ignore[arg-type]


@converter("aten::convolution", when=_is_floating)
@by_name
def convolution(op: Recorder, given: Arguments) -> Value:
    """convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"""
    rank = given.weight.rank - 2
    pads = spread(given.padding, rank)
    strides, gaps, extra = (
        spread(v, rank) for v in (given.stride, given.dilation, given.output_padding)
    )
    attributes: dict[str, Any] = {
        "strides": strides,
        "pads": [*pads, *pads],
        "dilations": gaps,
        "group": group_count(given.groups),
    }
    operands = (given.input, given.weight, given.bias)
    if not given.transposed and _is_widened(op, given):
        return op.cast(op.Conv(*_wide(op, operands), **attributes), ir.DataType.BFLOAT16)
    if not given.transposed:
        return op.Conv(*operands, **attributes)
    if any(more >= max(step, gap) for more, step, gap in zip(extra, strides, gaps, strict=True)):
        raise Refused("output padding that torch refuses")
    if _is_beyond(extra, strides):
        return _padded_behind(op, *operands, extra, attributes)
    added = extra if any(extra) else None
    return op.ConvTranspose(*operands, output_padding=added, **attributes)


def _is_beyond(extra: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a transposed convolution has more rows behind than onnxruntime makes."""
    return any(e >= s for e, s in zip(extra, strides, strict=True))


def _padded_behind(
    op: Recorder,
    input: Value,
    weight: Value,
    bias: Value | None,
    extra: Sequence[int],
    attributes: dict[str, Any],
) -> Value:
    """A transposed convolution of which less is cut off behind, and then rows without terms."""
    rank = len(extra)
    pads = attributes["pads"][:rank]
    uncut = [min(e, p) for e, p in zip(extra, pads, strict=True)]
    ends = [p - u for p, u in zip(pads, uncut, strict=True)]
    result = op.ConvTranspose(input, weight, **{**attributes, "pads": [*pads, *ends]})
    rest = [e - u for e, u in zip(extra, uncut, strict=True)]
    if any(rest):
        result = op.Pad(result, [0] * (2 + rank) + [0, 0, *rest])
    return result if bias is None else op.Add(result, op.Reshape(bias, [1, -1, *[1] * rank]))


@converter("aten::convolution_backward", when=_is_floating)
@by_name
def convolution_backward(op: Recorder, given: Arguments) -> tuple[Value | None, ...]:
    """convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    read: Sequence[Any] = (given.grad_output, given.input, given.weight)
    is_widened = _is_widened(op, given)
    grad, input, weight = _wide(op, read) if is_widened else read
    rank, groups = weight.rank - 2, group_count(given.groups)
    kernel = _kernel(weight)
    strides, pads, dilations = (
        spread(v, rank) for v in (given.stride, given.padding, given.dilation)
    )
    of_input = of_weight = of_bias = None
    seen = grad
    if given.transposed and _is_beyond(extra := spread(given.output_padding, rank), strides):
        # What is behind the last window has terms of none.
        behind = [p - e for p, e in zip(pads, extra, strict=True)]
        seen, pads = op.Pad(grad, [0, 0, *pads, 0, 0, *behind]), [0] * rank
    windows = [Windows(*n) for n in zip(kernel, strides, pads, dilations, strict=True)]
    if given.output_mask[0] and given.transposed:
        around = [*pads, *pads]
        how = {"strides": strides, "pads": around, "dilations": dilations, "group": groups}
        of_input = op.Conv(seen, weight, **how)
    elif given.output_mask[0] and _is_convolved(op, given, windows):
        of_input = _convolved_gradient(op, given, windows)
    elif given.output_mask[0] and rank == 2 and groups == 1 and op.takes_own(grad, weight):
        of_input = _input_gradient(op, grad, input, weight, windows)
    elif given.output_mask[0]:
        sizes = spatial_sizes(op, input, rank)
        of_input = transposed_convolution(op, grad, weight, sizes, windows, groups)
    if given.output_mask[1]:
        source, seeds = (seen, input) if given.transposed else (input, grad)
        of_weight = _weight_gradient(op, source, seeds, weight, windows, groups)
        if op.takes_own(of_weight) and _may_multiply_padding(given):
            read = (of_weight, grad, input, weight)
            of_weight = op.own("PaddingLeftOutGrad", *read, **convolution_windows(given))
    if given.output_mask[2]:
        of_bias = op.ReduceSum(grad, [0, *range(2, 2 + rank)], keepdims=0)
    results = of_input, of_weight, of_bias
    if not is_widened:
        return results
    return tuple(v if v is None else op.cast(v, ir.DataType.BFLOAT16) for v in results)


def _is_widened(op: Recorder, given: Arguments) -> bool:
    """Whether bfloat16 is float32 here, which our kernels take: they leave the padding out, as
    oneDNN does. torch's loops for float16 multiply it."""
    return op.own_kernels and given.weight.dtype == ir.DataType.BFLOAT16 and convolves_bfloat16()


def _wide(op: Recorder, values: Sequence[Value | None]) -> list[Any]:
    return [v if v is None else op.cast(v, ir.DataType.FLOAT) for v in values]


def _may_multiply_padding(given: Arguments) -> bool:
    """Whether numbers around an image are multiplied, and torch, which leaves them out, can be
    called where that gives NaN."""
    around = [*given.padding, *(given.output_padding if given.transposed else ())]
    return any(around) and are_taken(given) and has_function("aoti_torch_cpu_convolution_backward")


def _is_convolved(op: Recorder, given: Arguments, windows: Sequence[Windows]) -> bool:
    """Whether the gradient of the input is a convolution of our kernel: windows one place apart."""
    steps = all(w.stride == 1 and w.padding < w.extent for w in windows)
    fits = len(windows) <= 2 and given.groups == 1 and steps and not _are_points(windows)
    known = all(isinstance(n, int) and n > 0 for n in given.weight.dims)
    return fits and known and op.takes_own(given.grad_output, given.weight)


def _convolved_gradient(op: Recorder, given: Arguments, windows: Sequence[Windows]) -> Value:
    """The gradient of the input of a convolution, by a convolution with the filters turned."""
    grad, weight = given.grad_output, given.weight
    turned = [w._replace(padding=w.extent - 1 - w.padding) for w in windows]
    axes = [Windows(1, 1)] * (2 - len(windows)) + turned
    zeros = op.constant([0.0] * int(weight.dims[1]), ir.DataType.FLOAT)
    how: dict[str, Any] = {"windows": own_kernels.numbers(axes), "gradient": 1}
    of_input: Value = op.own("DirectConv", grad, weight, zeros, **how)
    return of_input


def _are_points(windows: Sequence[Windows]) -> bool:
    return all((w.kernel, w.stride, w.padding) == (1, 1, 0) for w in windows)


def _input_gradient(
    op: Recorder, grad: Value, input: Value, weight: Value, windows: Sequence[Windows]
) -> Value:
    """The gradient of the input of a convolution: a product, and windows that add up.

    NOTE: ConvTranspose of onnxruntime makes a product for each image of the batch, many times
    slower for many channels of a few elements.
    """
    outs = op.size(weight, 0)
    matrix = op.Transpose(op.Reshape(weight, op.vector([outs, -1])), perm=[1, 0])
    if _are_points(windows):
        flat = op.Reshape(grad, op.vector([op.size(grad, 0), outs, -1]))
        return op.Reshape(op.MatMul(matrix, flat), op.sizes(input))
    flat = op.Reshape(op.Transpose(grad, perm=[1, 0, 2, 3]), op.vector([outs, -1]))
    product, how = op.MatMul(matrix, flat), own_kernels.numbers(windows)
    return op.own("ColumnsGrad", product, op.sizes(input), windows=how)


def _weight_gradient(
    op: Recorder,
    source: Value,
    seeds: Value,
    weight: Value,
    windows: Sequence[Windows],
    groups: int,
) -> Value:
    """Sum over windows of seeds x window: one product of matrices per group.

    The batch is moved into the summed axis before the windows are unfolded, so that only the two
    small tensors are transposed, and never the unfolded one.
    """
    kernel = [w.kernel for w in windows]
    channels_first = [1, 0, *range(2, weight.rank)]
    counts = spatial_sizes(op, seeds, len(windows))
    outs, ins = (op.size(weight, i) for i in range(2))
    length = product(op, [op.size(seeds, 0), *counts])
    if length == 0:
        return zeros(op, [outs, ins, *kernel], seeds.dtype)
    if len(windows) == 2 and not _are_points(windows) and op.takes_own(source, seeds):
        columns = op.own("Columns", source, windows=own_kernels.numbers(windows))
    else:
        columns = unfold(op, op.Transpose(source, perm=channels_first), counts, windows, axis=1)
    lead = [groups] if groups > 1 else []
    each = (
        outs if groups == 1 else outs // groups if isinstance(outs, int) else op.Div(outs, groups)
    )
    shape = op.vector([*lead, product(op, [ins, *kernel]), length])
    columns = op.Reshape(columns, shape)
    rows = op.Reshape(op.Transpose(seeds, perm=channels_first), op.vector([*lead, each, length]))
    swapped = [0, 2, 1] if groups > 1 else [1, 0]
    summed = op.MatMul(rows, op.Transpose(columns, perm=swapped))
    return op.Reshape(summed, op.vector([outs, ins, *kernel]))
