"""``dort-rewriter status``: what is hooked, in which torch."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence

from dort_rewriter.errors import HookError
from dort_rewriter.hook import status
from dort_rewriter.tools.command import answer, make_parser

__all__ = ["run_status"]


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
