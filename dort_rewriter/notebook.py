"""HTML: what ``_repr_html_`` of the objects of this package is made of, and pages of their own."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_CELL = "text-align:left;vertical-align:top;white-space:normal;overflow-wrap:anywhere"
_NUMBER = "text-align:right;vertical-align:top;white-space:nowrap"

_STYLE = """
body{font-family:Helvetica,Arial,sans-serif;color:#1f2529;margin:2em auto;max-width:1100px}
html{background:#fff}
table{border-collapse:collapse}td,th{padding:4px 14px;border-bottom:1px solid #dde2e6}
td{text-align:right}td:first-child,th:first-child{text-align:left}
pre,.graph{overflow:auto;border:1px solid #dde2e6;padding:8px;max-height:80vh}
code{background:#f2f4f6;padding:1px 4px}body>svg{max-width:100%;height:auto}
@media(max-width:700px){body{margin:1em}table{font-size:12px}td,th{padding:4px}}
"""


def page(title: str, parts: Iterable[str], heading: str = "") -> str:
    """A page with a title, which is its heading unless there is another."""
    head = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
    )
    return "\n".join(
        [head, f"<h1>{html.escape(heading or title)}</h1>", *parts, "</body></html>\n"]
    )


def heading(title: str) -> str:
    """A line in bold."""
    return f"<p><b>{html.escape(title)}</b></p>"


def text(words: str, subject: str = "") -> str:
    """A paragraph; what it is about comes first, in bold."""
    about = f"<b>{html.escape(subject)}</b> " if subject else ""
    return f"<p>{about}{html.escape(words)}</p>"


def table(
    rows: Iterable[Sequence[object]], header: Sequence[str] = (), *, inline: bool = True
) -> str:
    """Rows of cells; an empty text where there are none.

    With ``inline`` each cell says how it stands, numbers to the right: a notebook has other rules.
    """
    lines = "".join(f"<tr>{''.join(_cell(c, inline) for c in row)}</tr>" for row in rows)
    if not lines:
        return ""
    names = "".join(_tag("th", _CELL if inline else "", name) for name in header)
    head = f"<thead><tr>{names}</tr></thead>" if names else ""
    return f"<table>{head}<tbody>{lines}</tbody></table>"


def details(title: str, content: str) -> str:
    """Something under a line that opens it."""
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def _cell(value: object, inline: bool) -> str:
    if inline and isinstance(value, int | float) and not isinstance(value, bool):
        return _tag("td", _NUMBER, f"{value:,}" if isinstance(value, int) else f"{value:,.3f}")
    return _tag("td", _CELL if inline else "", str(value))


def _tag(name: str, style: str, words: str) -> str:
    said = f' style="{style}"' if style else ""
    return f"<{name}{said}>{html.escape(words)}</{name}>"
