"""``dort-rewriter report``: run a program, and pack each graph whose ONNX model fails."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from dort_rewriter import env
from dort_rewriter.compiler.problem_report import FOLDER, unwritten
from dort_rewriter.errors import OptionError
from dort_rewriter.tools.command import answer, brief, make_parser, option


def run_report(arguments: Sequence[str]) -> int:
    """Run a program and print the folders that were written; 1 if there is one."""
    parser = make_parser(
        "report",
        "Run a Python program. Each of its graphs that cannot be compiled or run, or\n"
        "with --verify gives other numbers than torch, is written to a folder: the FX graph, the\n"
        "model, the arguments, the versions, and a script that runs it again. Ends with 1 if\n"
        "there is one. What has no converter does not fail but runs in torch: `dort-rewriter\n"
        "explain` names it.",
        "examples:\n"
        "  dort-rewriter report train.py --epochs 1\n"
        "  dort-rewriter report --verify --folder problems train.py",
    )
    option(parser, "--folder", FOLDER, "where they go")
    parser.add_argument("--verify", action="store_true", help="compare the first calls with torch")
    parser.add_argument("program", metavar="PROGRAM", help="a file of Python")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    options = parser.parse_args(arguments)
    if not Path(options.program).is_file():
        raise OptionError(f"There is no file {options.program!r}.")
    folder = Path(options.folder).resolve()
    before, lost = set(_folders(folder)), len(unwritten())
    with ExitStack() as stack:
        stack.enter_context(env.temporarily("DORT_REPORT_DIR", str(folder)))
        if options.verify:
            stack.enter_context(env.temporarily("DORT_VERIFY", "1"))
        if options.json:
            stack.enter_context(redirect_stdout(sys.stderr))
        ended = _run(options.program, options.rest)
    found = [f for f in _folders(folder) if f not in before]
    lines = [f"{f}: {_problem(f)}" for f in found]
    missing = list(unwritten()[lost:])
    lines += [f"not written: {_first_line(problem)}" for problem in missing]
    some = bool(found or missing)
    lines.append(f"{len(found)} graph(s) written." if some else _NONE)
    if ended:
        lines.append(f"The program ended with {ended}")
    data = {"folders": [str(f) for f in found], "not_written": missing, "error": ended}
    answer(options.json, data, "\n".join(lines))
    return int(some or bool(ended))


_NONE = (
    "No graph was written: each model could be built and run. What has no converter runs in "
    "torch, as `dort-rewriter explain` says."
)


def _run(program: str, arguments: Sequence[str]) -> str:
    """Run a program as Python would; return how it failed, an empty text if it did not."""
    before = sys.argv, sys.path[:]
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).resolve().parent))
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        return "" if not end.code else f"exit code {end.code}"
    except Exception as error:  # the program may raise anything: what was written is shown first
        return brief(error)
    finally:
        sys.argv, sys.path[:] = before
    return ""


def _folders(folder: Path) -> list[Path]:
    """The reports in a folder, the oldest first."""
    found = [path.parent for path in folder.glob("problem_*/problem.json")]
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def _problem(folder: Path) -> str:
    """The first line of what a report is about."""
    content = json.loads((folder / "problem.json").read_text(encoding="utf-8"))
    return _first_line(content["problem"])


def _first_line(problem: str) -> str:
    return problem.partition("\n")[0]
