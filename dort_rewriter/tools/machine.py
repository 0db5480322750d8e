"""What the doctor finds of the machine, and whether others use it while something is timed."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dort_rewriter.ort_module import plug_ins


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: Literal["ok", "note", "problem"]
    """``note``: nothing is wrong, but it may not be what one expects."""
    subject: str
    text: str
    fix: str = ""
    """The line that fixes it."""


ok = functools.partial(Finding, "ok")
note = functools.partial(Finding, "note")
problem = functools.partial(Finding, "problem")


_SPIN = 0.05
"""Seconds that the thread computes, to see how long that takes."""
_WAITED = 1.15
"""How much longer than its processor time that may take."""


def busy(threads: int = 1) -> str:
    """Why times taken now on so many threads say little, an empty text if nothing speaks against
    them.

    A thread that computes and gets no processor in between is one sign, for any kind of container;
    a load above the number of processors another, where the system reports it.
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


_NOT_BY_NAME = "onnxruntime-windowsml"
"""Brings providers as libraries of its own that sessions do not register."""

_INT8 = ("avx_vnni", "avx512_vnni", "amx_int8")


def check_processor(
    levels: Sequence[str], library: Path | None, torch: str, features: Collection[str], amx: bool
) -> Iterator[Finding]:
    """Compare what the processor can do with what computes on it.

    ``levels`` are those of our kernels that run here, the best first; ``library`` is the installed
    one. ``torch`` is what torch calls its kernels, ``amx`` says whether MKL multiplies bfloat16.
    """
    used = next((level for level in levels if library and library.stem.endswith(level)), "")
    has_amx = "amx_bf16" in features
    parts = [
        f"kernels of this package for {used or levels[0]}",
        f"torch's for {torch}",
        f"products of bfloat16 {'by AMX' if amx and has_amx else 'without AMX'}",
        f"of 8-bit numbers by {next((f for f in _INT8[::-1] if f in features), 'no own')} "
        "instructions",
    ]
    yield ok("processor", ", ".join(parts))
    if used and used != levels[0]:
        text = f"can do {levels[0]}, and the installed kernels are for {used}"
        yield note("processor", text, "pip install --force-reinstall --no-deps dort-rewriter")
    if "avx512f" in features and torch not in ("AVX512", "AVX512_VNNI"):
        text = f"has AVX-512, and torch's kernels are for {torch}"
        yield note("processor", text, "unset ATEN_CPU_CAPABILITY")
    if has_amx and not amx:
        text = "has AMX, and this torch comes without the MKL that multiplies by it"
        fix = "pip install torch  # a build with MKL, as those of pytorch.org are"
        yield note("processor", text, fix)


def check_threads(torchs: int, cores: int, machine: int) -> Finding:
    """Compare the threads of torch, which sessions take over, with the cores of this process.

    ``cores`` are those that it may use (affinity, quota of a container), ``machine`` all of them.
    """
    limited = f", of {machine} of the machine" if cores < machine else ""
    if torchs <= cores:
        return ok("threads", f"{torchs}, on {cores} usable core(s){limited}")
    return note(
        "threads",
        f"{torchs} of torch and of each session, on {cores} core(s) that this process may "
        f"use{limited}: they wait for each other",
        f"export OMP_NUM_THREADS={cores}  # or torch.set_num_threads({cores})",
    )


def plugins() -> list[str]:
    """The installed distributions that bring a provider as a plug-in, with their versions."""
    return [f"{name} {found.version}" for name, found in plug_ins(_NOT_BY_NAME).items()]


def check_plugins(names: Iterable[str]) -> Iterator[Finding]:
    """Say of plug-in providers who registers them."""
    for name in names:
        if not name.startswith(_NOT_BY_NAME):
            yield ok("plug-in", f"{name}, for sessions whose options name its provider")
        else:
            text = "is not registered by itself: a program that wants it calls"
            function = "onnxruntime.register_execution_provider_library()"
            yield note("plug-in", f"{name} {text} {function}")
