"""One loop of processes that measure: forks, which have what was imported, and are replaced.

What a process sends before it ends or hangs is kept, and the items after that go to another.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

__all__ = ["FORKS", "Lost", "measured"]

FORKS: Any = multiprocessing.get_context("fork")
Item = TypeVar("Item")


@dataclasses.dataclass(frozen=True)
class Lost:
    """A process that did not survive an item."""

    status: int | None
    """What it ended with; None where it sent nothing for too long."""
    limit: float | None = None

    def __str__(self) -> str:
        if self.status is None:
            return f"no answer in {self.limit:.0f} s"
        return f"the process ended with {self.status}"


class _Child:
    """A process, and the item that it measures."""

    def __init__(self, context: Any, items: Sequence[Any], measure: Any, quiet: bool) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, items, measure, quiet))
        self.process.start()
        theirs.close()
        self.place = 0
        self.heard = 0.0

    def give(self, place: int) -> None:
        self.place, self.heard = place, time.monotonic()
        self._send(place)

    def _send(self, place: int | None) -> None:
        with contextlib.suppress(OSError):  # the end of what it sends tells
            self.connection.send(place)

    def stop(self) -> int | None:
        # NOTE: those that were started later hold its connection: it does not see it closed.
        self._send(None)
        self.connection.close()
        self.process.join()
        status: int | None = self.process.exitcode
        return status


def measured(
    items: Sequence[Item],
    measure: Callable[[Item], Iterable[Any]],
    *,
    workers: int = 1,
    limit: float | None = None,
    quiet: bool = False,
    context: Any = FORKS,
) -> Iterator[tuple[Item, Any]]:
    """Yield what is measured of items, as it comes; the last of an item may be :class:`Lost`.

    ``limit`` is how many seconds a record may take. What processes print is dropped if they are
    to be quiet. ``measure`` handles its own exceptions: others end the process.
    """
    waiting = collections.deque(range(len(items)))
    children: dict[Connection, _Child] = {}
    try:
        while waiting or children:
            while waiting and len(children) < workers:
                child = _Child(context, items, measure, quiet)
                children[child.connection] = child
                child.give(waiting.popleft())
            first = min(child.heard for child in children.values())
            left = None if limit is None else max(0.0, first + limit - time.monotonic())
            for connection in wait(list(children), left):
                child = children[connection]
                try:
                    record = connection.recv()
                except (EOFError, OSError):  # closed, or within a record
                    del children[connection]
                    yield items[child.place], Lost(child.stop())
                    continue
                child.heard = time.monotonic()
                if record is not None:
                    yield items[child.place], record
                elif waiting:
                    child.give(waiting.popleft())
                else:
                    children.pop(connection).stop()
            for connection, child in list(children.items()):
                if limit is not None and time.monotonic() > child.heard + limit:
                    del children[connection]
                    child.process.kill()
                    child.stop()
                    yield items[child.place], Lost(None, limit)
    finally:
        for child in children.values():
            child.process.kill()
            child.stop()


def _serve(
    records: Connection, items: Sequence[Any], measure: Callable[[Any], Iterable[Any]], quiet: bool
) -> None:
    """Measure the items that are asked for."""
    # What the interpreter has loaded is not looked through again and again for garbage.
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    if quiet:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    with contextlib.suppress(EOFError):
        while (place := records.recv()) is not None:
            for record in measure(items[place]):
                records.send(record)
            records.send(None)
