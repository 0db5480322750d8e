"""``dort-rewriter patch`` and ``status``: the hook in torch's own file, and what is hooked."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from pathlib import Path

from dort_rewriter.errors import HookError
from dort_rewriter.hook import sources
from dort_rewriter.hook.report import status
from dort_rewriter.tools.command import answer, make_parser


def run_patch(arguments: Sequence[str]) -> int:
    """Check, patch or restore torch's file; 1 for a file that is not known.

    :class:`HookError` says why a file cannot be patched.
    """
    parser = make_parser(
        "patch",
        "Write the hook into torch's own file (torch 2.3 to 2.8), or take it out.\n"
        "Not needed where the hook installs itself, with `import torch`.",
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="say what the file is")
    action.add_argument("--apply", action="store_true", help="add the lines of the hook")
    action.add_argument("--revert", action="store_true", help="restore the file as torch ships it")
    parser.add_argument(
        "--torch-file",
        metavar="PATH",
        type=Path,
        help="the file, instead of that of the installed torch",
    )
    options = parser.parse_args(arguments)
    path = options.torch_file or sources.find_torch_file()
    if options.apply:
        found = sources.apply(path)
    elif options.revert:
        found = sources.revert(path)
    else:
        found = sources.check(path)
    origin = f" (torch {' and '.join(found.series)})" if found.series else ""
    data = {"path": str(found.path), "state": found.state, "torch": list(found.series)}
    answer(options.json, data, f"{found.path}: {found.state}{origin}")
    return int(found.state == "unknown")


def run_status(arguments: Sequence[str]) -> int:
    """Print the report of the hook; 1 if it took itself back."""
    parser = make_parser("status", "Say what is hooked, in which torch; 1 if the hook failed.")
    options = parser.parse_args(arguments)
    try:
        importlib.import_module("torch.onnx")
    except ModuleNotFoundError as error:
        raise HookError(f"torch cannot be imported: {error}.") from error
    report = status()
    answer(options.json, dataclasses.asdict(report), str(report))
    return int(report.state == "failed")
