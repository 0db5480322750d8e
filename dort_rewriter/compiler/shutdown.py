"""Calls of daemon threads when the interpreter ends.

No one joins these threads: the interpreter ends, and onnxruntime's state is destroyed, while
they are in a session.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any, Protocol

from dort_rewriter.plan.recipe import RunBoxed

__all__ = ["hold_calls_at_shutdown"]

PATIENCE = 5.0
"""Seconds that the end of a program waits for calls of daemon threads."""
HELD = 60.0
"""Seconds that those threads wait for the end, which takes its time on a busy machine. They go on
then: a function of ``atexit`` that was registered early may wait for what they do."""


class _Called(Protocol):
    def hold_back(self, run: Callable[[RunBoxed, list[Any]], Any]) -> None:
        """Have each call made by another function, which is given what makes it now."""


@functools.cache
def hold_calls_at_shutdown(call: CodeType, called: Callable[[], Iterable[_Called]]) -> None:
    """Let no thread but the main one be in a session once the functions of ``atexit`` are done.

    ``call`` is the code that makes the calls. NOTE: the functions of ``atexit`` are called in the
    opposite order of their registration, and onnxruntime has one of its own: this is to be called
    when it is loaded. What a program registers after its first call still finds its threads at
    work.
    """
    atexit.register(_hold_calls, call, called)


def _hold_calls(call: CodeType, called: Callable[[], Iterable[_Called]]) -> None:
    start = time.monotonic()
    main = threading.get_ident()

    def wait(run: RunBoxed, args: list[Any]) -> Any:
        if threading.get_ident() != main and (left := start + HELD - time.monotonic()) > 0:
            time.sleep(left)
        return run(args)

    def runs(frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not wait.__code__:
            if frame.f_code is call:
                return True
            frame = frame.f_back
        return False

    for one in called():
        one.hold_back(wait)
    # A thread that has taken what it runs, and is not in it yet, counts: it is in the code.
    while time.monotonic() < start + PATIENCE and any(
        runs(frame) for ident, frame in sys._current_frames().items() if ident != main
    ):
        time.sleep(0.001)
