"""What a forked child may touch of what it inherits.

Only the thread that forked goes on in a child: a lock that another one held is never released
there, and pools of threads have none left.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

__all__ = ["SafeLock", "at_fork", "forked_alone"]


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    in_parent: Callable[[], object] | None = None,
    in_child: Callable[[], object] | None = None,
) -> None:
    """Have functions called around each fork of Python, where the system has forks.

    Those of the child are called in the order in which they were given.
    """
    given = {"before": before, "after_in_parent": in_parent, "after_in_child": in_child}
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**{name: f for name, f in given.items() if f is not None})


class SafeLock:
    """A lock that its thread may take again, and that is free in a child if another held it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def free_in_child(self) -> None:
        """Forget a holder that is not there."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[SafeLock] = weakref.WeakSet()
_alone = False


def forked_alone() -> bool:
    """Tell a child whether its parent had a single thread of Python, as far as is known.

    Others may have been anywhere, in a session too. NOTE: a program in C that forks and tells
    Python in the child only leaves it unknown.
    """
    return _alone


def _before() -> None:
    global _alone
    _alone = threading.active_count() == 1


def _in_parent() -> None:
    global _alone
    _alone = False


def _in_child() -> None:
    for lock in list(_locks):
        lock.free_in_child()


at_fork(before=_before, in_parent=_in_parent, in_child=_in_child)
