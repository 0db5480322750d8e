"""Loops of the kernels that are to be vectors, and whether a compiler makes them so."""

from __future__ import annotations

import collections
import re
import subprocess
from pathlib import Path

import pytest

from dort_rewriter.kernels import build as kernel_build

pytestmark = pytest.mark.alternating

COMPILER = kernel_build.find_compiler("g++")
LEVEL = kernel_build.processor_levels("x86_64")[1]
MARK = "#pragma GCC ivdep"
"""What stands before such a loop."""


def is_gcc_for_x86() -> bool:
    if COMPILER is None:
        return False
    said = subprocess.run([*COMPILER, "-v"], capture_output=True, text=True, check=False).stderr
    return "gcc version" in said and "Target: x86_64" in said


@pytest.mark.skipif(not is_gcc_for_x86(), reason="another compiler says other things")
def test_marked_loops_are_vectors_wherever_they_are_inlined(tmp_path: Path) -> None:
    """A function that a compiler calls in such a loop, since the library grew, costs it ten times
    its time; no result tells."""
    assert COMPILER is not None
    command = kernel_build.command(COMPILER, LEVEL, tmp_path / "kernels.so")
    said = subprocess.run(
        [*command, "-fopt-info-vec-optimized-missed"], capture_output=True, text=True, check=True
    ).stderr
    found: dict[tuple[str, int], collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    for name, line, text in re.findall(r"(\w+\.h):(\d+):\d+: \w+: (.*)", said):
        for what in ("couldn't vectorize loop", "loop vectorized"):
            found[name, int(line)][what] += what in text
    marked = [
        (path.name, number + 2, lines[number + 1].strip())
        for path in kernel_build.SOURCES.rglob("*.h")
        for lines in [path.read_text(encoding="utf-8").splitlines()]
        for number, line in enumerate(lines)
        if line.strip() == MARK
    ]
    assert len(marked) >= 10
    for name, number, text in marked:
        told = found[name, number]
        assert told["loop vectorized"] > 0, f"{name}: {text}"
        assert told["couldn't vectorize loop"] == 0, f"{name}: {text}"
