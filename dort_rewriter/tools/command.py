"""What the subcommands of ``dort-rewriter`` share: parsers, answers as JSON, models."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dort_rewriter.errors import OptionError

HELP = (
    "FILE.py:NAME or MODULE:NAME: a pair (model, args), or a function without arguments that "
    "returns one"
)


def load_pair(source: str) -> tuple[Any, Sequence[Any]]:
    """A model and the arguments to call it with; what is printed meanwhile goes to stderr.

    Raises :class:`OptionError` when `source` names no such pair.
    """
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise OptionError(f"Expected {HELP}; got {source!r}.")
    with contextlib.redirect_stdout(sys.stderr):
        module = _load(place)
        if not hasattr(module, name):
            raise OptionError(f"{place} has no {name!r}.")
        found = getattr(module, name)
        if callable(found) and not isinstance(found, tuple):
            found = found()
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[0])):
        raise OptionError(f"{source} gives a {type(found).__name__}, not a pair (model, args).")
    model, args = found
    return model, args if isinstance(args, list | tuple) else (args,)


def _load(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise OptionError(f"No module {place!r}: {error}.") from error
    path = Path(place)
    if not path.is_file():
        raise OptionError(f"No file {place!r}.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses of the file look for their module there
    spec.loader.exec_module(module)
    return module


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


def option(parser: argparse.ArgumentParser, name: str, default: Any, words: str) -> None:
    """Add an option of the type of its default: ``--folder FOLDER``."""
    flag, _, metavar = name.partition(" ")
    parser.add_argument(
        flag,
        type=type(default),
        default=default,
        metavar=metavar or None,
        help=f"{words} (default: %(default)s)",
    )


def in_a_line(error: BaseException) -> str:
    """The type of an error, and the first line of what it says; one more behind a colon."""
    first, _, rest = str(error).strip().partition("\n")
    if first.endswith(":"):
        first = f"{first} {rest.strip().partition(chr(10))[0]}"
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def list_of(meanings: Mapping[str, str]) -> str:
    """Words and what each means, a line each, for a description."""
    width = max(map(len, meanings))
    return "\n".join(f"  {word:<{width}}  {meaning}" for word, meaning in meanings.items())


def check_names(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`OptionError` for a name that is none of those known."""
    if unknown := [name for name in names if name not in known]:
        raise OptionError(f"Unknown {what} {unknown[0]!r}: known are {', '.join(known)}.")


def answer(as_json: bool, data: Any, text: str) -> None:
    """Print the answer: ``data`` for programs, ``text`` for people."""
    print(json.dumps(data, indent=1, default=str) if as_json else text)


def brief(error: BaseException) -> str:
    """An error in one line: its type and the beginning of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # torch says which backend raised on the first line, and what on the second.
    return f"{type(error).__name__}: {' '.join(lines[:2])}"
