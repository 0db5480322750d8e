"""Elementwise arithmetic."""

from __future__ import annotations

from typing import Any

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.export.values import Value


def _same_as(onnx_op: str, *names: str) -> None:
    """Register operators that are one ONNX operator with the same inputs."""

    def convert(op: Recorder, *args: Any) -> Value:
        return op.call(onnx_op, *args)

    converter(*names)(convert)


for _onnx_op, _names in {
    "Exp": ("aten::exp",),
    "Log": ("aten::log",),
    "Neg": ("aten::neg",),
    "Relu": ("aten::relu",),
    "Reciprocal": ("aten::reciprocal",),
    "Sigmoid": ("aten::sigmoid",),
    "Sqrt": ("aten::sqrt",),
    "Tanh": ("aten::tanh",),
    "Cos": ("aten::cos",),
    "Sin": ("aten::sin",),
    "Mul": ("aten::mul.Tensor", "aten::mul.Scalar"),
}.items():
    _same_as(_onnx_op, *_names)


@converter("aten::add.Tensor", "aten::add.Scalar")
def add(op: Recorder, x: Value, other: Any, alpha: Any = 1) -> Value:
    """add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return op.Add(x, other if alpha == 1 else op.Mul(other, alpha))


@converter("aten::sub.Tensor", "aten::sub.Scalar")
def sub(op: Recorder, x: Value, other: Any, alpha: Any = 1) -> Value:
    """sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"""
    return op.Sub(x, other if alpha == 1 else op.Mul(other, alpha))


@converter("aten::div.Tensor", "aten::div.Scalar")
def div(op: Recorder, x: Value, other: Any) -> Value:
    """div.Tensor(Tensor self, Tensor other) -> Tensor"""
    return op.Div(x, other)
