"""What every subcommand of ``dort-rewriter`` shares: its parser, and its answer as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["answer", "brief", "list_of", "make_parser"]


def make_parser(name: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """The parser of a subcommand, with ``--json``."""
    parser = argparse.ArgumentParser(
        prog=f"dort-rewriter {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON, for programs")
    return parser


def list_of(meanings: Mapping[str, str]) -> str:
    """Words and what each means, a line each, for a description."""
    width = max(map(len, meanings))
    return "\n".join(f"  {word:<{width}}  {meaning}" for word, meaning in meanings.items())


def answer(as_json: bool, data: Any, text: str) -> None:
    """Print the answer: ``data`` for programs, ``text`` for people."""
    print(json.dumps(data, indent=1, default=str) if as_json else text)


def brief(error: BaseException) -> str:
    """An error in one line: its type and the beginning of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # torch says which backend raised on the first line, and what on the second.
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
