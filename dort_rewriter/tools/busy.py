"""Whether others use the machine while something is timed: times are of little use then."""

from __future__ import annotations

import os
import time

__all__ = ["busy"]

_SPIN = 0.05
"""Seconds that the thread computes, to see how long that takes."""
_WAITED = 1.15
"""How much longer than its processor time that may take."""


def busy(threads: int = 1) -> str:
    """Why times taken now on so many threads say little, an empty text if nothing speaks against
    them.

    A thread that computes and gets no processor in between is one sign, for any kind of container;
    a load above the number of processors another, where the system tells it.
    """
    start, used = time.perf_counter(), time.thread_time()
    while time.thread_time() - used < _SPIN:
        pass
    waited = (time.perf_counter() - start) / (time.thread_time() - used)
    if waited > _WAITED:
        return f"the machine is busy: {_SPIN * 1e3:.0f} ms of work took {waited:.1f} times as long"
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    processors = os.cpu_count() or 1
    if load - 1 + threads > processors + 0.5:  # one of it is what asks
        return f"the machine is busy: a load of {load:.1f} on {processors} processors"
    return ""
