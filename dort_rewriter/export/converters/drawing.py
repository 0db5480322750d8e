"""Random numbers drawn by ONNX Runtime: for files, which have no torch beside them.

NOTE: they do not follow ``torch.manual_seed``. A backend of ``torch.compile`` leaves random
operators to torch; only ``to_onnx`` asks for these.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value


def _place(op: Recorder, given: Arguments) -> Value:
    """A tensor of the size of the result: the operators that draw into any size take one."""
    return given.x if hasattr(given, "x") else op.ConstantOfShape(op.vector(given.size))


def _uniform(op: Recorder, like: Value, low: float = 0.0, high: float = 1.0) -> Value:
    drawn = op.RandomUniformLike(like, dtype=ir.DataType.FLOAT, low=float(low), high=float(high))
    return op.cast(drawn, op.dtype)


def _normal(op: Recorder, like: Value, mean: Any = 0.0, std: Any = 1.0) -> Value:
    drawn = op.RandomNormalLike(like, dtype=ir.DataType.FLOAT)
    return op.cast(op.Add(op.Mul(drawn, std), mean), op.dtype)


@converter("aten::rand", "aten::rand_like")
@by_name
def rand(op: Recorder, given: Arguments) -> Value:
    """rand(SymInt[] size, *, ScalarType? dtype=None) -> Tensor"""
    return _uniform(op, _place(op, given))


@converter("aten::randn", "aten::randn_like")
@by_name
def randn(op: Recorder, given: Arguments) -> Value:
    """randn(SymInt[] size, *, ScalarType? dtype=None) -> Tensor"""
    return _normal(op, _place(op, given))


@converter("prims::uniform")
@by_name
def uniform(op: Recorder, given: Arguments) -> Value:
    """uniform(SymInt[] shape, *, Scalar low, Scalar high, ScalarType dtype, Device device, SymInt[] stride, Generator? generator=None) -> Tensor"""
    if isinstance(given.low, Value) or isinstance(given.high, Value):
        raise Refused("its bounds are not known when it is exported")
    return _uniform(op, op.ConstantOfShape(op.vector(given.shape)), given.low, given.high)


@converter("prims::normal")
@by_name
def normal(op: Recorder, given: Arguments) -> Value:
    """normal(SymInt[] shape, *, Scalar mean, Scalar std, ScalarType dtype, Device device, bool requires_grad, Generator? generator=None) -> Tensor"""
    return _normal(op, op.ConstantOfShape(op.vector(given.shape)), given.mean, given.std)


@converter("aten::uniform")
def uniform_like(op: Recorder, x: Value, *bounds: float) -> Value:
    """uniform(Tensor self, float from=0, float to=1, *, Generator? generator=None) -> Tensor"""
    return _uniform(op, x, *bounds)


@converter("aten::normal_functional")
def normal_functional(op: Recorder, x: Value, mean: float = 0, std: float = 1) -> Value:
    """normal_functional(Tensor self, float mean=0, float std=1, *, Generator? generator=None) -> Tensor"""
    return _normal(op, x, mean, std)


@converter("aten::bernoulli", "aten::bernoulli.p")
def bernoulli(op: Recorder, x: Value, p: float | None = None) -> Value:
    """bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor"""
    share = op.cast(x, ir.DataType.FLOAT) if p is None else p
    return op.cast(op.Less(_between(op, x), share), op.dtype)


def _between(op: Recorder, like: Value) -> Value:
    """Numbers from 0 to 1, without 1, in float32."""
    return op.RandomUniformLike(like, dtype=ir.DataType.FLOAT)


@converter("aten::exponential")
def exponential(op: Recorder, x: Value, lambd: float = 1) -> Value:
    """exponential(Tensor self, float lambd=1, *, Generator? generator=None) -> Tensor"""
    return op.cast(op.Div(_waiting(op, x), lambd), op.dtype)


def _waiting(op: Recorder, like: Value) -> Value:
    return op.Neg(op.Log(op.Sub(1, _between(op, like))))


@converter("aten::geometric")
def geometric(op: Recorder, x: Value, p: float) -> Value:
    """geometric(Tensor self, float p, *, Generator? generator=None) -> Tensor"""
    trials = op.Ceil(op.Div(_waiting(op, x), -math.log1p(-p)))
    return op.cast(op.Max(trials, 1.0), op.dtype)


@converter("aten::cauchy")
def cauchy(op: Recorder, x: Value, median: float = 0, sigma: float = 1) -> Value:
    """cauchy(Tensor self, float median=0, float sigma=1, *, Generator? generator=None) -> Tensor"""
    angle = op.Mul(op.Sub(_between(op, x), 0.5), math.pi)
    return op.cast(op.Add(op.Mul(op.Tan(angle), sigma), median), op.dtype)


@converter("aten::log_normal")
def log_normal(op: Recorder, x: Value, mean: float = 1, std: float = 2) -> Value:
    """log_normal(Tensor self, float mean=1, float std=2, *, Generator? generator=None) -> Tensor"""
    drawn = op.RandomNormalLike(x, dtype=ir.DataType.FLOAT)
    return op.cast(op.Exp(op.Add(op.Mul(drawn, std), mean)), op.dtype)


@converter("aten::randint", "aten::randint.low", "aten::randint_like")
@by_name
def randint(op: Recorder, given: Arguments) -> Value:
    """randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=long) -> Tensor"""
    low, high, like = getattr(given, "low", 0), given.high, _place(op, given)
    if isinstance(low, Value) or isinstance(high, Value):
        raise Refused("its bounds are not known when it is exported")
    if high - low > 1 << 24:
        raise Refused("float32, in which ONNX draws, does not reach all integers of its range")
    drawn = op.RandomUniformLike(like, dtype=ir.DataType.FLOAT, low=float(low), high=float(high))
    # A number drawn next to `high` may be rounded to it.
    return op.cast(op.Min(op.Floor(drawn), float(high - 1)), op.dtype)


@converter("aten::randperm")
def randperm(op: Recorder, n: Any, *, dtype: Any = None) -> Value:
    """randperm(SymInt n, *, ScalarType? dtype=long) -> Tensor"""
    keys = _between(op, op.ConstantOfShape(op.vector([n])))
    return op.cast(op.TopK(keys, op.Shape(keys))[1], op.dtype)


@converter("aten::multinomial")
def multinomial(op: Recorder, x: Value, num_samples: Any, replacement: bool = False) -> Value:
    """multinomial(Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None) -> Tensor

    The largest of the logarithms of the weights, each plus a Gumbel number, is a draw with these
    weights; the k largest are k draws without replacement.
    """
    logits = op.Log(op.cast(x, ir.DataType.FLOAT))
    if not replacement:
        return op.TopK(_perturb(op, logits), op.vector([num_samples]))[1]
    rows = op.Unsqueeze(logits, [-2])
    size = [op.size(rows, i) for i in range(rows.rank)]
    repeated = op.Expand(rows, op.vector([*size[:-2], num_samples, size[-1]]))
    return op.ArgMax(_perturb(op, repeated), axis=-1, keepdims=0)


def _perturb(op: Recorder, logits: Value) -> Value:
    # NOTE: not 0, whose Gumbel number is minus infinity: all could be.
    draws = op.RandomUniformLike(logits, dtype=ir.DataType.FLOAT, low=1e-30, high=1.0)
    return op.Sub(logits, op.Log(op.Neg(op.Log(draws))))
