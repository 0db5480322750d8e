"""Compiled steps of optimizers: eager (foreach), Inductor and onnxrt in turn, medians and ratios.

usage: python scripts/bench_optimizers.py [--optimizers AdamW,SGD] [--parameters 3000000]
           [--threads N] [--seconds S] [--cpu-time] [--json FILE]

The parameters are those of a small transformer of so many numbers. A row also says how far the
parameters are from eager's after 100 steps with the same gradients, as a share of the largest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

STEPS = 100

Make = Callable[[Any], torch.optim.Optimizer]

_O = torch.optim
OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda p: _O.AdamW(p, lr=1e-3),
    "Adam": lambda p: _O.Adam(p, lr=1e-3),
    "SGD": lambda p: _O.SGD(p, lr=1e-2),
    "SGD-momentum": lambda p: _O.SGD(p, lr=1e-2, momentum=0.9),
    "SGD-nesterov": lambda p: _O.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
    "SGD-decay": lambda p: _O.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.01),
    "RMSprop": lambda p: _O.RMSprop(p, lr=1e-3),
    "RMSprop-centered": lambda p: _O.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Adagrad": lambda p: _O.Adagrad(p, lr=1e-2),
    "Adadelta": lambda p: _O.Adadelta(p),
    "NAdam": lambda p: _O.NAdam(p, lr=1e-3),
    "RAdam": lambda p: _O.RAdam(p, lr=1e-3),
}


def parameters(total: int) -> list[torch.nn.Parameter]:
    """The weights of layers of a transformer, 12 * width ** 2 numbers each, and their vectors."""
    layers = 4
    width = max(int((total / layers / 12) ** 0.5), 1)
    one = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    vectors = [(width,)] * 5 + [(3 * width,), (4 * width,)]
    generator = torch.Generator().manual_seed(0)
    shapes = (one + vectors) * layers
    return [torch.nn.Parameter(torch.randn(s, generator=generator)) for s in shapes]


class Subject:
    """One way to take a step."""

    def __init__(self, name: str, backend: str | None, total: int) -> None:
        self.parameters = parameters(total)
        generator = torch.Generator().manual_seed(1)
        for p in self.parameters:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer = OPTIMIZERS[name](self.parameters)
        self.step: Callable[[], Any] = optimizer.step
        if backend is not None:
            self.step = torch.compile(optimizer.step, backend=backend)
        self.times: list[float] = []

    def run(self, clock: Callable[[], float]) -> None:
        start = clock()
        self.step()
        self.times.append(clock() - start)


def measure(name: str, total: int, seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    torch._dynamo.reset()  # those of other classes count as recompilations of one function
    backends = {"eager": None, "inductor": "inductor", "onnxrt": "onnxrt"}
    subjects = {b: Subject(name, chosen, total) for b, chosen in backends.items()}
    for _ in range(STEPS):
        for subject in subjects.values():
            subject.run(clock)
    expected = [p.detach() for p in subjects["eager"].parameters]
    pairs = list(zip((p.detach() for p in subjects["onnxrt"].parameters), expected, strict=True))
    far = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    for subject in subjects.values():
        subject.times.clear()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for subject in subjects.values():
            for _ in range(5):  # in a row, as in a loop; the first follows another's threads
                subject.run(clock)
    ms = {b: statistics.median(s.times) * 1e3 for b, s in subjects.items()}
    return {
        "optimizer": name,
        "ms": ms,
        "over_inductor": ms["onnxrt"] / ms["inductor"],
        "over_eager": ms["onnxrt"] / ms["eager"],
        "difference": far,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--parameters", type=int, default=3_000_000)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=4.0, help="for each optimizer")
    parser.add_argument(
        "--cpu-time", action="store_true", help="of the process: on a busy machine, one thread"
    )
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    rows = []
    for name in arguments.optimizers.split(","):
        rows.append(row := measure(name, arguments.parameters, arguments.seconds, clock))
        times = "  ".join(f"{b} {t:7.2f}" for b, t in row["ms"].items())
        print(
            f"{name:16} {times} ms  time over Inductor's {row['over_inductor']:5.2f}, eager's "
            f"{row['over_eager']:5.2f}; difference {row['difference']:.1e}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
