"""``dort-rewriter demo``: train a small model, and show that it is the same, and how fast."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dort_rewriter.errors import OptionError
from dort_rewriter.tools.charts import sparkline
from dort_rewriter.tools.command import answer, make_parser
from dort_rewriter.tools.demo import BACKENDS, DemoResult, run_demo
from dort_rewriter.tools.demo_page import COLUMNS, speed_rows, write_page
from dort_rewriter.tools.models import count_nodes, load_model

__all__ = ["run_demo_command"]

TOLERANCE = 1e-3
"""How far a curve may be from that of eager mode (:meth:`DemoResult.worst`)."""


def run_demo_command(arguments: Sequence[str]) -> int:
    """Run the demonstration; 1 if the losses of onnxrt are not those of eager mode."""
    parser = make_parser(
        "demo",
        "Train a small model through ONNX Runtime, beside eager mode and Inductor: loss curves,\n"
        "speed, the exported graphs, and a page with all of it. Takes a minute or two.",
    )
    parser.add_argument("--steps", type=int, default=80, help="training steps (default: 80)")
    parser.add_argument("--hidden", type=int, default=192, help="width of the model")
    parser.add_argument("--batch", type=int, default=256, help="rows of a batch")
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="start no step after (default: %(default)s)"
    )
    parser.add_argument(
        "--backends", default=",".join(BACKENDS), help="what to compare (default: %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("dort_demo"), help="where the files go"
    )
    options = parser.parse_args(arguments)
    if min(options.steps, options.hidden, options.batch) < 1:
        raise OptionError("--steps, --hidden and --batch are at least 1.")
    print("The first step compiles; that of Inductor may take a minute.", file=sys.stderr)
    result = run_demo(
        options.folder,
        backends=options.backends.split(","),
        steps=options.steps,
        hidden=options.hidden,
        batch=options.batch,
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
    yield "Loss:"
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
    yield "\nSpeed:"
    rows = [COLUMNS, *speed_rows(result)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield f"  {row[0]:<{widths[0]}}  {'  '.join(cells)}"
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
                "first_step_s": c.first,
                "step_s": c.usual,
                "worst_difference": result.worst(c),
            }
            for c in result.competitors
        ],
        "files": [str(file) for file in result.files],
        "page": str(page),
    }
