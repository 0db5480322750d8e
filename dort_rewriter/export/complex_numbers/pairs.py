"""Complex tensors as values of a model: pairs of reals, along a last dimension of two."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused
from dort_rewriter.graph.values import Value

__all__ = ["Complex", "has_complex", "is_complex", "join", "pairs_of", "parts_of"]


class Complex(NamedTuple):
    """The pairs that stand for a complex tensor."""

    pairs: Value

    @property
    def rank(self) -> int:
        """How many dimensions the complex tensor has."""
        return self.pairs.rank - 1


def has_complex(node: torch.fx.Node) -> bool:
    """Whether a node reads or makes complex tensors."""
    return any(is_complex(n.meta.get("val")) for n in (node, *node.all_input_nodes))


def is_complex(meta: Any) -> bool:
    """Whether a (fake) result has complex tensors."""
    if isinstance(meta, list | tuple):
        return any(map(is_complex, meta))
    return isinstance(meta, torch.Tensor) and meta.is_complex()


def pairs_of(op: Recorder, x: Any, dtype: ir.DataType) -> Value:
    """A complex tensor, a tensor of reals or a number as pairs."""
    if isinstance(x, Complex):
        return op.cast(x.pairs, dtype)
    if isinstance(x, Value):
        reals = op.Unsqueeze(op.cast(x, dtype), [x.rank])
        return op.Concat(reals, op.Expand(op.constant(0, dtype), op.sizes(reals)), axis=-1)
    if isinstance(x, complex | float | int):
        return op.constant([complex(x).real, complex(x).imag], dtype)
    raise Refused(f"beside a {type(x).__name__}")


def parts_of(op: Recorder, pairs: Value) -> tuple[Value, Value]:
    """The real and the imaginary parts."""
    return op.Gather(pairs, 0, axis=-1), op.Gather(pairs, 1, axis=-1)


def join(op: Recorder, real: Value, imaginary: Value) -> Value:
    """Pairs of parts of the same sizes."""
    parts = (op.Unsqueeze(p, [p.rank]) for p in (real, imaginary))
    return op.Concat(*parts, axis=-1)
