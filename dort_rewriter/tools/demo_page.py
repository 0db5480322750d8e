"""The page of the demonstration: curves, speed, and the graphs that were run."""

from __future__ import annotations

import html
import itertools
from pathlib import Path

import torch

from dort_rewriter import notebook
from dort_rewriter.tools.charts import bar_chart, line_chart
from dort_rewriter.tools.demo import MODES, Competitor, DemoResult, catches_up, processor
from dort_rewriter.tools.dot import plot_dot
from dort_rewriter.tools.graph_table import cell
from dort_rewriter.tools.onnx_text import pretty_onnx

COLUMNS = {
    "inference": ("backend", "first call (s)", "call (ms)", "times eager"),
    "training": (
        *("backend", "first step (s)", "step (ms)", "times eager"),
        *("memory (MB)", "loss, from eager"),
    ),
}


def rows(result: DemoResult, mode: str) -> list[tuple[str, ...]]:
    """What stands under the columns of a mode; above one times eager is faster than eager."""
    return [_row(result, c, mode) for c in result.competitors]


def _row(result: DemoResult, c: Competitor, mode: str) -> tuple[str, ...]:
    if c.failure:
        return (c.backend, *["-"] * (len(COLUMNS[mode]) - 2), c.failure)
    times, eager = c.times(mode), result.eager.times(mode)
    cells = (
        c.backend,
        f"{times.first:.2f}",
        f"{1000 * times.usual:.1f}",
        f"{eager.usual / times.usual:.2f}",
    )
    if mode == "inference":
        return cells
    return (*cells, cell(c.megabytes, ".0f"), f"{result.worst(c):.1e}")


def overtaking(result: DemoResult) -> str:
    """When Inductor, which compiles longer, has made as many training steps as ``onnxrt``; empty
    where one of the two did not run."""
    running = {c.backend: c.training for c in result.competitors if not c.failure}
    if not {"onnxrt", "inductor"} <= running.keys():
        return ""
    step = catches_up(running["onnxrt"], running["inductor"])
    if step is None:
        return "Inductor never catches up with onnxrt: its steps are not faster."
    if step == 1:
        return "Inductor has its first training step first."
    return f"Inductor, whose steps are faster, has made as many as onnxrt after {step:,} steps."


def _race(result: DemoResult) -> str:
    """The training steps that were done over the time since the start, compilation included."""
    seconds = {c.backend: c.training.seconds for c in result.competitors if not c.failure}
    return line_chart(
        {name: list(range(len(s) + 1)) for name, s in seconds.items()},
        "training steps done, by the seconds since the start",
        at={name: [0.0, *itertools.accumulate(s)] for name, s in seconds.items()},
        unit=" s",
    )


def write_page(result: DemoResult, path: Path) -> Path:
    """Write one HTML file with everything in it, and its first picture beside it."""
    race = _race(result)
    path.with_suffix(".svg").write_text(race + "\n", encoding="utf-8")
    curves = {c.backend: c.losses for c in result.competitors if not c.failure}
    names = {"eager": "eager mode", "inductor": "Inductor"}
    others = [
        html.escape(names.get(c.backend, c.backend))
        for c in result.competitors
        if c.backend != "onnxrt"
    ]
    running = [c for c in result.competitors if not c.failure]
    parts = [
        "<p><code>torch.compile(model, backend='onnxrt')</code> beside "
        f"{' and '.join(others)}, on the same data from the same weights. "
        f"{result.size}; "
        f"torch {html.escape(torch.__version__)} on {html.escape(processor())}.</p>",
        notebook.text(f"NOTE: {result.busy}: times say little.") if result.busy else "",
        "<h2>From the start</h2>",
        race,
        notebook.text(overtaking(result)),
        "<h2>Loss</h2>",
        line_chart(curves, "loss of each step; thin curves are drawn over thick ones"),
    ]
    for mode in MODES:
        calls = {c.backend: 1000 * c.times(mode).usual for c in running}
        parts += [
            f"<h2>{mode.capitalize()}</h2>",
            bar_chart(calls, "median, shorter is faster", " ms"),
            notebook.table(rows(result, mode), COLUMNS[mode], inline=False),
        ]
    parts.append("<h2>What ONNX Runtime ran</h2>")
    parts += [_graph(file) for file in result.files if file.suffix == ".onnx"]
    page = notebook.page("dort_rewriter", parts, "A model trained through ONNX Runtime")
    path.write_text(page, encoding="utf-8")
    return path


def _graph(file: Path) -> str:
    listed = f"<pre>{html.escape(pretty_onnx(file, source=True))}</pre>"
    return (
        f"<h3>{html.escape(file.name)}</h3><div class='graph'>{plot_dot(file).svg()}</div>"
        f"{notebook.details('as text', listed)}"
    )
