"""Arithmetic on sizes: Python's operators on symbolic numbers, exact on int64."""

from __future__ import annotations

from typing import Any

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.export.values import Value


@converter("aten::sym_size.int")
def sym_size(op: Recorder, x: Value, dim: int) -> Value:
    """sym_size.int(Tensor self, int dim) -> SymInt"""
    return op.Squeeze(op.vector([op.size(x, dim)]), [0])


@converter("_operator::mul")
def mul(op: Recorder, a: Any, b: Any) -> Value:
    """mul(a, b): the product of two numbers"""
    return op.Mul(a, b)


@converter("_operator::add")
def add(op: Recorder, a: Any, b: Any) -> Value:
    """add(a, b): the sum of two numbers"""
    return op.Add(a, b)
