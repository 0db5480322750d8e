"""Nodes that torch's own kernels compute inside a session: ATen operators under their own names.

Such a model runs only in a process that has loaded torch, so that only a backend asks for them,
never an export to a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.aten import is_contiguous
from dort_rewriter.export.converters.windows import are_taken, convolution_windows
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import (
    Arguments,
    Converter,
    arguments,
    by_name,
    make_converter,
    op_name,
)
from dort_rewriter.graph.values import Value
from dort_rewriter.kernels.operators import OWN_DOMAIN


def torch_kernel(node: torch.fx.Node, has_function: Callable[[str], bool]) -> Converter | None:
    """What writes the kernel of torch that computes a node; None where there is none.

    ``has_function`` says whether torch's library has a function of that name.
    """
    name = op_name(node.target)
    known = _KERNELS.get(name)
    if known is None or known.refusal(node) is not None:
        return None
    function = f"aoti_torch_cpu_{name.removeprefix('aten::')}"
    there = has_function(function) or has_function(f"{function}_out")
    return known if there else None


def _of_numbers(node: torch.fx.Node) -> bool:
    """Its factors are computed by the graph, or it is of several types: of nothing, then."""
    types = {n.meta["val"].dtype for n in node.all_input_nodes if "val" in n.meta}
    factors = [node.kwargs.get(key, 1) for key in ("beta", "alpha")]
    return len(types) < 2 and all(isinstance(f, int | float) for f in factors)


def _product(name: str) -> Callable[..., Value]:
    """The converter of a product of two factors, which a first operand may be added to."""

    def convert(op: Recorder, *operands: Value, **factors: float) -> Value:
        names = ("beta", "alpha") if len(operands) == 3 else ()
        how: dict[str, Any] = {key: float(factors.get(key, 1)) for key in names}
        result: Value = op.call(name, *operands, domain=OWN_DOMAIN, **how)
        return result

    return convert


_FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def _takes_attention(node: torch.fx.Node) -> bool:
    """It is of nothing, of float64, or its scale is computed by the graph."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    scale = node.kwargs.get("scale")
    return (scale is None or isinstance(scale, float)) and all(
        isinstance(v, torch.Tensor)
        and 0 not in v.shape
        and v.dtype in (torch.float32, torch.bfloat16, torch.float16)
        for v in values
    )


def _attention(name: str, outputs: int, *read: str) -> Callable[..., tuple[Value, ...]]:
    """The converter of an attention, or of its gradients, which reads these arguments."""

    @by_name
    def convert(op: Recorder, given: Arguments) -> tuple[Value, ...]:
        values = [v for v in (getattr(given, key) for key in read) if v is not None]
        how: dict[str, Any] = {"is_causal": int(given.is_causal), "scale": given.scale}
        found: tuple[Value, ...] = op.call(
            name, *values, domain=OWN_DOMAIN, outputs=outputs, **how
        )
        return found

    return convert


def _takes_convolution(node: torch.fx.Node) -> bool:
    """It is of float64, its numbers are computed by the graph, or larger than the kernel takes."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = {v.dtype if isinstance(v, torch.Tensor) else None for v in values}
    fits = are_taken(arguments(node.target, node.args, node.kwargs))
    return fits and len(types) == 1 and types <= {torch.float32, torch.bfloat16, torch.float16}


@by_name
def _convolution(op: Recorder, given: Arguments) -> Value:
    how = convolution_windows(given)
    if _is_product(op, given, how, images=1):
        return _product_of_pixels(op, given.input, given.weight, given.bias)
    read = [v for v in (given.input, given.weight, given.bias) if v is not None]
    result: Value = op.call("convolution", *read, domain=OWN_DOMAIN, **how)
    return result


def _is_product(op: Recorder, given: Arguments, how: Mapping[str, Any], images: int) -> bool:
    """Whether each pixel is multiplied alone, by one matrix, where channels come first in what
    the first ``images`` arguments are.

    torch's convolution of bfloat16 takes two to seven times as long as this product, unless the
    channels are last.
    """
    input, weight = given.input, given.weight
    read = op.fx_node.args[:images]
    alone = all(k == 1 for k in weight.dims[2:]) and {*how["stride"], how["groups"]} == {1}
    fixed = all(isinstance(n, int) for n in (*input.dims[1:], *weight.dims))
    if given.transposed or not alone or any(how["padding"]) or not fixed or not read:
        return False
    return all(isinstance(n, torch.fx.Node) and is_contiguous(n.meta["val"]) for n in read)


def _product_of_pixels(op: Recorder, input: Value, weight: Value, bias: Value | None) -> Value:
    """A convolution with windows of one element as a product of matrices."""
    batch, read, *sizes = input.dims
    made, pixels = weight.dims[0], math.prod(n for n in sizes if isinstance(n, int))
    rows = op.Reshape(weight, [1, made, read])
    columns = op.Reshape(input, [0, read, pixels])
    if bias is None:
        product = op.call("bmm", rows, columns, domain=OWN_DOMAIN)
    else:
        addend = op.Reshape(bias, [1, made, 1])
        factors: dict[str, Any] = {"beta": 1.0, "alpha": 1.0}
        product = op.call("baddbmm", addend, rows, columns, domain=OWN_DOMAIN, **factors)
    product.type, product.shape = input.type, ir.Shape([batch, made, pixels])
    result: Value = op.Reshape(product, [0, made, *sizes])
    return result


def _gradients_of_pixels(
    op: Recorder, grad_output: Value, input: Value, weight: Value, mask: Sequence[bool]
) -> tuple[Value | None, ...]:
    """The gradients of such a product: that of the weights sums over the pictures as well."""
    (made, read), (batch, _, *sizes) = weight.dims[:2], input.dims
    pixels = math.prod(n for n in sizes if isinstance(n, int))
    of_input = of_weight = of_bias = None
    if mask[0]:
        turned = op.Transpose(op.Reshape(weight, [1, made, read]), perm=[0, 2, 1])
        columns = op.Reshape(grad_output, [0, made, pixels])
        product = op.call("bmm", turned, columns, domain=OWN_DOMAIN)
        product.type, product.shape = input.type, ir.Shape([batch, read, pixels])
        of_input = op.Reshape(product, [0, read, *sizes])
    if mask[1]:
        swapped = [1, 0, *range(2, weight.rank)]
        rows = op.Reshape(op.Transpose(grad_output, perm=swapped), [made, -1])
        others = op.Reshape(op.Transpose(input, perm=swapped), [read, -1])
        product = op.call("mm", rows, op.Transpose(others, perm=[1, 0]), domain=OWN_DOMAIN)
        product.type, product.shape = weight.type, ir.Shape([made, read])
        of_weight = op.Reshape(product, list(weight.dims))
    if mask[2]:
        of_bias = op.ReduceSum(grad_output, [0, *range(2, weight.rank)], keepdims=0)
    return of_input, of_weight, of_bias


@by_name
def _convolution_backward(op: Recorder, given: Arguments) -> tuple[Value | None, ...]:
    how, mask = convolution_windows(given), given.output_mask
    read = (given.grad_output, given.input, given.weight)
    if _is_product(op, given, how, images=2):
        return _gradients_of_pixels(op, *read, mask)
    results = op.call("convolution_backward", *read, domain=OWN_DOMAIN, outputs=3, **how)
    return tuple([r if asked else None for r, asked in zip(results, mask, strict=True)])


_QKV = ("query", "key", "value")
_BACKWARD = ("grad_out", *_QKV, "out", "logsumexp", "attn_mask")

_KERNELS: Mapping[str, Converter] = {
    f"aten::{name}": make_converter(f"aten::{name}", function, when)
    for name, function, when in (
        *((name, _product(name), _of_numbers) for name in ("mm", "bmm", "addmm", "baddbmm")),
        (_FLASH, _attention(_FLASH, 2, *_QKV, "attn_mask"), _takes_attention),
        (f"{_FLASH}_backward", _attention(f"{_FLASH}_backward", 3, *_BACKWARD), _takes_attention),
        ("convolution", _convolution, _takes_convolution),
        ("convolution_backward", _convolution_backward, _takes_convolution),
    )
}
