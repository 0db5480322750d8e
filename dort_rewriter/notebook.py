"""Pieces of HTML for notebooks: what ``_repr_html_`` of the objects of this package is made of."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["details", "heading", "table", "text"]

_CELL = "text-align:left;vertical-align:top;white-space:normal;overflow-wrap:anywhere"
_NUMBER = "text-align:right;vertical-align:top;white-space:nowrap"


def heading(title: str) -> str:
    """A line in bold."""
    return f"<p><b>{html.escape(title)}</b></p>"


def text(words: str) -> str:
    """A paragraph."""
    return f"<p>{html.escape(words)}</p>"


def table(rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Rows of cells; numbers stand to the right. An empty text where there are none."""
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if not lines:
        return ""
    names = "".join(f'<th style="{_CELL}">{html.escape(name)}</th>' for name in header)
    head = f"<thead><tr>{names}</tr></thead>" if names else ""
    return f"<table>{head}<tbody>{lines}</tbody></table>"


def details(title: str, content: str) -> str:
    """Something under a line that opens it."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
        return f'<td style="{_NUMBER}">{shown}</td>'
    return f'<td style="{_CELL}">{html.escape(str(value))}</td>'
