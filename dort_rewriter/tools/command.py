"""What every subcommand of ``dort-rewriter`` shares: its parser, and its answer as JSON."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["answer", "make_parser"]


def make_parser(name: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """Return the parser of a subcommand, with ``--json``."""
    parser = argparse.ArgumentParser(
        prog=f"dort-rewriter {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    return parser


def answer(as_json: bool, data: Any, text: str) -> None:
    """Print the answer: ``data`` for programs, ``text`` for people."""
    print(json.dumps(data, indent=1, default=str) if as_json else text)
