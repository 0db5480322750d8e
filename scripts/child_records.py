"""What a process sends until it ends, in whatever way."""

from __future__ import annotations

import contextlib
import time
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["receive_until_closed"]


def receive_until_closed(
    source: Connection, deadline: float | None = None
) -> tuple[list[Any], bool]:
    """Receive records until the other end is closed, or the time is over; which of them it was."""
    records: list[Any] = []
    with source, contextlib.suppress(EOFError, OSError):  # closed, or within a record
        while (left := _left(deadline)) is None or (left > 0 and source.poll(left)):
            records.append(source.recv())
        return records, False
    return records, True


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
