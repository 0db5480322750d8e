"""Peak memory of a training step: eager, aot_eager and onnxrt, each in a new process.

usage: python scripts/bench_memory.py [--models a,b] [--backends eager,aot_eager,onnxrt]
           [--json FILE]

A figure is how far the memory of the process rises during training steps above what it had once
the model was built and every library loaded (a small model has run through the backend before).
What a compilation keeps is part of it, what it needs for a moment is not. ``aot_eager`` traces as
every compiler does and runs eager mode's kernels: how far it lies above ``eager`` is torch's.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

DEFAULT = "mlp-512,cnn,resnet18,llama-256x2,bert"


def status(field: str) -> int:
    """A line of the kernel's account of this process, in kB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise SystemExit("This needs Linux's /proc.")


def trim() -> None:
    """Give memory that was freed back to the system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def warm_up(backend: str) -> None:
    """Load what a training step loads once in a process."""
    from bench_models import build
    from bench_run import compiled, step_of

    model = build("mlp-10-32-1")
    step_of(model, compiled(model, backend), "training")()


def measure(name: str, backend: str, steps: int) -> dict[str, Any]:
    from bench_models import build
    from bench_run import compiled, step_of

    warm_up(backend)
    model = build(name)
    model.module.train()
    trim()
    before = status("VmRSS")
    step = step_of(model, compiled(model, backend), "training")
    for _ in range(3):
        step()
    for p in model.module.parameters():
        p.grad = None
    trim()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    for _ in range(steps):
        step()
    rise = (status("VmHWM") - before) / 1024
    return {
        "model": name,
        "backend": backend,
        "mb": rise,
        "rss_mb": status("VmRSS") / 1024,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=DEFAULT)
    parser.add_argument("--backends", default="eager,aot_eager,onnxrt")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(measure(*arguments.worker, arguments.steps)))
        return 0
    rows = []
    for name in arguments.models.split(","):
        base = None
        for backend in arguments.backends.split(","):
            command = [sys.executable, __file__, "--worker", name, backend]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(done.stdout.splitlines()[-1])
            base = base or row["mb"]
            rows.append(row)
            print(
                f"{name:13} {backend:14} peak +{row['mb']:8.1f} MB  x{row['mb'] / base:5.2f}"
                f"  resident {row['rss_mb']:8.1f} MB",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
