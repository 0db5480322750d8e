"""What a first call or an export is doing while somebody waits for it.

Where it is asked for, a bar for each phase of each graph: of tqdm, if that is installed, and where
a terminal reads it; else a line of log. Not asked for, a line only of what takes long.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from dort_rewriter import env

__all__ = ["LONG", "shown"]

logger = logging.getLogger(__name__)

LONG = 5.0
"""Seconds after which a line of log says what is going on."""

Advance = Callable[[], object]


@contextmanager
def shown(
    what: str, *, steps: int = 1, asked: bool = False, since: float = 0.0
) -> Iterator[Advance]:
    """Show that the block is at work; it calls what it is given after each of several steps.

    ``asked`` is what the program says, besides ``DORT_PROGRESS``. ``since`` is how many seconds
    the work took that the block is a part of.
    """
    asked = asked or env.is_on("DORT_PROGRESS")
    bar = _bar(what, steps) if asked else None
    if bar is not None:
        with bar:
            yield bar.update
            bar.update(steps - bar.n)
        return
    if asked:
        _say(what)
    elif since > LONG:
        logger.info("%s, after %.0f s.", what, since)
    start = time.perf_counter()
    yield _nothing
    spent = time.perf_counter() - start
    if spent > LONG:
        logger.info("%s took %.0f s.", what, spent)


def _nothing() -> None: ...


def _bar(what: str, steps: int) -> Any:
    """A bar of tqdm, None where nobody would see it."""
    if sys.stderr is None or not sys.stderr.isatty() or _is_of_no_size(sys.stderr):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=steps, desc=what, file=sys.stderr, leave=True)


def _is_of_no_size(terminal: TextIO) -> bool:
    """Whether a terminal has no columns or rows, as some of containers and of continuous
    integration: tqdm writes empty lines there."""
    try:
        return 0 in os.get_terminal_size(terminal.fileno())
    except (OSError, ValueError):
        return False


def _say(what: str) -> None:
    """Log a line that was asked for, to the standard error where no logging is set up."""
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
    logger.info("%s.", what)
