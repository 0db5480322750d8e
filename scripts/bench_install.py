"""What an installation costs, and the first result of a machine that has just got one.

usage: python scripts/bench_install.py [--processes 1,4] [--repeat 3] [--json FILE]

The package is installed from its sources into an empty folder, with kernels and without; then
processes compile a small model there, each case with a cache that is empty:

``installed``: the kernels of the installation; ``no compiler``: no kernels at all;
``first use``: none were installed, the compiler makes them when they are first wanted.

A figure is the seconds from the call of ``torch.compile`` to the first result of the slowest
process; torch is imported before.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

FIRST_RESULT = """
import time, torch
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
x = torch.randn(16, 10)
start = time.perf_counter()
from dort_rewriter import OrtBackend
result = torch.compile(model, backend=OrtBackend())(x)
print(time.perf_counter() - start)
"""

BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"

CASES = {"installed": ("with", "none"), "no compiler": ("without", "none"),
         "first use": ("without", "")}  # fmt: skip
"""The installation of each case, and the compiler at run time."""


def build(sources: Path, compiler: str, target: Path) -> Path:
    """Build a wheel, with the compiler that is named; the usual one for an empty name."""
    target.mkdir()
    run([sys.executable, "-W", "ignore", "-c", BUILD, str(target)], compiler, sources)
    (wheel,) = target.glob("*.whl")
    return wheel


def install(what: Path, target: Path, compiler: str = "none") -> float:
    """Install a wheel or a folder of sources without what it needs; return the seconds."""
    pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else ["uv", "pip"]
    start = time.perf_counter()
    command = [*pip, "install", "-q", "--no-deps", "--no-build-isolation"]
    run([*command, "--target", str(target), str(what)], compiler)
    return time.perf_counter() - start


def run(command: list[str], compiler: str, folder: Path | None = None) -> None:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"CXX": compiler} if compiler else {}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def copy_sources(target: Path) -> Path:
    """The files of the repository, without what an earlier build left."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((ROOT / name).read_bytes())
    return target


def first_results(place: Path, compiler: str, processes: int) -> list[float]:
    """The seconds of each of some processes that start at once, their cache empty."""
    with tempfile.TemporaryDirectory(prefix="bench-") as cache:
        env = {**os.environ, "PYTHONPATH": str(place), "DORT_CACHE_DIR": cache}
        env |= {"ONNXRT_CHANGE_REWRITER": "1", **({"CXX": compiler} if compiler else {})}
        started = [
            subprocess.Popen(
                [sys.executable, "-c", FIRST_RESULT],
                env=env,
                cwd=cache,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        return [float(process.communicate()[0]) for process in started]


def measure(counts: list[int], repeat: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-install-") as folder:
        place = Path(folder)
        for kind, compiler in (("with", ""), ("without", "none")):
            sources = copy_sources(place / f"sources-{kind}")
            start = time.perf_counter()
            wheel = build(sources, compiler, place / f"wheel-{kind}")
            found[f"wheel {kind} kernels"] = {
                "bytes": wheel.stat().st_size,
                "seconds to build": time.perf_counter() - start,
                "seconds to install": install(wheel, place / kind),
            }
        for name, (kind, compiler) in CASES.items():
            for count in counts:
                slowest = [
                    max(first_results(place / kind, compiler, count)) for _ in range(repeat)
                ]
                found[f"{name}, {count} at once"] = statistics.median(slowest)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", default="1,4", help="how many start at once")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.processes.split(",")]
    found = measure(counts, arguments.repeat)
    for name, value in found.items():
        print(f"{name:32} {value if isinstance(value, dict) else f'{value:.2f} s'}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
