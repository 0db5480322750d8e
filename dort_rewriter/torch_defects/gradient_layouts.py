"""Gradients of results whose elements are one in memory: those of ``unfold``.

AOTAutograd copies the gradient of a result to memory that lies as the result does. Where elements
overlap there, one of them stays: torch sees that for ``expand`` alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from dort_rewriter.aten import overlapping
from dort_rewriter.torch_defects.defect import Defect

DEFECT = Defect(
    operators="unfold, and other results whose elements overlap in memory",
    effect=(
        "The gradient of such a result is copied to memory that overlaps too: one of the "
        "elements stays."
    ),
    seen_in=("2.13",),
    remedy="AOTAutograd's metadata of the compilation is corrected",
    upstream="`reports/gradient_layouts.md`; pytorch#184519 fixed it for `expand`",
)


def keep_gradients_apart(metadata: Any) -> None:
    """Let each element of a gradient have a place of its own.

    ``metadata`` is AOTAutograd's of the graph under compilation, or None.
    """
    for given in getattr(metadata, "subclass_tangent_meta", None) or ():
        layout: Any = getattr(given, "memory_format", None)
        size, stride = getattr(layout, "size", None), getattr(layout, "stride", None)
        if size is None or stride is None or not overlapping(size, stride):
            continue
        given.memory_format = dataclasses.replace(
            layout, size=None, stride=None, memory_format=torch.contiguous_format
        )


def present() -> bool:
    """Whether a gradient of what overlaps is another one than eager mode's."""
    found = []
    for function in (_pairs, torch.compile(_pairs, backend="aot_eager")):
        x = torch.zeros(4, requires_grad=True)
        (grad,) = torch.autograd.grad(function(x), x, torch.arange(6.0).view(3, 2))
        found.append(grad)
    return not torch.equal(*found)


def _pairs(x: torch.Tensor) -> torch.Tensor:
    return (x * 1).unfold(0, 2, 1)
