"""Greatest common divisors, by Euclid's algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.annotations import annotate
from dort_rewriter.export.converters.opmath import has_any
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.export.subgraphs import subgraph
from dort_rewriter.graph.values import Value


@converter("aten::gcd", "prims::gcd")
def gcd(op: Recorder, x: Value, other: Value) -> Value:
    """gcd(Tensor self, Tensor other) -> Tensor"""
    a, b = (_size(op, v) for v in (x, other))
    a, b = op.Add(a, op.Mul(b, 0)), op.Add(b, op.Mul(a, 0))  # of one shape
    assert op.fx_node is not None
    result: torch.Tensor = op.fx_node.meta["val"]
    meta = result.to(torch.int64)

    def step(inner: Recorder, given: Sequence[Value]) -> Sequence[Any]:
        divisor, number = given[2:]
        is_done = inner.Equal(divisor, 0)
        safe = inner.Where(is_done, 1, divisor)
        rest = inner.Sub(number, inner.Mul(inner.Div(number, safe), safe))
        return [has_any(inner, rest), rest, inner.Where(is_done, number, divisor)]

    body = subgraph(op, [0, True, meta, meta], step)
    found: tuple[Value, Value] = op.call("Loop", None, has_any(op, a), a, b, outputs=2, body=body)
    annotate(found[1], meta)
    return op.cast(found[1], op.dtype)


def _size(op: Recorder, x: Value) -> Value:
    """The size of each number, of int64; the lowest number of a type is its own, as in torch.

    NOTE: none of the divisions of Euclid's algorithm is that of the lowest number by -1, which
    would end the process: a divisor is no more than -1 after the first one.
    """
    size = op.Abs(op.cast(op.cast(x, op.dtype), ir.DataType.INT64))
    return op.cast(op.cast(size, op.dtype), ir.DataType.INT64)
