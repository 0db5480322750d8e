"""How the library of our own kernels is compiled: for which processors, from what, how.

NOTE: ``setup.py`` loads this file by its path, where nothing else is installed: it imports the
standard library alone. It runs no command itself, and raises nothing of its own.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).parent / "cpp"
BUILT = Path(__file__).parent / "built"
"""Where an installation puts the libraries, with a record of their digests."""

COMPILER = "c++"
"""The compiler, where ``CXX`` names no other."""

TIME_LIMIT = 900.0
"""Seconds that a compiler gets: it takes some 20, on a machine that is busy many times that."""

_RECORD = "built.json"


@dataclass(frozen=True)
class Level:
    """A kind of processor that a library is compiled for."""

    name: str
    flags: tuple[str, ...] = ()
    """What the compiler may use."""
    needs: frozenset[str] = frozenset()
    """What the processor must have for that, in the words of ``/proc/cpuinfo``."""


# Feature by feature, not ``-march=x86-64-v3``, which compilers know since 2020 only.
_V3 = tuple(f"-m{name}" for name in "avx2 fma bmi bmi2 f16c lzcnt movbe popcnt".split())
_V4 = tuple(f"-mavx512{name}" for name in "f bw cd dq vl".split())
_V3_NEEDS = frozenset("avx avx2 fma bmi1 bmi2 f16c abm movbe popcnt sse4_1 sse4_2 ssse3".split())
_V4_NEEDS = _V3_NEEDS | frozenset("avx512f avx512bw avx512cd avx512dq avx512vl".split())

_X86 = (
    Level("x86-64-v4", (*_V3, *_V4), _V4_NEEDS),
    Level("x86-64-v3", _V3, _V3_NEEDS),
    Level("x86-64"),
)


def processor_levels(machine: str) -> tuple[Level, ...]:
    """The levels of a kind of machine, best first; the last one runs on all of them."""
    if machine.lower() in ("x86_64", "amd64"):
        return _X86
    return (Level(machine.lower() or "unknown"),)


def supported_levels() -> list[Level]:
    """The levels that run here, best first."""
    found = features()
    return [level for level in processor_levels(platform.machine()) if level.needs <= found]


def features() -> frozenset[str]:
    """What this processor can do, and the system lets it; nothing where that is not known."""
    return frozenset(processor("flags").split())


def processor(fact: str) -> str:
    """What the system says of this processor; an empty text where that is not known.

    NOTE: the first line is enough, for all cores have the same; the whole file takes long on a
    machine of many.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            found = next((line for line in lines if line.startswith(fact)), "")
    except OSError:
        return ""
    return found.partition(":")[2].strip()


def library_name(level: Level) -> str:
    """The name of an installed library."""
    return f"kernels-{level.name}.so"


def find_compiler(named: str) -> list[str] | None:
    """The command that a name stands for, as in ``ccache g++``; None if there is none."""
    try:
        words = shlex.split(named) or [COMPILER]
    except ValueError:  # a quotation without an end
        return None
    if (whole := shutil.which(named)) is not None:  # a path with a space in it
        return [whole]
    found = shutil.which(words[0])
    return None if found is None else [found, *words[1:]]


def excuse() -> str:
    """Why no compiler of this system can make the libraries; nothing where one can.

    NOTE: the sources use vectors and functions that GCC and Clang have beside the standard.
    """
    return "kernels are not compiled on Windows" if sys.platform == "win32" else ""


def command(compiler: Sequence[str], level: Level, target: Path) -> list[str]:
    """The command that compiles the library of a level."""
    needed = ["-ldl"] if sys.platform == "linux" else []  # which glibc has inside since 2.34
    source = str(SOURCES / "library.cpp")
    return [*compiler, *_flags(level), *includes(), source, *needed, "-o", str(target)]


def includes() -> list[str]:
    """Flags that find headers, and include those of operators: each makes its own known."""
    operators = sorted((SOURCES / "operators").glob("*.h"))
    return [f"-I{SOURCES}", *(word for path in operators for word in ("-include", str(path)))]


def sources() -> list[Path]:
    """All that is compiled."""
    return sorted(p for p in SOURCES.rglob("*") if p.suffix in (".cpp", ".h"))


def _flags(level: Level) -> list[str]:
    """Vectors, and results that are those of single operators bit for bit."""
    flags = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    # Vectors wider than the processor's are passed between functions of this library alone.
    flags += ["-Wno-psabi"]
    if sys.platform == "linux":
        flags += ["-s"]
    return [*flags, *level.flags]


def recipe(level: Level) -> str:
    """What a library is made from: the sources that stand here and the flags."""
    found = hashlib.sha256("\0".join(_flags(level)).encode())
    for source in sources():
        content, name = source.read_bytes(), source.relative_to(SOURCES).as_posix()
        found.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def digest(path: Path) -> str | None:
    """The digest of a file; None if there is none that can be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def record(folder: Path, levels: Sequence[Level]) -> None:
    """Note beside the libraries of these levels what they were made from, and what they are."""
    entries = {
        level.name: {"recipe": recipe(level), "sha256": digest(folder / library_name(level))}
        for level in levels
    }
    (folder / _RECORD).write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")


def find_installed(folder: Path, level: Level) -> Path | None:
    """The library of a level that was made from what stands here, and is as it was made."""
    try:
        entry = json.loads((folder / _RECORD).read_text(encoding="utf-8"))[level.name]
        made_from, expected = entry["recipe"], entry["sha256"]
    except (OSError, ValueError, TypeError, LookupError):
        return None
    path = folder / library_name(level)
    whole = expected is not None and digest(path) == expected
    return path if whole and made_from == recipe(level) else None
