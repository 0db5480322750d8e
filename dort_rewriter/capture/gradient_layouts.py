"""Gradients of results whose elements are one in memory: those of ``unfold``.

AOTAutograd copies the gradient of a result to memory that lies as the result does. Where elements
overlap there, one of them stays: torch sees that for ``expand`` alone.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from dort_rewriter.capture.layouts import overlapping
from dort_rewriter.capture.stages import metadata_of_compilation

__all__ = ["keep_gradients_apart"]


def keep_gradients_apart() -> None:
    """Let each element of a gradient of the graph under compilation have a place."""
    metadata = metadata_of_compilation()
    for given in getattr(metadata, "subclass_tangent_meta", None) or ():
        layout: Any = getattr(given, "memory_format", None)
        size, stride = getattr(layout, "size", None), getattr(layout, "stride", None)
        if size is None or stride is None or not overlapping(size, stride):
            continue
        given.memory_format = dataclasses.replace(
            layout, size=None, stride=None, memory_format=torch.contiguous_format
        )
