"""How many threads ONNX Runtime uses and whether they spin while they wait.

After a run, ONNX Runtime's threads spin for some time on their cores, waiting for the next one;
torch's OpenMP threads do the same. Two pools spinning on the same cores starve each other when
both work in turn, as in a training step. The default lets threads spin during a run and stops them
at its end: as fast as spinning for ONNX Runtime alone, as fast as not spinning beside torch
(``scripts/bench_threads.py`` measures both). torch's threads would spin into a run, for
milliseconds; they are ended before it, and OpenMP makes new ones when torch needs them next.
Threads that spin on cores that others work on (more threads than cores, a busy machine) make a run
3 to 19 times as long: so they spin for a moment only, and not at all where that can be known.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import torch

from dort_rewriter.errors import OptionError
from dort_rewriter.forks import at_fork, may_lack_threads_of_torch
from dort_rewriter.kernels.torch_library import torch_library

if TYPE_CHECKING:
    import onnxruntime

logger = logging.getLogger(__name__)

Spinning = Literal["on", "off", "stop"]
"""``on``: threads spin between runs; ``stop``: they spin during a run only; ``off``: never."""

_MOMENT_US = "100"
"""How long a thread spins for its next part of a run (onnxruntime 1.26 and newer): with 20 a run
in two threads on two cores takes up to 1.07 times as long, with 50 up to 1.04; in four threads it
takes 0.3 to 0.5 of the time it takes without an end."""

_ENTRIES: dict[str, dict[str, str]] = {
    "on": {"session.intra_op.allow_spinning": "1"},
    "stop": {
        "session.intra_op.allow_spinning": "1",
        "session.intra_op.spin_duration_us": _MOMENT_US,
        "session.force_spinning_stop": "1",
    },
    "off": {"session.intra_op.allow_spinning": "0"},
}


@dataclass(frozen=True, kw_only=True)
class ThreadPolicy:
    """The threads of one session."""

    intra_op_threads: int | None = None
    """Threads inside one operator; None is ``torch.get_num_threads()`` when the session is built.
    The calling thread is one of them."""
    spinning: Spinning = "stop"
    """See :data:`Spinning`."""

    def __post_init__(self) -> None:
        if self.spinning not in _ENTRIES:
            raise OptionError(f"spinning is one of {sorted(_ENTRIES)}, not {self.spinning!r}.")
        if self.intra_op_threads is not None and self.intra_op_threads < 1:
            raise OptionError(f"intra_op_threads must be positive, not {self.intra_op_threads}.")

    def apply(self, options: onnxruntime.SessionOptions) -> None:
        """Write the policy into the options of a session."""
        threads = self.intra_op_threads or torch.get_num_threads()
        options.intra_op_num_threads = threads
        crowded = self.spinning == "stop" and threads > usable_cores()
        for key, value in _ENTRIES["off" if crowded else self.spinning].items():
            options.add_session_config_entry(key, value)


_CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """The cores that this process may use: of its affinity, within the quota of its container."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return math.ceil(min(cores, _quota()))


def _quota() -> float:
    """The cores that a container may use at a time, as its processes see it; infinity for all."""
    version_1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    for names in (("cpu.max",), version_1):
        try:
            words = " ".join((_CGROUP / name).read_text("ascii") for name in names).split()
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):  # none of this version, or the quota is "max"
            continue
        if quota > 0 and period > 0:  # -1 in version 1: no quota
            return quota / period
    return math.inf


PAUSE_SOFT = 1
"""``omp_pause_soft``: threads end, values that belong to OpenMP's threads stay."""

_PAUSE_PER_THREAD = 150e-6
"""Seconds of a run that make ending and making a thread worth it: the two take 60 us."""


def shortest_run() -> float:
    """The seconds from which a run gains when torch's threads do not spin beside it."""
    return _PAUSE_PER_THREAD * torch.get_num_threads()


def omp_pause() -> Callable[[int], int] | None:
    """``omp_pause_resource_all`` of the OpenMP that torch uses, None where there is none.

    It ends the threads that wait for the next parallel region of the calling thread: 0.3 us when
    there are none.

    NOTE: in a forked child it waits for ever for threads that only the parent has. They are ended
    before a fork from the first call of this function on; a child that was forked before it, or
    without Python's knowledge, gets None.
    """
    return _find_pause() if _state != "lost" else None


_state: Literal["usual", "ended", "lost"] = "usual"
"""Whether torch's threads were ended for a fork, or lost by one."""


def _end_threads() -> None:
    global _state
    if (pause := omp_pause()) is not None:
        pause(PAUSE_SOFT)
        _state = "ended"


def _go_on_in_parent() -> None:
    global _state
    if _state == "ended":
        _state = "usual"


def _go_on_in_child() -> None:
    global _state
    _state = "usual" if _state == "ended" else "lost"


@functools.cache
def _find_pause() -> Callable[[int], int] | None:
    if may_lack_threads_of_torch():
        return None
    # A search in this library goes on in those it was linked to: the right OpenMP.
    function = getattr(torch_library(), "omp_pause_resource_all", None)
    if function is None:
        logger.info("torch's threads cannot be paused.")
        return None
    function.argtypes, function.restype = [ctypes.c_int], ctypes.c_int
    at_fork(before=_end_threads, in_parent=_go_on_in_parent, in_child=_go_on_in_child)
    return cast("Callable[[int], int]", function)
