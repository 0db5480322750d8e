"""``dort-rewriter demo``: train a small Llama, and show that it is the same, and how fast."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dort_rewriter.errors import OptionError
from dort_rewriter.tools.charts import sparkline
from dort_rewriter.tools.command import answer, make_parser
from dort_rewriter.tools.demo import BACKENDS, MODES, DemoResult, processor, run_demo
from dort_rewriter.tools.demo_model import Size
from dort_rewriter.tools.demo_page import overtaking, tables, write_page
from dort_rewriter.tools.models import count_nodes, load_model

__all__ = ["run_demo_command"]

SIZES = {
    "layers": "layers of the model",
    "hidden": "width of the model",
    "batch": "rows of a batch",
    "length": "tokens of a row",
}

TOLERANCE = 1e-3
"""How far a curve may be from that of eager mode (:meth:`DemoResult.worst`)."""


def run_demo_command(arguments: Sequence[str]) -> int:
    """Run the demonstration; 1 if the losses of onnxrt are not those of eager mode."""
    usual = Size()
    parser = make_parser(
        "demo",
        "Run and train a small Llama through ONNX Runtime, beside eager mode and Inductor: loss\n"
        "curves, first results, speed, memory, the exported graphs, and a page with all of it.\n"
        "Takes about a minute.",
    )
    parser.add_argument("--steps", type=int, default=40, help="training steps (default: 40)")
    for name, what in SIZES.items():
        text = f"{what} (default: {getattr(usual, name)})"
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name), help=text)
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="start no step after (default: %(default)s)"
    )
    parser.add_argument(
        "--backends", default=",".join(BACKENDS), help="what to compare (default: %(default)s)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("dort_demo"),
        metavar="FOLDER",
        help="made if there is none; gets the page (demo.html), its first picture (demo.svg) "
        "and each graph that ONNX Runtime ran, as an ONNX model and as text; files of those "
        "names are replaced (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    sizes = {name: getattr(options, name) for name in SIZES}
    if min(options.steps, *sizes.values()) < 1:
        raise OptionError(f"--steps, --{', --'.join(SIZES)} are at least 1.")
    if options.hidden % (2 * usual.heads):
        raise OptionError(f"--hidden is a multiple of {2 * usual.heads}.")
    print("The first results compile; those of Inductor take most of a minute.", file=sys.stderr)
    result = run_demo(
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


def _progress(steps: Iterable[int]) -> Iterable[int]:
    """Show a progress bar, with tqdm if it is there."""
    try:
        from tqdm import tqdm
    except ImportError:
        return _plain_progress(list(steps))
    # disable=None: only where somebody watches.
    return tqdm(steps, desc="training", unit="step", disable=None)


def _plain_progress(steps: Sequence[int]) -> Iterator[int]:
    for number, step in enumerate(steps, 1):
        yield step
        print(f"\rtraining {number}/{len(steps)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _text(result: DemoResult, page: Path) -> Iterator[str]:
    yield f"{result.size}, on {processor()}.\n\nLoss:"
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
    for title, rows in tables(result).items():
        yield f"\n{title}:"
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for name, *cells in rows:
            right = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            yield f"  {name:<{widths[0]}}  {'  '.join(right)}".rstrip()
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
    }
