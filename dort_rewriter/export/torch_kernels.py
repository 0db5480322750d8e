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
from dort_rewriter.export.converters.windows import group_count, spread
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Converter, make_converter, op_name
from dort_rewriter.graph.values import Value
from dort_rewriter.kernels.operators import CONVOLUTION_LIMITS, OWN_DOMAIN

__all__ = ["torch_kernel"]


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
    """The converter of a product of two factors."""

    def convert(op: Recorder, left: Value, right: Value) -> Value:
        result: Value = op.call(name, left, right, domain=OWN_DOMAIN)
        return result

    return convert


def _added_product(name: str) -> Callable[..., Value]:
    """The converter of a product that something is added to."""

    def convert(
        op: Recorder, x: Value, left: Value, right: Value, *, beta: float = 1, alpha: float = 1
    ) -> Value:
        factors: dict[str, Any] = {"beta": float(beta), "alpha": float(alpha)}
        result: Value = op.call(name, x, left, right, domain=OWN_DOMAIN, **factors)
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


def _attention(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, ...]:
    given = [v for v in (query, key, value, attn_mask) if v is not None]
    how: dict[str, Any] = {"is_causal": int(is_causal), "scale": scale}
    results: tuple[Value, ...] = op.call(_FLASH, *given, domain=OWN_DOMAIN, outputs=2, **how)
    return results


def _attention_backward(
    op: Recorder,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, ...]:
    read = (grad_out, query, key, value, out, logsumexp, attn_mask)
    given = [v for v in read if v is not None]
    how: dict[str, Any] = {"is_causal": int(is_causal), "scale": scale}
    name = f"{_FLASH}_backward"
    results: tuple[Value, ...] = op.call(name, *given, domain=OWN_DOMAIN, outputs=3, **how)
    return results


def _takes_convolution(node: torch.fx.Node) -> bool:
    """It is of float64, its numbers are computed by the graph, or larger than the kernel takes."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    types = {v.dtype if isinstance(v, torch.Tensor) else None for v in values}
    assert isinstance(node.target, torch._ops.OpOverload)
    names = [a.name for a in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    for name, most in CONVOLUTION_LIMITS.items():
        numbers = given[name]
        assert isinstance(numbers, Sequence)
        if not all(isinstance(n, int) and n <= most for n in numbers):
            return False
    return len(types) == 1 and types <= {torch.float32, torch.bfloat16, torch.float16}


def _windows(
    rank: int, stride: Any, padding: Any, dilation: Any, output_padding: Any, groups: Any
) -> dict[str, Any]:
    lists = {
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "output_padding": output_padding,
    }
    return {"groups": group_count(groups), **{name: spread(v, rank) for name, v in lists.items()}}


def _convolution(
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
    how = _windows(weight.rank - 2, stride, padding, dilation, output_padding, groups)
    if not transposed and _is_product(op, input, weight, how, images=1):
        return _product_of_pixels(op, input, weight, bias)
    given = [v for v in (input, weight, bias) if v is not None]
    result: Value = op.call(
        "convolution", *given, domain=OWN_DOMAIN, transposed=int(transposed), **how
    )
    return result


def _is_product(
    op: Recorder, input: Value, weight: Value, how: Mapping[str, Any], images: int
) -> bool:
    """Whether each pixel is multiplied alone, by one matrix, where channels come first in what
    the first ``images`` arguments are.

    torch's convolution of bfloat16 takes two to seven times as long as this product, unless the
    channels are last.
    """
    read = op.fx_node.args[:images] if op.fx_node is not None else ()
    alone = all(k == 1 for k in weight.dims[2:]) and {*how["stride"], how["groups"]} == {1}
    fixed = all(isinstance(n, int) for n in (*input.dims[1:], *weight.dims))
    if not alone or any(how["padding"]) or not fixed or not read:
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


def _convolution_backward(
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
) -> tuple[Value | None, ...]:
    how = _windows(weight.rank - 2, stride, padding, dilation, output_padding, groups)
    if not transposed and _is_product(op, input, weight, how, images=2):
        return _gradients_of_pixels(op, grad_output, input, weight, output_mask)
    how |= {"transposed": int(transposed), "domain": OWN_DOMAIN, "outputs": 3}
    results = op.call("convolution_backward", grad_output, input, weight, **how)
    return tuple([r if asked else None for r, asked in zip(results, output_mask, strict=True)])


_KERNELS: Mapping[str, Converter] = {
    f"aten::{name}": make_converter(f"aten::{name}", function, when)
    for name, function, when in (
        ("mm", _product("mm"), _of_numbers),
        ("bmm", _product("bmm"), _of_numbers),
        ("addmm", _added_product("addmm"), _of_numbers),
        ("baddbmm", _added_product("baddbmm"), _of_numbers),
        (_FLASH, _attention, _takes_attention),
        (f"{_FLASH}_backward", _attention_backward, _takes_attention),
        ("convolution", _convolution, _takes_convolution),
        ("convolution_backward", _convolution_backward, _takes_convolution),
    )
}
