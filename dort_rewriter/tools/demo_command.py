"""``dort-rewriter demo``: train a small Llama, and show that it is the same, and how fast."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dort_rewriter.errors import OptionError
from dort_rewriter.tools.charts import sparkline
from dort_rewriter.tools.command import answer, make_parser, option
from dort_rewriter.tools.demo import BACKENDS, MODES, DemoResult, demonstrate, processor
from dort_rewriter.tools.demo_model import Size
from dort_rewriter.tools.demo_page import COLUMNS, overtaking, rows, write_page
from dort_rewriter.tools.graph_table import text_table
from dort_rewriter.tools.models import count_nodes, load_model

SIZES = {
    "layers": "layers of the model",
    "hidden": "width of the model",
    "batch": "rows of a batch",
    "length": "tokens of a row",
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
    print("The first results compile; those of Inductor take most of a minute.", file=sys.stderr)
    result = demonstrate(
        options.folder,
        backends=options.backends.split(","),
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
