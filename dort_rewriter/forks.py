"""What a forked child may touch of what it inherits.

Only the thread that forked goes on in a child: a lock that another one held is never released
there, and pools of threads have none left.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


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


def _torch_is_loaded() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


_unwatched = _torch_is_loaded()
"""Whether there may have been forks before this file was imported, that torch's threads saw."""
_forked_with_torch = False
_process = os.getpid()


def may_lack_threads_of_torch() -> bool:
    """Whether torch may have started threads that only a parent of this process has.

    torch does not know that they are gone: who waits for them waits for ever.
    """
    return _forked_with_torch or os.getpid() != _process or (_unwatched and _is_forked())


_FORKED = 0x40
"""``PF_FORKNOEXEC`` of Linux: no other program was started since the fork."""


def _is_forked() -> bool:
    """Whether this process is a fork of another; True where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        flags = int(fields[6])
    except (OSError, ValueError, IndexError):
        return True
    return not flags or bool(flags & _FORKED)


def forked_alone() -> bool:
    """Tell a child whether its parent had a single thread of Python, as far as is known.

    Others may have been anywhere, in a session too. NOTE: a program in C that forks and notifies
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
    global _forked_with_torch, _process
    _forked_with_torch, _process = "torch" in sys.modules, os.getpid()
    for lock in list(_locks):
        lock.free_in_child()


at_fork(before=_before, in_parent=_in_parent, in_child=_in_child)
