"""Several tensors into one."""

from __future__ import annotations

from collections.abc import Sequence

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value


@converter("aten::cat")
def cat(op: Recorder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """cat(Tensor[] tensors, int dim=0) -> Tensor

    torch lets a 1-D tensor without elements stand beside tensors of any rank: it adds nothing.
    """
    full = [t for t in tensors if list(t.dims) != [0]] or list(tensors[:1])
    parts = [op.cast(t, op.dtype) for t in full]
    axis = dim % parts[0].rank
    with_elements = [p for p in parts if p.dims[axis] != 0] or parts[:1]
    return op.Concat(*with_elements, axis=axis)


@converter("aten::stack")
def stack(op: Recorder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """stack(Tensor[] tensors, int dim=0) -> Tensor"""
    axis = dim % (tensors[0].rank + 1)
    parts = [op.Unsqueeze(op.cast(t, op.dtype), [axis]) for t in tensors]
    return op.Concat(*parts, axis=axis)
