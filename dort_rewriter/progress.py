"""What a first call or an export is doing while somebody waits for it.

Where it is asked for, a bar for each phase of each graph: of tqdm, if that is installed, and where
a terminal reads it; else a line of log. Not asked for, what takes long has a line: of log, and
in a terminal one that says what is going on, and is gone when it is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from dort_rewriter import env
from dort_rewriter.forks import SafeLock

if TYPE_CHECKING:
    from typing_extensions import Self

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
    read = "" if asked else env.read("DORT_PROGRESS")
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
    if asked or read == "0" or not _is_read():
        yield _nothing
    else:
        with _Line(what, steps) as line:
            yield line.advance
    spent = time.perf_counter() - start
    if spent > LONG:
        logger.info("%s took %.0f s.", what, spent)


def _nothing() -> None: ...


class _Line:
    """A line in a terminal about work that somebody has waited for too long; gone when it ends."""

    def __init__(self, what: str, steps: int) -> None:
        self._what = what
        self._steps = steps
        self._done = 0
        self._terminal: TextIO = sys.stderr
        self._width = 0
        """Of what is written, which the next text covers."""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._since = 0.0

    def advance(self) -> None:
        """Count a step."""
        self._done += 1

    def __enter__(self) -> Self:
        self._since = _waits.begin()
        self._thread = threading.Thread(target=self._work, name="dort progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        _waits.end()

    def _work(self) -> None:
        wait = max(0.0, self._since + LONG - time.perf_counter())
        while not self._ended.wait(wait):
            self._write(self._text())
            wait = REPEATED
        if self._width:
            self._write("")

    def _text(self) -> str:
        seconds = time.perf_counter() - self._since
        steps = f", {self._done} of {self._steps}" if self._steps > 1 else ""
        return f"dort_rewriter: {self._what}{steps}, {seconds:.0f} s"

    def _write(self, text: str) -> None:
        """Put a text in place of the line; what cannot be written is not worth an error."""
        with contextlib.suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._terminal.fileno()).columns
            text = text[: columns - 1]
            self._terminal.write(f"\r{text}{' ' * (self._width - len(text))}\r{text}")
            self._terminal.flush()
            self._width = len(text)


REPEATED = 0.5
"""Seconds after which a line is written again."""
_PAUSE = 5.0
"""Seconds between two pieces of work that belong to one wait: Dynamo works in between."""


class _Waits:
    """Since when somebody waits: work that follows on other work belongs to it."""

    def __init__(self) -> None:
        self._began = self._ended = float("-inf")
        self._at_work = 0
        self._lock = SafeLock()

    def begin(self) -> float:
        """The time when the wait began that work which begins now is part of."""
        now = time.perf_counter()
        with self._lock:
            if not self._at_work and now - self._ended > _PAUSE:
                self._began = now
            self._at_work += 1
            return self._began

    def end(self) -> None:
        """Note that work has ended."""
        with self._lock:
            self._at_work -= 1
            self._ended = time.perf_counter()


_waits = _Waits()


def _is_read() -> bool:
    """Whether a terminal reads the standard error."""
    return sys.stderr is not None and sys.stderr.isatty() and not _is_of_no_size(sys.stderr)


def _bar(what: str, steps: int) -> Any:
    """A bar of tqdm, None where it would be invisible."""
    if not _is_read():
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
