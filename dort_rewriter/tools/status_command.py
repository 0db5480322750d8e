"""``dort-rewriter status``: what is hooked, in which torch."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from dort_rewriter.errors import HookError
from dort_rewriter.hook import status

__all__ = ["run_status"]


def run_status(arguments: Sequence[str]) -> int:
    """Print the report of the hook; 1 if it took itself back."""
    parser = argparse.ArgumentParser(prog="dort-rewriter status", description=run_status.__doc__)
    parser.parse_args(arguments)
    try:
        importlib.import_module("torch.onnx")
    except ModuleNotFoundError as error:
        raise HookError(f"torch cannot be imported: {error}.") from error
    report = status()
    print(report)
    return int(report.state == "failed")
