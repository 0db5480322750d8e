"""Measure what ``import dort_rewriter`` costs over a bare interpreter, and what it brings along.

Exits with 1 when the cost is above the target or a heavy module was imported.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGET_MS = 30.0
HEAVY = ("torch", "numpy", "onnx", "onnx_ir", "onnxscript", "onnxruntime")


def run(code: str) -> tuple[float, str]:
    """The wall time in milliseconds of a new interpreter, and what it printed."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return 1000 * (time.perf_counter() - start), done.stdout


def measure(repeat: int) -> dict[str, Any]:
    """Alternate bare and importing interpreters, so that both see the same machine."""
    run("import dort_rewriter")  # writes the byte code
    bare, loaded = [], []
    for _ in range(repeat):
        bare.append(run("pass")[0])
        loaded.append(run("import dort_rewriter")[0])
    show = f"import sys, dort_rewriter; print(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    return {
        "bare_ms": round(statistics.median(bare), 2),
        "import_ms": round(statistics.median(loaded), 2),
        "cost_ms": round(statistics.median(loaded) - statistics.median(bare), 2),
        "target_ms": TARGET_MS,
        "heavy_modules": run(show)[1].split(),
        "repeat": repeat,
        "python": platform.python_version(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--repeat", type=int, default=21, help="interpreters started per median")
    args = parser.parse_args()
    result = measure(args.repeat)
    if args.json:
        Path(args.json).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"import dort_rewriter: {result['cost_ms']} ms over a bare interpreter "
        f"({result['bare_ms']} ms), target {TARGET_MS} ms; "
        f"heavy modules: {', '.join(result['heavy_modules']) or 'none'}"
    )
    return int(result["cost_ms"] > TARGET_MS or bool(result["heavy_modules"]))


if __name__ == "__main__":
    sys.exit(main())
