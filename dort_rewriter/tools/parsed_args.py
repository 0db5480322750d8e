"""get_parsed_args: the options of a script, written as keyword arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from dort_rewriter.errors import OptionError

_STANDARD: dict[str, tuple[Any, str]] = {
    "number": (10, "calls that one measure is made of"),
    "repeat": (10, "measures"),
    "warmup": (5, "calls before them that are not measured"),
    "sleep": (0.1, "seconds between two measures"),
    "tries": (2, "times that all of it is done"),
}
"""Options that any script may expose."""


def get_parsed_args(
    name: str,
    *,
    description: str | None = None,
    epilog: str | None = None,
    expose: str = "",
    new_args: Sequence[str] | None = None,
    **options: tuple[Any, str],
) -> argparse.Namespace:
    """Parse the options of a script, a thin layer over ``argparse``.

    Args:
        name: the name of the script.
        description: what it does.
        epilog: what its help ends with.
        expose: the standard options it has besides, of ``number``, ``repeat``, ``warmup``,
            ``sleep``, ``tries``, or of its own, separated by commas. An option that is not there
            cannot be given, and has its default all the same; "" exposes all of its own.
        new_args: what to parse; None parses the command line.
        options: the options, each a pair of a default, which decides the type, and a text. A
            default that is a tuple or list takes values of its first element's type, separated
            by commas; one that is True or False takes 0 and 1 too.

    """
    known = {**_STANDARD, **options}
    for key, pair in known.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise OptionError(f"{key} is a pair (default, help), not {pair!r}.")
    exposed = [word.strip() for word in expose.split(",") if word.strip()]
    if unknown := [word for word in exposed if word not in known]:
        raise OptionError(f"expose names {unknown[0]!r}, which is no option of {name}.")
    shown = {*exposed} if exposed else {*options}
    parser = argparse.ArgumentParser(prog=name, description=description, epilog=epilog)
    for key, (default, text) in known.items():
        if key in shown:
            words = f"{text}, default is {_spelled(default)!r}".replace("%", "%%")
            parser.add_argument(f"--{key}", default=default, type=_reader(default), help=words)
    given = parser.parse_args(None if new_args is None else list(new_args))
    for key, (default, _) in known.items():
        if not hasattr(given, key):
            setattr(given, key, default)
    return given


def _spelled(default: Any) -> Any:
    is_list = isinstance(default, tuple | list)
    return ",".join(map(str, default)) if is_list else default


def _reader(default: Any) -> Any:
    """What reads a value of the type of a default."""
    if isinstance(default, bool):
        return _read_flag
    if isinstance(default, tuple | list):
        one = _reader(default[0]) if default else str
        return lambda text: type(default)(one(part) for part in text.split(",") if part)
    return str if default is None else type(default)


def _read_flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes"):
        return True
    if text.lower() in ("0", "false", "no"):
        return False
    raise argparse.ArgumentTypeError(f"{text!r} is not 0 or 1")
