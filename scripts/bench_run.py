"""Steady-state speed of eager, Inductor and onnxrt, in inference and in training.

usage: python scripts/bench_run.py [--models a,b] [--modes inference,training] [--json FILE]
                                   [--backends eager,inductor,onnxrt] [--svg FILE]
                                   [--autocast bfloat16|float16] [--device cuda]

All backends of a model run in one process, in turn, several rounds; a figure is the median of all
steps. A training step is forward, backward and zero_grad. Ratios are times of the other divided by
ours: above 1 we are faster. Results are compared with eager's before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
from bench_models import MODELS, BenchModel, build

from dort_rewriter.tools.benchmark import alternate, largest_difference, make_call, make_step
from dort_rewriter.tools.charts import bar_chart
from dort_rewriter.tools.machine import busy


def compiled(
    model: BenchModel, backend: str, narrow: torch.dtype | None = None
) -> Callable[..., Any]:
    """The model under a backend; ``narrow`` is the type of autocast, if there is any."""
    call = make_call(model.module, backend)
    if narrow is None:
        return call

    def autocast(*args: Any) -> Any:
        with torch.autocast(model.args[0].device.type, narrow):
            return call(*args)

    return autocast


def step_of(model: BenchModel, call: Callable[..., Any], mode: str) -> Callable[[], Any]:
    """One step: what it returns can be compared between backends."""
    return make_step(model.module, call, (model.args, {}), mode, model.loss)


def time_first(step: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = step()
    return time.perf_counter() - start, result


def measure(
    name: str,
    mode: str,
    backends: Sequence[str],
    seconds: float,
    clock: Callable[[], float],
    narrow: torch.dtype | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """The median milliseconds of each backend on one model."""
    torch._dynamo.reset()
    model = build(name).to(device)
    model.module.train(mode == "training")
    for module in model.module.modules():  # running statistics would make every step differ
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0
    steps = {b: step_of(model, compiled(model, b, narrow), mode) for b in backends}
    first: dict[str, float] = {}
    errors: dict[str, float] = {}
    expected: Any = None
    for backend, step in steps.items():
        first[backend], result = time_first(step)
        expected = result if expected is None else expected
        errors[backend] = largest_difference(result, expected)
    spent = alternate(steps, seconds, clock)
    return {
        "model": name,
        "mode": mode,
        "ms": {b: statistics.median(v) * 1e3 for b, v in spent.items()},
        "first_s": first,
        "errors": errors,
    }


def summary(rows: Sequence[dict[str, Any]], ours: str, other: str) -> dict[str, float]:
    """The geometric mean and the minimum of the ratios to another backend, by mode."""
    result = {}
    for mode in dict.fromkeys(r["mode"] for r in rows):
        ratios = [
            r["ms"][other] / r["ms"][ours]
            for r in rows
            if r["mode"] == mode and {ours, other} <= set(r["ms"])
        ]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            result[mode] = mean
            result[f"{mode} (worst)"] = min(ratios)
    return result


def plot(rows: Sequence[dict[str, Any]], backends: Sequence[str], path: Path) -> None:
    """Write the speed relative to the first backend as bars."""
    bars = {
        f"{row['model']} {row['mode']} {backend}": row["ms"][backends[0]] / row["ms"][backend]
        for row in rows
        for backend in backends
    }
    title = f"Speed relative to {backends[0]}, higher is better"
    path.write_text(bar_chart(bars, title), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--backends", default="eager,inductor,onnxrt")
    parser.add_argument("--seconds", type=float, default=2.0, help="per backend and model")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time on one thread, for a machine that others use too",
    )
    parser.add_argument(
        "--autocast", choices=("bfloat16", "float16"), help="run the models under it"
    )
    parser.add_argument("--device", default="cpu", help="where the models run: cpu, cuda")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--svg", type=Path, help="draw the results to this file")
    arguments = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.ERROR)
    backends = arguments.backends.split(",")
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    if arguments.cpu_time:
        torch.set_num_threads(1)
    narrow = getattr(torch, arguments.autocast) if arguments.autocast else None
    rows = []
    words = busy(torch.get_num_threads())
    if words and not arguments.cpu_time:
        print(f"NOTE: {words}.")
    for name in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            row = measure(name, mode, backends, arguments.seconds, clock, narrow, arguments.device)
            rows.append(row)
            base = row["ms"][backends[0]]
            cells = (
                f"{b} {t:9.3f} ms x{base / t:5.2f} e={row['errors'][b]:.0e}"
                for b, t in row["ms"].items()
            )
            print(f"{name:13} {mode:9} " + " | ".join(cells), flush=True)
    ours = next((b for b in backends if b.startswith("onnxrt")), None)
    means = {
        f"{b} / {ours}": summary(rows, ours, b) for b in backends if ours is not None and b != ours
    }
    for pair, numbers in means.items():
        print(pair, {k: round(v, 3) for k, v in numbers.items()})
    report = {"torch": torch.__version__, "busy": words, "rows": rows, "ratios": means}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2))
    if arguments.svg:
        plot(rows, backends, arguments.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
