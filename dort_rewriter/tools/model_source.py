"""The model a subcommand works on, out of a Python file or a module."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from dort_rewriter.errors import OptionError

__all__ = ["HELP", "load_pair"]

HELP = (
    "FILE.py:NAME or MODULE:NAME: a pair (model, args), or a function without arguments that "
    "returns one"
)


def load_pair(source: str) -> tuple[Any, Sequence[Any]]:
    """A model and the arguments to call it with.

    Raises :class:`OptionError` when `source` names no such pair.
    """
    place, colon, name = source.rpartition(":")
    if not colon or not place or not name:
        raise OptionError(f"Expected {HELP}; got {source!r}.")
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
