"""The page of the demonstration: curves, speed, and the graphs that were run."""

from __future__ import annotations

import html
from pathlib import Path

import torch

from dort_rewriter.tools.charts import bar_chart, line_chart
from dort_rewriter.tools.demo import DemoResult
from dort_rewriter.tools.dot import find_dot, plot_dot
from dort_rewriter.tools.onnx_text import pretty_onnx

__all__ = ["speed_rows", "write_page"]

STYLE = """
body{font-family:Helvetica,Arial,sans-serif;color:#1f2529;margin:2em auto;max-width:1100px}
html{background:#fff}
table{border-collapse:collapse}td,th{padding:4px 14px;border-bottom:1px solid #dde2e6}
td{text-align:right}td:first-child,th:first-child{text-align:left}
pre,.graph{overflow:auto;border:1px solid #dde2e6;padding:8px;max-height:80vh}
code{background:#f2f4f6;padding:1px 4px}
"""

COLUMNS = ("backend", "first step (s)", "step (ms)", "times eager", "loss, from eager")


def speed_rows(result: DemoResult) -> list[tuple[str, ...]]:
    """The rows of the speed table; more than one times eager is faster than eager."""
    rows: list[tuple[str, ...]] = []
    for c in result.competitors:
        if c.failure:
            rows.append((c.backend, "-", "-", "-", c.failure))
            continue
        gain = result.eager.usual / c.usual
        rows.append(
            (
                c.backend,
                f"{c.first:.2f}",
                f"{1000 * c.usual:.2f}",
                f"{gain:.2f}",
                f"{result.worst(c):.1e}",
            )
        )
    return rows


def write_page(result: DemoResult, path: Path) -> Path:
    """Write one HTML file with everything in it."""
    curves = {c.backend: c.losses for c in result.competitors if not c.failure}
    names = {"eager": "eager mode", "inductor": "Inductor"}
    others = [
        html.escape(names.get(c.backend, c.backend))
        for c in result.competitors
        if c.backend != "onnxrt"
    ]
    times = {c.backend: 1000 * c.usual for c in result.competitors if not c.failure}
    parts = [
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>dort_rewriter</title><style>{STYLE}</style></head><body>",
        "<h1>A model trained through ONNX Runtime</h1>",
        "<p><code>torch.compile(model, backend='onnxrt')</code> beside "
        f"{' and '.join(others)}, on the same data from the same weights. "
        f"torch {html.escape(torch.__version__)}.</p>",
        "<h2>Loss</h2>",
        line_chart(curves, "loss of each step; thin curves are drawn over thick ones"),
        "<h2>Speed</h2>",
        bar_chart(times, "median step, shorter is faster", " ms"),
        _table(result),
        "<h2>What ONNX Runtime ran</h2>",
        *(_graph(file) for file in result.files if file.suffix == ".onnx"),
        "</body></html>",
    ]
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _table(result: DemoResult) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in COLUMNS)
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in speed_rows(result)
    ]
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _graph(file: Path) -> str:
    drawn = find_dot() is not None
    drawing = f"<div class='graph'>{plot_dot(file).svg()}</div>" if drawn else ""
    return (
        f"<h3>{html.escape(file.name)}</h3>{drawing}"
        f"<details{'' if drawn else ' open'}><summary>as text</summary>"
        f"<pre>{html.escape(pretty_onnx(file, source=True))}</pre></details>"
    )
