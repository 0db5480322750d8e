"""``dort-rewriter demo``: train a small Llama, and show that it is the same, and how fast.

The answer is a text, and a page with curves, speed, and the graphs that were run.
"""

from __future__ import annotations

import html
import itertools
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from dort_rewriter import notebook
from dort_rewriter.errors import OptionError
from dort_rewriter.tools.charts import bar_chart, line_chart, sparkline
from dort_rewriter.tools.command import answer, check_names, make_parser, option
from dort_rewriter.tools.demo import (
    BACKENDS,
    MODES,
    Competitor,
    DemoResult,
    catches_up,
    demonstrate,
    processor,
)
from dort_rewriter.tools.demo_model import Size
from dort_rewriter.tools.dot import plot_dot
from dort_rewriter.tools.graph_table import cell, text_table
from dort_rewriter.tools.models import count_nodes, load_model
from dort_rewriter.tools.onnx_text import pretty_onnx

SIZES = {
    "layers": "layers of the model",
    "hidden": "width of the model",
    "batch": "rows of a batch",
    "length": "tokens of a row",
}

COLUMNS = {
    "inference": ("backend", "first call (s)", "call (ms)", "times eager"),
    "training": (
        *("backend", "first step (s)", "step (ms)", "times eager"),
        *("memory (MB)", "loss, from eager"),
    ),
}

TOLERANCE = 1e-3
"""How far a curve may be from that of eager mode (:meth:`DemoResult.worst`)."""


def run_demo(arguments: Sequence[str]) -> int:
    """Run the demonstration; 1 if the losses of onnxrt are not those of eager mode."""
    usual = Size()
    parser = make_parser(
        "demo",
        "Run and train a small Llama through ONNX Runtime, beside eager mode and Inductor: loss\n"
        "curves, first results, speed, memory, the exported graphs, and a page with all of it.\n"
        "Takes about a minute.",
    )
    option(parser, "--steps", 40, "training steps")
    for name, what in SIZES.items():
        option(parser, f"--{name}", getattr(usual, name), what)
    option(parser, "--seconds", 30.0, "start no step after")
    option(parser, "--backends", ",".join(BACKENDS), "what to compare")
    option(
        parser,
        "--folder FOLDER",
        Path("dort_demo"),
        "made if there is none; gets the page (demo.html), its first picture (demo.svg) and each "
        "graph that ONNX Runtime ran, as an ONNX model and as text; files of those names are "
        "replaced",
    )
    options = parser.parse_args(arguments)
    sizes = {name: getattr(options, name) for name in SIZES}
    if min(options.steps, *sizes.values()) < 1:
        raise OptionError(f"--steps, --{', --'.join(SIZES)} are at least 1.")
    if options.hidden % (2 * usual.heads):
        raise OptionError(f"--hidden is a multiple of {2 * usual.heads}.")
    backends = options.backends.split(",")
    known = {*BACKENDS, *torch._dynamo.list_backends(exclude_tags=())}
    check_names("backend", backends, sorted(known))
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"The folder cannot be made: {error}.") from error
    print("The first results compile; those of Inductor take most of a minute.", file=sys.stderr)
    result = demonstrate(
        options.folder,
        backends=backends,
        steps=options.steps,
        size=Size(**sizes),
        seconds=options.seconds,
        progress=_progress,
    )
    page = write_page(result, options.folder / "demo.html")
    wrong = [c for c in result.competitors if c.backend == "onnxrt" and _differs(result, c)]
    answer(options.json, _data(result, page), "\n".join(_text(result, page)))
    return int(bool(wrong))


def _differs(result: DemoResult, competitor: Any) -> bool:
    return not result.worst(competitor) <= TOLERANCE


def _progress(steps: Sequence[int]) -> Iterator[int]:
    """Show how far it is, where somebody watches."""
    for number, step in enumerate(steps, 1):
        yield step
        if sys.stderr.isatty():
            end = "\n" if number == len(steps) else ""
            print(f"\rtraining {number}/{len(steps)}", end=end, file=sys.stderr, flush=True)


def _text(result: DemoResult, page: Path) -> Iterator[str]:
    yield f"{result.size}, on {processor()}."
    if result.busy:
        yield f"NOTE: {result.busy}: times say little, measure again when it is not."
    yield "\nLoss:"
    for c in result.competitors:
        if c.failure:
            yield f"  {c.backend:<9} {c.failure}"
        else:
            yield f"  {c.backend:<9} {sparkline(c.losses)} {c.losses[0]:.4f} to {c.losses[-1]:.4f}"
    verdict = {c.backend: not _differs(result, c) for c in result.competitors}
    same = [name for name, good in verdict.items() if good and name != "eager"]
    others = [name for name, good in verdict.items() if not good]
    if same:
        yield f"  The curves of {' and '.join(same)} coincide with that of eager mode."
    if others:
        yield f"  NOT those of {' and '.join(others)}."
    for mode in MODES:
        table = text_table(COLUMNS[mode], rows(result, mode))
        yield f"\n{mode.capitalize()}:\n{textwrap.indent(table, '  ')}"
    if text := overtaking(result):
        yield f"\n{text}"
    yield "\nWhat ONNX Runtime ran:"
    for file in result.files:
        if file.suffix == ".onnx":
            counts = count_nodes(load_model(file))
            frequent = ", ".join(f"{n} {name}" for name, n in list(counts.items())[:4])
            yield f"  {file}: {sum(counts.values())} nodes ({frequent}, ...)"
        else:
            yield f"  {file}: the graph it was made of"
    yield f"\nEverything in one page: {page}"


def _data(result: DemoResult, page: Path) -> dict[str, Any]:
    return {
        "competitors": [
            {
                "backend": c.backend,
                "failure": c.failure,
                "losses": c.losses,
                **{f"first_{mode}_s": c.times(mode).first for mode in MODES},
                **{f"{mode}_s": c.times(mode).usual for mode in MODES},
                "memory_mb": c.megabytes,
                "worst_difference": result.worst(c),
            }
            for c in result.competitors
        ],
        "files": [str(file) for file in result.files],
        "page": str(page),
        "busy": result.busy,
    }


# -- the tables and the page --------------------------------------------------------------------


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
