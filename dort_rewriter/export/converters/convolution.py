"""Convolutions of one to three dimensions, transposed or not, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dort_rewriter.export.converters import own_kernels
from dort_rewriter.export.converters.windows import (
    Windows,
    group_count,
    spatial_sizes,
    spread,
    transposed_convolution,
    unfold,
)
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value


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
def convolution(
    op: Recorder,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
) -> Value:
    """convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups) -> Tensor"""
    rank = weight.rank - 2
    pads = spread(padding, rank)
    attributes: dict[str, Any] = {
        "strides": spread(stride, rank),
        "pads": [*pads, *pads],
        "dilations": spread(dilation, rank),
        "group": group_count(groups),
    }
    if not transposed:
        return op.Conv(input, weight, bias, **attributes)
    extra = spread(output_padding, rank)
    for more, step, gap in zip(extra, attributes["strides"], attributes["dilations"], strict=True):
        if more >= max(step, gap):
            raise Refused("output padding that torch refuses")
    if _is_beyond(extra, attributes["strides"]):
        return _padded_behind(op, input, weight, bias, extra, attributes)
    return op.ConvTranspose(
        input, weight, bias, output_padding=extra if any(extra) else None, **attributes
    )


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
def convolution_backward(
    op: Recorder,
    grad_output: Value,
    input: Value,
    weight: Value,
    bias_sizes: Sequence[Any] | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    output_padding: Sequence[Any],
    groups: Any,
    output_mask: Sequence[bool],
) -> tuple[Value | None, Value | None, Value | None]:
    """convolution_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"""
    rank = weight.rank - 2
    kernel, groups = _kernel(weight), group_count(groups)
    strides, pads, dilations = (spread(v, rank) for v in (stride, padding, dilation))
    of_input = of_weight = of_bias = None
    seen = grad_output
    if transposed and _is_beyond(extra := spread(output_padding, rank), strides):
        # What is behind the last window has terms of none.
        behind = [p - e for p, e in zip(pads, extra, strict=True)]
        seen, pads = op.Pad(grad_output, [0, 0, *pads, 0, 0, *behind]), [0] * rank
    if output_mask[0] and transposed:
        of_input = op.Conv(
            seen, weight, strides=strides, pads=[*pads, *pads], dilations=dilations, group=groups
        )
    elif output_mask[0] and rank == 2 and groups == 1 and op.takes_own(grad_output, weight):
        windows = _windows(kernel, strides, pads, dilations)
        of_input = _input_gradient(op, grad_output, input, weight, windows)
    elif output_mask[0]:
        of_input = transposed_convolution(
            op,
            grad_output,
            weight,
            spatial_sizes(op, input, rank),
            spatial_sizes(op, grad_output, rank),
            kernel,
            strides,
            pads,
            dilations,
            groups,
        )
    if output_mask[1]:
        source, seeds = (seen, input) if transposed else (input, grad_output)
        of_weight = _weight_gradient(op, source, seeds, weight, strides, pads, dilations, groups)
    if output_mask[2]:
        of_bias = op.ReduceSum(grad_output, [0, *range(2, 2 + rank)], keepdims=0)
    return of_input, of_weight, of_bias


def _windows(*lists: Sequence[int]) -> list[Windows]:
    return [Windows(*numbers) for numbers in zip(*lists, strict=True)]


def _are_points(windows: Sequence[Windows]) -> bool:
    return all((w.kernel, w.stride, w.padding) == (1, 1, 0) for w in windows)


def _input_gradient(
    op: Recorder, grad: Value, input: Value, weight: Value, windows: Sequence[Windows]
) -> Value:
    """The gradient of the input of a convolution: a product, and windows that add up.

    NOTE: ConvTranspose of onnxruntime makes a product for each image of the batch, many times
    slower for many channels of a few elements.
    """
    outs = int(weight.dims[0])  # type: ignore[arg-type]
    matrix = op.Transpose(op.Reshape(weight, [outs, -1]), perm=[1, 0])
    if _are_points(windows):
        flat = op.Reshape(grad, op.vector([op.size(grad, 0), outs, -1]))
        return op.Reshape(op.MatMul(matrix, flat), op.sizes(input))
    flat = op.Reshape(op.Transpose(grad, perm=[1, 0, 2, 3]), [outs, -1])
    return own_kernels.columns_gradient(op, op.MatMul(matrix, flat), op.sizes(input), windows)


def _weight_gradient(
    op: Recorder,
    source: Value,
    seeds: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """Sum over windows of seeds x window: one product of matrices per group.

    The batch is moved into the summed axis before the windows are unfolded, so that only the two
    small tensors are transposed, and never the unfolded one.
    """
    rank, kernel = weight.rank - 2, _kernel(weight)
    channels_first = [1, 0, *range(2, 2 + rank)]
    windows = spatial_sizes(op, seeds, rank)
    own = _windows(kernel, stride, padding, dilation)
    if rank == 2 and not _are_points(own) and op.takes_own(source, seeds):
        columns = own_kernels.columns(op, source, own)
    else:
        columns = unfold(
            op,
            op.Transpose(source, perm=channels_first),
            windows,
            kernel,
            stride,
            padding,
            dilation,
            axis=1,
        )
    outs, ins = (int(d) for d in weight.dims[:2])  # type: ignore[arg-type]
    taps = ins
    for k in kernel:
        taps *= k
    lead = [groups] if groups > 1 else []
    length = _total(op, [op.size(seeds, 0), *windows])
    columns = op.Reshape(columns, op.vector([*lead, taps, length]))
    rows = op.Reshape(
        op.Transpose(seeds, perm=channels_first), op.vector([*lead, outs // groups, length])
    )
    swapped = [0, 2, 1] if groups > 1 else [1, 0]
    return op.Reshape(op.MatMul(rows, op.Transpose(columns, perm=swapped)), [outs, ins, *kernel])


def _total(op: Recorder, sizes: Sequence[int | Value]) -> int | Value:
    result: int | Value = 1
    for size in sizes:
        result = size * result
    return result
