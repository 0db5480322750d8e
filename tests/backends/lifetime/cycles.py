"""What cycles of compiling and resetting leave behind, measured in a process of its own.

NOTE: in the process of the tests pytest keeps what torch logs, and the allocator holds what other
tests left in pieces: up to 0.2 MB a cycle there, whatever is compiled.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import torch

from dort_rewriter import installed
from dort_rewriter.backends import onnxrt_graphs
from tests.backends.ways import compile_strictly
from tests.collecting import collect

alive: weakref.WeakSet[Any] = weakref.WeakSet()
"""Sessions, executors and graphs that our backend made."""


def note_what_is_made() -> None:
    """Let what the backend makes be known here."""
    record = onnxrt_graphs._record

    def note(backend: Any, built: Any) -> None:
        for part in (built.session.ort, built.runner, built.graph_module):
            alive.add(part)
        record(backend, built)

    onnxrt_graphs._record = note


def used_bytes() -> int:
    """The memory in use: without what the allocator holds back although it is free."""
    # NOTE: that alone is up to 0.4 MB a compilation, and differs from run to run.
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def function(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


def cycle(compiled: Any, count: int) -> tuple[int, int]:
    """Compile and reset so many times; return the blocks of Python and the bytes in use."""
    for done in range(1, count + 1):
        compiled(torch.ones(3))
        torch._dynamo.reset()
        # The memory that an allocator keeps is that of the most garbage at once: without Python's
        # lock 143 KB a cycle, where 150 are collected together.
        if done % 25 == 0:
            collect()
    collect()
    return sys.getallocatedblocks(), used_bytes()


def growth(compiled: Any, first: int, then: int) -> tuple[float, float]:
    """The blocks and the bytes that a cycle leaves, once warm."""
    blocks, used = cycle(compiled, first)
    more_blocks, more_used = cycle(compiled, then)
    return (more_blocks - blocks) / then, (more_used - used) / then


def main() -> None:
    os.environ["ONNXRT_CHANGE_REWRITER"] = "1"
    note_what_is_made()
    gc.freeze()  # what importing torch made is not looked through at each collection
    of_torch = growth(torch.compile(function, backend="aot_eager", dynamic=False), 30, 60)
    with installed():
        compiled, backend = compile_strictly(function)
        compiled(torch.ones(3))
        made = len(alive)
        ours = growth(compiled, 50, 150)
    report = {
        "torch": of_torch,
        "ours": ours,
        "made": made,
        "alive": len(alive),
        "runs": backend.execution_count,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
