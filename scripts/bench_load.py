"""Time to the first answer of a new process: a model that is loaded, and one that is compiled.

usage: python scripts/bench_load.py [--layers 1,4,24] [--width 64] [--training] [--repeat N]
           [--json FILE]

A Llama answers in three ways, each in a process of its own: ``compiled`` with empty caches,
``on disk`` with the models that the first left there, and ``loaded`` from what a third process
saved. ``answer`` are the seconds from the end of ``import torch`` to the first answer, other
imports included (onnxruntime, what reads the model), without building the model, which only the
compiled ways need; ``process`` are those of the whole process, from its start to its end. The C++
library of our kernels is compiled before: once per machine, not for each model. The three answers
have to be the same, bit for bit. With ``--training`` an answer is a result and the gradients of
all parameters. It needs transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

WAYS = ("compiled", "on disk", "loaded")
BATCH, LENGTH = 2, 16


def work(way: str, folder: Path, width: int, layers: int, training: bool) -> dict[str, Any]:
    """The first answer in this process; ``save`` is what comes before ``loaded``."""
    import torch

    imported = time.perf_counter()
    building = 0.0
    if way == "loaded":
        import dort_rewriter

        call = dort_rewriter.load(folder / "saved")
        (args,) = torch.load(folder / "arguments.pt")
    else:
        from bench_models import llama

        torch.manual_seed(0)
        module, (args,) = llama(width, layers, BATCH, LENGTH)
        building = time.perf_counter() - imported
        from dort_rewriter import OrtBackend

        call = torch.compile(module.train(training), backend=OrtBackend())
    with torch.set_grad_enabled(training):
        given = call(args)
        if training:
            given.square().mean().backward()
    seconds = time.perf_counter() - imported - building
    total = float(given.double().sum())
    if training:
        parameters = call.parameters()
        total += sum(float(p.grad.double().sum()) for p in parameters if p.grad is not None)
    if way == "save":
        import dort_rewriter

        dort_rewriter.save(call, folder / "saved", training=training)
        torch.save((args,), folder / "arguments.pt")
    return {"answer": seconds, "sum": total}


def run_apart(way: str, folder: Path, width: int, layers: int, training: bool) -> dict[str, Any]:
    """Let a new process answer."""
    command = [sys.executable, __file__, "--worker", way, str(folder)]
    command += ["--width", str(width), "--layers", str(layers), *["--training"] * training]
    environment = {**os.environ, "DORT_CACHE_DIR": str(folder / "dort")}
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**result, "process": seconds}


def measure(width: int, layers: int, library: Path, training: bool) -> list[dict[str, Any]]:
    """The row of each way, in the order in which they need each other."""
    from bench_compile import copy_library

    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_library(library, folder / "dort")
        for way in (*WAYS[:-1], "save", WAYS[-1]):
            row = run_apart(way, folder, width, layers, training)
            if way != "save":
                what = {"layers": layers, "width": width, "training": training, "way": way}
                rows.append({**what, **row})
    # The parameters are added up in another order.
    sums = [row.pop("sum") for row in rows]
    if max(sums) - min(sums) > (1e-9 * abs(sums[0]) if training else 0):
        raise RuntimeError(f"The answers of {layers} layers differ.")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default="1,4,24")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--training", action="store_true", help="training steps")
    parser.add_argument("--repeat", type=int, default=1, help="medians of so many processes")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    training = arguments.training
    if arguments.worker:
        way, folder = arguments.worker
        print(
            json.dumps(work(way, Path(folder), arguments.width, int(arguments.layers), training))
        )
        return 0
    from dort_rewriter import custom_ops_library

    library = Path(custom_ops_library())
    rows: list[dict[str, Any]] = []
    for layers in map(int, arguments.layers.split(",")):
        taken = [
            measure(arguments.width, layers, library, training) for _ in range(arguments.repeat)
        ]
        for same in zip(*taken, strict=True):
            times = {n: statistics.median(r[n] for r in same) for n in ("answer", "process")}
            rows.append({**same[0], **times})
            print(
                f"{layers:3} layers  {same[0]['way']:8}  {times['answer']:6.2f} s to the answer, "
                f"{times['process']:6.2f} s of the process",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
