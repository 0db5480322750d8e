"""Arithmetic of complex numbers, which takes the pairs apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.complex_numbers.pairs import Complex, join, pairs_of, parts_of
from dort_rewriter.export.converters.axes import broadcast_sizes
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, builtin_converters
from dort_rewriter.graph.values import Value

__all__ = ["ARITHMETIC"]


def _add(op: Recorder, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return op.Add(pairs_of(op, x, op.dtype), _scaled(op, y, alpha))


def _sub(op: Recorder, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return op.Sub(pairs_of(op, x, op.dtype), _scaled(op, y, alpha))


def _scaled(op: Recorder, x: Any, alpha: Any) -> Value:
    pairs = pairs_of(op, x, op.dtype)
    if not isinstance(alpha, int | float):
        raise Refused("with a factor that is complex or computed")
    return pairs if alpha == 1 else op.Mul(pairs, op.constant(alpha, op.dtype))


def _mul(op: Recorder, x: Any, y: Any) -> Value:
    """NOTE: a real factor has an imaginary part of zero, which makes nan of inf, as in torch."""
    (a, b), (c, d) = (parts_of(op, pairs_of(op, v, op.dtype)) for v in (x, y))
    return join(op, a * c - b * d, a * d + b * c)


def _product(op: Recorder, x: Any, y: Any) -> Value:
    (a, b), (c, d) = (parts_of(op, pairs_of(op, v, op.dtype)) for v in (x, y))
    return join(op, a @ c - b @ d, a @ d + b @ c)


def _added_product(
    op: Recorder, x: Any, y: Any, z: Any, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    if alpha != 1 or beta != 1:
        raise Refused("with factors")
    return op.Add(pairs_of(op, x, op.dtype), _product(op, y, z))


def _conj(op: Recorder, x: Any) -> Value:
    return op.Mul(pairs_of(op, x, op.dtype), op.constant([1, -1], op.dtype))


def _real(op: Recorder, x: Any) -> Value:
    return parts_of(op, x.pairs)[0] if isinstance(x, Complex) else x


def _imag(op: Recorder, x: Complex) -> Value:
    return parts_of(op, x.pairs)[1]


def _as_real(op: Recorder, x: Complex) -> Value:
    return x.pairs


def _as_complex(op: Recorder, x: Value) -> Value:
    return x


def _to_copy(op: Recorder, x: Any, *, dtype: Any = None) -> Value:
    result = op.result
    if not result.is_complex():
        return op.cast(_real(op, x), op.dtype)
    return pairs_of(op, x, op.dtype)


def _convert(op: Recorder, x: Any, dtype: Any) -> Value:
    return _to_copy(op, x)


def _of_parts(op: Recorder, real: Value, imaginary: Value) -> Value:
    sizes = op.vector(broadcast_sizes(op, (real, imaginary)))
    return join(op, op.Expand(real, sizes), op.Expand(imaginary, sizes))


def _polar(op: Recorder, length: Value, angle: Value) -> Value:
    return join(op, length * op.Cos(angle), length * op.Sin(angle))


def _abs(op: Recorder, x: Complex) -> Value:
    return builtin_converters()["aten::hypot"].function(op, *parts_of(op, x.pairs))


def _angle(op: Recorder, x: Complex) -> Value:
    real, imaginary = parts_of(op, x.pairs)
    return builtin_converters()["aten::atan2"].function(op, imaginary, real)


def _sgn(op: Recorder, x: Complex) -> Value:
    length = op.Unsqueeze(_abs(op, x), [x.rank])
    return op.Where(op.Equal(length, 0.0), 0.0, x.pairs / length)


def _where(op: Recorder, condition: Value, x: Any, y: Any) -> Value:
    chosen = op.Unsqueeze(op.cast(condition, ir.DataType.BOOL), [condition.rank])
    return op.Where(chosen, pairs_of(op, x, op.dtype), pairs_of(op, y, op.dtype))


def _masked_fill(op: Recorder, x: Any, mask: Value, value: Any) -> Value:
    return _where(op, mask, value, x)


def _sum(op: Recorder, x: Complex) -> Value:
    return op.ReduceSum(x.pairs, list(range(x.rank)), keepdims=0) if x.rank else x.pairs


def _mean(op: Recorder, x: Complex) -> Value:
    return op.ReduceMean(x.pairs, list(range(x.rank)), keepdims=0) if x.rank else x.pairs


def _sym_numel(op: Recorder, x: Complex) -> Value:
    return op.Div(op.Size(x.pairs), 2)


def _sym_stride(op: Recorder, x: Complex, dim: int) -> Value:
    stride = builtin_converters()["aten::sym_stride.int"]
    assert op.fx_node is not None
    if (reason := stride.refusal(op.fx_node)) is not None:
        raise Refused(reason)
    return op.Div(stride.function(op, x.pairs, dim % x.rank), 2)


def _t(op: Recorder, x: Complex) -> Value:
    return op.Transpose(x.pairs, perm=[1, 0, 2]) if x.rank == 2 else x.pairs


ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("aten::_conj", "aten::_conj_physical", "aten::conj_physical"), _conj),
    **dict.fromkeys(("aten::add.Tensor", "aten::add.Scalar"), _add),
    **dict.fromkeys(("aten::sub.Tensor", "aten::sub.Scalar"), _sub),
    **dict.fromkeys(("aten::mul.Tensor", "aten::mul.Scalar"), _mul),
    **dict.fromkeys(("aten::mm", "aten::bmm"), _product),
    **dict.fromkeys(("aten::masked_fill.Scalar", "aten::masked_fill.Tensor"), _masked_fill),
    "aten::_to_copy": _to_copy,
    "aten::abs": _abs,
    "aten::addmm": _added_product,
    "aten::angle": _angle,
    "aten::complex": _of_parts,
    "aten::imag": _imag,
    "aten::mean": _mean,
    "aten::polar": _polar,
    "aten::real": _real,
    "aten::sgn": _sgn,
    "aten::sum": _sum,
    "aten::sym_numel": _sym_numel,
    "aten::sym_stride.int": _sym_stride,
    "aten::t": _t,
    "aten::view_as_complex": _as_complex,
    "aten::view_as_real": _as_real,
    "aten::where.self": _where,
    "prims::convert_element_type": _convert,
}
