"""The ``onnxrt`` backend that torch <= 2.8 ships, against ours, on the same machine.

usage: python scripts/bench_builtin.py --their-python PATH [--models a,b] [--modes a,b]
                                       [--seconds N] [--json FILE]

torch's own works with an onnxscript of its time only, ours needs a later one: two environments,
two processes. ``PATH`` is the interpreter of the first (torch 2.8.0, onnxscript 0.3.2, onnx 1.17,
onnxruntime-training 1.19.2); this script runs in the second. Both need transformers 4.36.2: the
masks of later ones are not converted by torch's own. The processes take turns, several rounds, one
idle while the other works; a figure is the median of all steps. Each compares its results with
eager's before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

sys.path.insert(0, str(Path(__file__).parent))

ROUNDS = 5
TARGET = 2.0
MODELS = "mlp-10-32-1,mlp-512,llama-16x1"


def avoid_pow() -> None:
    """Let RMS norms square by a product: torch's own fails to convert ``aten::pow``.

    The gradient of ``rsqrt`` has one too.
    """
    from transformers.models.llama import modeling_llama

    def forward(self: Any, x: Any) -> Any:
        scale = (x * x).mean(-1, keepdim=True) + self.variance_epsilon
        return self.weight * (x / scale.sqrt())

    modeling_llama.LlamaRMSNorm.forward = forward


def make_step(model: Any, call: Any, mode: str) -> Callable[[], list[Any]]:
    """One step: its results or its gradients.

    NOTE: not that of :mod:`dort_rewriter.tools.benchmark`: one of the environments has no such
    package, and must not import it.
    """
    import torch

    if mode == "inference":
        return torch.inference_mode()(lambda: [call(*model.args)])
    parameters = [p for p in model.module.parameters() if p.requires_grad]

    def training() -> list[Any]:
        for p in parameters:
            p.grad = None
        model.loss(call(*model.args)).backward()
        return [p.grad for p in parameters]

    return training


def largest_difference(got: list[Any], expected: list[Any]) -> float:
    """The largest error, relative to the largest number of all results."""
    scale = max(float(e.abs().max()) for e in expected)
    pairs = zip(got, expected, strict=True)
    return max(float((g - e).abs().max()) for g, e in pairs) / scale


def work(side: str) -> None:
    """Answer requests, one JSON a line: prepare a model, or time steps of it."""
    import torch
    from bench_models import build

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if side == "ours":
        from dort_rewriter import OrtBackend

        backend: Any = OrtBackend()
    else:
        backend = "onnxrt"
    step: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "model" in request:
            torch._dynamo.reset()
            if request["model"].startswith("llama"):
                avoid_pow()
            model, mode = build(request["model"]), request["mode"]
            model.module.train(mode == "training")
            expected = make_step(model, model.module, mode)()
            step = make_step(model, torch.compile(model.module, backend=backend), mode)
            start = time.perf_counter()
            got = step()
            first = time.perf_counter() - start
            answer = {"first_s": first, "error": largest_difference(got, expected)}
        else:
            spent = []
            end = time.perf_counter() + request["seconds"]
            while time.perf_counter() < end or len(spent) < 3:
                start = time.perf_counter()
                step()
                spent.append(time.perf_counter() - start)
            answer = {"spent": spent[1:]}
        sys.stderr.write("answer " + json.dumps(answer) + "\n")
        sys.stderr.flush()


class Side:
    """One of the two processes."""

    def __init__(self, python: str, name: str) -> None:
        self.process = subprocess.Popen(
            [python, __file__, "--worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # torch's exporter prints
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request; return the answer."""
        requests, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stderr)
        requests.write(json.dumps(request) + "\n")
        said = []
        for line in answers:
            if line.startswith("answer "):
                answer: dict[str, Any] = json.loads(line.removeprefix("answer "))
                return answer
            said.append(line)
        raise RuntimeError("A process ended:\n" + "".join(said[-20:]))

    def close(self) -> None:
        """End the process."""
        cast(IO[str], self.process.stdin).close()
        self.process.wait()


def measure(sides: dict[str, Side], model: str, mode: str, seconds: float) -> dict[str, Any]:
    """First call, error and median milliseconds of each side."""
    firsts = {name: side.ask(model=model, mode=mode) for name, side in sides.items()}
    spent: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            spent[name] += side.ask(seconds=seconds / ROUNDS)["spent"]
    ms = {name: statistics.median(times) * 1e3 for name, times in spent.items()}
    return {
        "model": model,
        "mode": mode,
        "ms": ms,
        "first_s": {name: f["first_s"] for name, f in firsts.items()},
        "errors": {name: f["error"] for name, f in firsts.items()},
        "ratio": ms["torch"] / ms["ours"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--their-python", help="interpreter of the other environment")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--seconds", type=float, default=3.0, help="per side and model")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--worker", choices=["ours", "torch"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker)
        return 0
    if not arguments.their_python:
        parser.error("--their-python is required")
    sides = {
        "torch": Side(arguments.their_python, "torch"),
        "ours": Side(sys.executable, "ours"),
    }
    rows = []
    for model in arguments.models.split(","):
        for mode in arguments.modes.split(","):
            row = measure(sides, model, mode, arguments.seconds)
            rows.append(row)
            cells = (
                f"{name} {row['ms'][name]:8.3f} ms (first {row['first_s'][name]:5.1f} s, "
                f"error {row['errors'][name]:.0e})"
                for name in sides
            )
            print(f"{model:12} {mode:9} " + " | ".join(cells) + f" | x{row['ratio']:.2f}")
    for side in sides.values():
        side.close()
    worst = min(r["ratio"] for r in rows)
    print(f"least ratio {worst:.2f} (target {TARGET})")
    if arguments.json:
        report = {"rows": rows, "worst": worst, "target": TARGET}
        arguments.json.write_text(json.dumps(report, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
