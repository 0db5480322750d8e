"""An FX graph as a table, one line for each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_WIDEST = 60
"""Columns are cut there: the arguments of a concatenation may fill a page."""


def graph_table(graph_module: torch.fx.GraphModule) -> str:
    """The nodes of a graph: opcode, name, target, arguments, and what they give."""
    rows = [
        [
            node.op,
            node.name,
            _target(node.target),
            ", ".join(
                [*map(_text, node.args), *(f"{k}={_text(v)}" for k, v in node.kwargs.items())]
            ),
            _value(node.meta.get("val", node.meta.get("example_value"))),
        ]
        for node in graph_module.graph.nodes
    ]
    return text_table(["opcode", "name", "target", "args", "value"], rows)


def text_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of cells in columns, under a header and a rule; numbers stand to the right."""
    cells = [[_cut(str(c)) for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    numeric = [bool(rows) and all(_is_number(r[i]) for r in rows) for i in range(len(header))]
    lines = [
        "  ".join(
            c.rjust(w) if right else c.ljust(w)
            for c, w, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def cell(value: float | None, form: str) -> str:
    """A number in a form, ``-`` where there is none."""
    return "-" if value is None else format(value, form)


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or cell == ""


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    module = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", str(target))
    return f"{module.lstrip('_')}.{name}" if module else name


def _text(argument: Any) -> str:
    if isinstance(argument, list | tuple):
        inside = ", ".join(_text(a) for a in argument)
        return f"[{inside}]" if isinstance(argument, list) else f"({inside})"
    return str(argument)


def _value(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        shape = ", ".join(str(d) for d in value.shape)
        return f"{str(value.dtype).removeprefix('torch.')}[{shape}]"
    if isinstance(value, list | tuple):
        return f"({', '.join(_value(v) for v in value)})"
    return "" if value is None else type(value).__name__
