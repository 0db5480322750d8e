"""torch's primitive operators, in which its full table of decompositions ends.

Most are an ATen operator under another name, and are converted as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dort_rewriter.export.converters.axes import reshape, result_dims
from dort_rewriter.export.converters.opmath import is_float
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import builtin_converters, converter
from dort_rewriter.graph.values import Value

_SAME_NAMES = (
    "abs acos acosh amax amin asin asinh as_strided_scatter atan atan2 atanh "
    "bitwise_not cat ceil clone cos cosh digamma empty_permuted empty_strided erf erfc exp exp2 "
    "expm1 floor fmax fmin full full_like hypot lgamma log log10 log1p log2 maximum minimum neg "
    "reciprocal round rsqrt scalar_tensor sign signbit sin sinh sqrt tan tanh trunc"
)

_TENSOR_OVERLOADS = (
    "add bitwise_and bitwise_or bitwise_xor eq fmod ge gt le lt mul ne remainder sub"
)

_OTHER_NAMES = {
    "bessel_i0": "i0",
    "bessel_i0e": "special_i0e",
    "bessel_i1": "special_i1",
    "bessel_i1e": "special_i1e",
    "bessel_j0": "special_bessel_j0",
    "bessel_j1": "special_bessel_j1",
    "empty": "empty.memory_format",
    "erf_inv": "erfinv",
    "erfcx": "special_erfcx",
    "fill": "fill.Scalar",
    "frexp": "frexp.Tensor",
    "ndtri": "special_ndtri",
    "reshape": "view",
    "rev": "flip",
    "shift_left": "bitwise_left_shift.Tensor",
    "shift_right_arithmetic": "bitwise_right_shift.Tensor",
    "spherical_bessel_j0": "special_spherical_bessel_j0",
    "squeeze": "squeeze.dims",
    "transpose": "permute",
    "where": "where.self",
}

ATEN_NAMES = {
    **{name: name for name in _SAME_NAMES.split()},
    **{name: f"{name}.Tensor" for name in _TENSOR_OVERLOADS.split()},
    **_OTHER_NAMES,
}
"""Primitive operators, and the ATen operators that take the same arguments in the same order."""


def _aten(name: str) -> Callable[..., Any]:
    """The converter of an ATen operator, looked up late: its module may not be imported yet."""
    return builtin_converters()[f"aten::{name}"].function


def _register(prim: str, aten: str) -> None:
    def convert(op: Recorder, *args: Any, **kwargs: Any) -> Any:
        kwargs = {k: v for k, v in kwargs.items() if k in ("correction", "dtype")}
        return _aten(aten)(op, *args, **kwargs)

    converter(f"prims::{prim}")(convert)


for _prim, _name in ATEN_NAMES.items():
    _register(_prim, _name)


@converter("prims::div")
def div(op: Recorder, x: Value, other: Value) -> Value:
    """div(Tensor self, Tensor other) -> Tensor

    Integers are divided as C does, which is what ONNX does too.
    """
    return op.Div(x, other)


@converter("prims::pow")
def pow_(op: Recorder, x: Any, other: Any) -> Value:
    """pow(Tensor self, Tensor other) -> Tensor

    A number is a constant power, which is more exact than one of a tensor.
    """
    overload = "Tensor_Tensor" if isinstance(other, Value) else "Tensor_Scalar"
    result: Value = _aten(f"pow.{overload}")(op, x, other)
    return result


@converter("prims::device_put")
def device_put(op: Recorder, a: Value, device: Any, non_blocking: bool = False) -> Value:
    """device_put(Tensor a, Device device, bool non_blocking=False) -> Tensor"""
    return a


@converter("prims::iota")
def iota(
    op: Recorder, length: Any, *, start: Any, step: Any, dtype: Any, requires_grad: bool = False
) -> Value:
    """iota(SymInt length, *, SymInt start, SymInt step, ScalarType dtype, Device device, bool requires_grad) -> Tensor"""
    if all(isinstance(n, int) for n in (length, start, step)):
        return op.constant([start + i * step for i in range(length)], dtype)
    count = op.Range(0, _rank_0(op, length), 1)
    return op.cast(op.Add(op.Mul(count, _rank_0(op, step)), _rank_0(op, start)), dtype)


def _rank_0(op: Recorder, number: Any) -> Any:
    return op.Reshape(number, []) if isinstance(number, Value) and number.rank else number


@converter("prims::broadcast_in_dim")
def broadcast_in_dim(
    op: Recorder, a: Value, shape: Sequence[Any], broadcast_dimensions: Sequence[int]
) -> Value:
    """broadcast_in_dim(Tensor(a) a, SymInt[] shape, int[] broadcast_dimensions) -> Tensor(a)"""
    new = [i for i in range(len(shape)) if i not in broadcast_dimensions]
    placed = op.Unsqueeze(a, new) if new else a
    return _aten("expand")(op, placed, shape)


@converter("prims::collapse", "prims::collapse_view")
def collapse(op: Recorder, a: Value, start: int, end: int) -> Value:
    """collapse(Tensor a, int start, int end) -> Tensor"""
    sizes = [op.size(a, i) for i in range(a.rank)]
    merged = math.prod(sizes[start : end + 1]) if _are_known(sizes) else -1
    return reshape(op, a, result_dims(op), [*sizes[:start], merged, *sizes[end + 1 :]])


@converter("prims::split_dim")
def split_dim(op: Recorder, a: Value, dim: int, outer_length: Any) -> Value:
    """split_dim(Tensor(a) a, int dim, SymInt outer_length) -> Tensor(a)"""
    sizes = [op.size(a, i) for i in range(a.rank)]
    inner = sizes[dim] // outer_length if _are_known([sizes[dim], outer_length]) else -1
    return reshape(op, a, result_dims(op), [*sizes[:dim], outer_length, inner, *sizes[dim + 1 :]])


def _are_known(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) for size in sizes)


@converter("prims::sum")
def sum_(
    op: Recorder, inp: Value, dims: Sequence[int] | None, *, output_dtype: Any = None
) -> Value:
    """sum(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    return _aten("sum.dim_IntList")(op, inp, dims, dtype=op.dtype)


@converter("prims::prod")
def prod(
    op: Recorder, inp: Value, dims: Sequence[int] | None, *, output_dtype: Any = None
) -> Value:
    """prod(Tensor inp, int[]? dims, *, ScalarType? output_dtype=None) -> Tensor"""
    result = inp
    for dim in sorted((d % inp.rank for d in dims or range(inp.rank)), reverse=True):
        result = _aten("prod.dim_int")(op, result, dim, dtype=op.dtype)
    return op.cast(result, op.dtype)


@converter("prims::var")
def var(
    op: Recorder,
    inp: Value,
    dims: Sequence[int] | None,
    correction: float | None = 1,
    *,
    output_dtype: Any = None,
) -> Value:
    """var(Tensor inp, int[]? dims, float? correction=1, *, ScalarType? output_dtype=None) -> Tensor"""
    return _aten("var.correction")(op, inp, dims, correction=correction)


@converter("prims::isfinite")
def isfinite(op: Recorder, x: Value) -> Value:
    """isfinite(Tensor self) -> Tensor"""
    if not is_float(x):
        return op.Equal(x, x)
    return op.Not(op.Or(op.IsNaN(x), op.IsInf(x)))


@converter("prims::cbrt")
def cbrt(op: Recorder, x: Value) -> Value:
    """cbrt(Tensor self) -> Tensor"""
    return op.Mul(op.Sign(x), op.Pow(op.Abs(x), 1 / 3))
