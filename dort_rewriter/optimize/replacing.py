"""A value in the place of another: read by those who read it, and known by its name."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["take_name", "take_place"]


def take_place(old: ir.Value, new: ir.Value) -> None:
    """Let all who read a value read another, which is like it; outputs of the model too."""
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    take_name(old, new)


def take_name(old: ir.Value, new: ir.Value) -> None:
    """Let a value be known by the name of the one in whose place it is."""
    old.name, new.name = f"{old.name}_replaced", old.name
