"""A comparison of exporters as text and as an HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from dort_rewriter.tools.graph_table import text_table

__all__ = ["comparison_html", "comparison_text"]

Data = Mapping[str, Any]


def comparison_text(data: Data) -> str:
    """A comparison, as :meth:`Comparison.to_dict` gives it, as tables of text."""
    parts = [
        f"{data['model']}, eager: {_eager(data)}",
        text_table(*_summary(data)),
        *([text_table(*table)] if (table := _nodes(data))[1] else []),
    ]
    parts.extend(f"{name} {text}" for name, text in _remarks(data))
    return "\n\n".join(parts)


def comparison_html(data: Data) -> str:
    """A comparison as a page of its own."""
    title = html.escape(f"{data['model']}: exporters compared")
    remarks = "".join(
        f"<p><b>{html.escape(name)}</b> {html.escape(text)}</p>\n" for name, text in _remarks(data)
    )
    table = _nodes(data)
    nodes = f"<h2>Nodes by type</h2>\n{_table(*table)}" if table[1] else ""
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{_STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        f"<p>Eager: {_eager(data)}.</p>\n"
        f"{_table(*_summary(data))}{remarks}{nodes}"
        "</body></html>\n"
    )


def _eager(data: Data) -> str:
    away = data["eager_difference"]
    rounding = "" if away is None else f", {away:.1e} from float64"
    return f"{data['eager_milliseconds']:.3g} ms a run{rounding}"


def _remarks(data: Data) -> list[tuple[str, str]]:
    """What failed or differs, by exporter; a reason that several have is given once."""
    found: dict[str, list[str]] = {}
    for result in data["results"]:
        if result["error"]:
            found.setdefault(f"failed: {result['error']}", []).append(result["exporter"])
        elif (judgment := result["judgment"]) is not None:
            parts = [f"differs, by the {judgment['fault']}: {judgment['reason']}"]
            parts += [f"First at {judgment['node']}."] if judgment["node"] else []
            parts += [judgment["line"]] if judgment["line"] else []
            found.setdefault(" ".join(parts), []).append(result["exporter"])
        for other in result["elsewhere"]:
            said = f"on {other['runtime']}: "
            if other["error"]:
                said += other["error"]
            elif other["agrees"]:
                said += "as eager mode"
            else:
                said += f"differs from eager mode by {other['max_difference']:.1e}"
            found.setdefault(said, []).append(result["exporter"])
    return [(", ".join(names), text) for text, names in found.items()]


_STYLE = (
    "body{font-family:sans-serif;margin:2em;color:#1f2529;background:#fff}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.25em .8em;border-bottom:1px solid #ccc;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
)

_COLUMNS = (
    *("exporter", "nodes", "opset", "kB", "export s", "run ms"),
    *("max difference", "to float64", "agrees"),
)


def _summary(data: Data) -> tuple[Sequence[str], list[list[str]]]:
    return _COLUMNS, [
        [
            r["exporter"],
            str(sum(r["nodes"].values())) if r["nodes"] else "-",
            _cell(r["opset"], "d"),
            "-" if r["bytes"] is None else f"{r['bytes'] / 1000:.0f}",
            _cell(r["export_seconds"], ".2f"),
            _cell(r["run_milliseconds"], ".3g"),
            _cell(r["max_difference"], ".1e"),
            _cell(r["exact_difference"], ".1e"),
            "-" if r["agrees"] is None else "yes" if r["agrees"] else "NO",
        ]
        for r in data["results"]
    ]


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _nodes(data: Data) -> tuple[Sequence[str], list[list[Any]]]:
    """The nodes by type, the most frequent first, an exporter a column."""
    results = [r for r in data["results"] if r["nodes"]]
    totals: dict[str, int] = {}
    for result in results:
        for op, count in result["nodes"].items():
            totals[op] = totals.get(op, 0) + count
    ops = sorted(totals, key=lambda op: (-totals[op], op))
    return ["node", *(r["exporter"] for r in results)], [
        [op, *(r["nodes"].get(op, "") for r in results)] for op in ops
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any], tag: str) -> str:
        inside = "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells)
        return f"<tr>{inside}</tr>\n"

    return f"<table>\n{line(header, 'th')}{''.join(line(r, 'td') for r in rows)}</table>\n"
