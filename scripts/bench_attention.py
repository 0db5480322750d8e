"""Long sequences: time and peak memory of a step of a small Llama by the number of tokens.

usage: python scripts/bench_attention.py [--lengths 256,1024] [--modes inference,training]
                                         [--backends eager,inductor,onnxrt] [--json FILE]

Times are medians of steps that the backends make in turn, in one process. The peak is how far the
memory of a process of its own rises during steps above what it had after the first one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

LENGTHS = "256,1024,2048,4096"


def steps_of(length: int, mode: str, backends: list[str]) -> dict[str, Callable[[], Any]]:
    """One step of each backend, compiled."""
    import torch
    from bench_models import BenchModel, llama
    from bench_run import compiled, step_of

    torch.manual_seed(0)
    module, args = llama(256, 2, 1, length)
    model = BenchModel(f"llama of {length} tokens", module.train(mode == "training"), args)
    steps = {b: step_of(model, compiled(model, b), mode) for b in backends}
    for step in steps.values():
        step()
    return steps


def times(length: int, mode: str, backends: list[str], seconds: float) -> dict[str, Any]:
    from dort_rewriter.tools.benchmark import alternate

    steps = steps_of(length, mode, backends)
    spent = alternate(steps, seconds, time.perf_counter)
    return {name: statistics.median(values) * 1e3 for name, values in spent.items()}


def peak(length: int, mode: str, backend: str) -> float:
    """The megabytes that steps take for a moment."""
    from bench_memory import status, trim

    (step,) = steps_of(length, mode, [backend]).values()
    trim()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again
    for _ in range(3):
        step()
    return (status("VmHWM") - before) / 1024


def worker(arguments: argparse.Namespace) -> Any:
    length, mode, backends = arguments.worker
    if not arguments.seconds:
        return peak(int(length), mode, backends)
    return times(int(length), mode, backends.split(","), arguments.seconds)


def ask(length: int, mode: str, backends: str, seconds: float) -> Any:
    """What a process of its own measures."""
    command = [sys.executable, __file__, "--worker", str(length), mode, backends]
    command += ["--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default=LENGTHS)
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--backends", default="eager,inductor,onnxrt")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(worker(arguments)))
        return 0
    rows = []
    for length in map(int, arguments.lengths.split(",")):
        for mode in arguments.modes.split(","):
            spent = ask(length, mode, arguments.backends, arguments.seconds)
            peaks = {b: ask(length, mode, b, 0.0) for b in spent}
            rows.append({"tokens": length, "mode": mode, "ms": spent, "peak_mb": peaks})
            shown = (f"{b} {spent[b]:.1f} ms, {peaks[b]:.0f} MB" for b in spent)
            print(f"{length:5} tokens, {mode}: {'; '.join(shown)}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
