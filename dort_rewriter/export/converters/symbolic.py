"""Arithmetic on sizes and on Python's numbers: exact, with Python's rounding.

Integers are int64, floats float64, truth values bool, all of rank 0. An operation on a float is done
in float64; one on truth values counts them as integers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from dort_rewriter.aten import is_contiguous
from dort_rewriter.export.converters.division import floor_quotient, floor_remainder, truncate
from dort_rewriter.export.converters.opmath import is_bool, is_float
from dort_rewriter.export.converters.powers import integer_power
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.graph.values import Value

_D = ir.DataType


def _promote(op: Recorder, *numbers: Any) -> list[Any]:
    """Numbers in one type: float64 when one is a float, int64 otherwise."""
    dtype = _D.DOUBLE if any(is_float(n) for n in numbers) else _D.INT64
    return [op.cast(n, dtype) for n in numbers]


def are_natural(op: Recorder, *positions: int) -> bool:
    """Whether arguments of the FX node are known not to be negative."""
    given = [op.fx_node.args[i] for i in positions]
    values: list[Any] = [g.meta["val"] if isinstance(g, torch.fx.Node) else g for g in given]
    return all(statically_known_true(v >= 0) for v in values)


# -- sizes of tensors --------------------------------------------------------------------------


@converter("aten::sym_size.int")
def sym_size(op: Recorder, x: Value, dim: int) -> Value:
    """sym_size.int(Tensor self, int dim) -> SymInt"""
    return op.Squeeze(op.vector([op.size(x, dim)]), [0])


@converter("aten::sym_numel")
def sym_numel(op: Recorder, x: Value) -> Value:
    """sym_numel(Tensor self) -> SymInt"""
    return op.Size(x)


def _is_contiguous(node: torch.fx.Node) -> bool:
    """the tensor is not contiguous"""
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    return is_contiguous(source.meta["val"])


@converter("aten::sym_stride.int", when=_is_contiguous)
def sym_stride(op: Recorder, x: Value, dim: int) -> Value:
    """sym_stride.int(Tensor self, int dim) -> SymInt"""
    after = [op.size(x, axis) for axis in range(dim % x.rank + 1, x.rank)]
    factors = [op.Squeeze(op.vector([size]), [0]) for size in after]
    return functools.reduce(lambda a, b: op.Mul(a, b), factors, op.cast(1, _D.INT64))


# -- arithmetic --------------------------------------------------------------------------------


def _promoted(onnx_op: str) -> Callable[..., Value]:
    """The converter of what one operator of ONNX makes of numbers of one type."""

    def convert(op: Recorder, *numbers: Any) -> Value:
        return op.call(onnx_op, *_promote(op, *numbers))

    return convert


for _names, _onnx_op in {
    "_operator::add": "Add",
    "_operator::sub": "Sub",
    "_operator::mul": "Mul",
    "_operator::neg": "Neg",
    "_operator::abs builtins::abs": "Abs",
    "_operator::eq": "Equal",
    "_operator::lt": "Less",
    "_operator::le": "LessOrEqual",
    "_operator::gt": "Greater",
    "_operator::ge": "GreaterOrEqual",
    "torch::sym_max builtins::max": "Max",
    "torch::sym_min builtins::min": "Min",
}.items():
    converter(*_names.split())(_promoted(_onnx_op))


@converter("torch::sym_sum")
def sym_sum(op: Recorder, args: Any) -> Value:
    """sym_sum(args): the sum of several numbers"""
    return functools.reduce(lambda a, b: op.Add(a, b), _promote(op, *args))


@converter("_operator::pos")
def pos(op: Recorder, a: Any) -> Value:
    """pos(a): the number itself"""
    return op.cast(a, op.dtype)


@converter("_operator::floordiv")
def floordiv(op: Recorder, a: Any, b: Any) -> Value:
    """floordiv(a, b): the quotient, rounded down"""
    x, y = _promote(op, a, b)
    if not is_float(x) and are_natural(op, 0, 1):
        return op.Div(x, y)
    return floor_quotient(op, x, y)


@converter("_operator::truediv")
def truediv(op: Recorder, a: Any, b: Any) -> Value:
    """truediv(a, b): the quotient, a float"""
    return op.Div(op.cast(a, _D.DOUBLE), op.cast(b, _D.DOUBLE))


@converter("_operator::mod")
def mod(op: Recorder, a: Any, b: Any) -> Value:
    """mod(a, b): the remainder, of the sign of b"""
    return floor_remainder(op, *_promote(op, a, b))


@converter("_operator::pow")
def pow_(op: Recorder, a: Any, b: Any) -> Value:
    """pow(a, b): a to the power of b"""
    if op.dtype == _D.DOUBLE:
        return op.Pow(op.cast(a, _D.DOUBLE), op.cast(b, _D.DOUBLE))
    return integer_power(op, op.cast(a, _D.INT64), b)


# -- comparisons and logic ---------------------------------------------------------------------


@converter("_operator::ne")
def ne(op: Recorder, a: Any, b: Any) -> Value:
    """ne(a, b): whether two numbers differ"""
    return op.Not(op.Equal(*_promote(op, a, b)))


def _logic(name: str) -> Callable[..., Value]:
    def convert(op: Recorder, a: Any, b: Any) -> Value:
        if is_bool(a) and is_bool(b):
            return op.call(name, a, b)
        return op.call(f"Bitwise{name}", *_promote(op, a, b))

    return convert


for _name, _onnx_op in {"and_": "And", "or_": "Or", "xor": "Xor"}.items():
    converter(f"_operator::{_name}")(_logic(_onnx_op))


@converter("torch::sym_not", "_operator::not_")
def not_(op: Recorder, a: Any) -> Value:
    """sym_not(a): the contrary of a truth value"""
    return op.Not(op.cast(a, _D.BOOL))


@converter("torch::sym_ite")
def sym_ite(op: Recorder, b: Any, t: Any, f: Any) -> Value:
    """sym_ite(b, t, f): t if b else f"""
    return op.Where(op.cast(b, _D.BOOL), *_promote(op, t, f))


# -- conversions and functions of floats -------------------------------------------------------


@converter("torch::sym_float", "builtins::float")
def sym_float(op: Recorder, a: Any) -> Value:
    """sym_float(a): the number as a float"""
    return op.cast(a, _D.DOUBLE)


@converter("torch::sym_int", "builtins::int", "math::trunc")
def sym_int(op: Recorder, a: Any) -> Value:
    """sym_int(a): the number without its decimals"""
    if is_float(a):
        a = truncate(op, op.cast(a, _D.DOUBLE))
    return op.cast(a, _D.INT64)


def _rounded(onnx_op: str) -> Callable[..., Value]:
    def convert(op: Recorder, a: Any) -> Value:
        rounded = op.call(onnx_op, op.cast(a, _D.DOUBLE)) if is_float(a) else a
        return op.cast(rounded, _D.INT64)

    return convert


converter("math::floor")(_rounded("Floor"))
converter("math::ceil")(_rounded("Ceil"))


@converter("builtins::round")
def round_(op: Recorder, number: Any, ndigits: int | None = None) -> Value:
    """round(number, ndigits=None): the nearest, halves to even"""
    if ndigits is not None:
        raise Refused("a number of digits: Python rounds it through text")
    return _rounded("Round")(op, number)


def _of_float(onnx_op: str) -> Callable[..., Value]:
    def convert(op: Recorder, a: Any) -> Value:
        return op.call(onnx_op, op.cast(a, _D.DOUBLE))

    return convert


for _name in "Sqrt Cos Sin Tan Cosh Sinh Tanh Acos Asin Atan Log Exp".split():
    converter(f"math::{_name.lower()}", f"torch::_sym_{_name.lower()}")(_of_float(_name))
