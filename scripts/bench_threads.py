"""How onnxruntime's threads get along with torch's: training-like and inference-like loops.

usage: python scripts/bench_threads.py [--threads 1,2,4] [--json FILE] [--seconds S]

For each spinning policy and number of threads, of ONNX Runtime and of torch: milliseconds a step
of a two-layer MLP run by onnxruntime, alone (inference) and in turn with torch's own
multi-threaded work of about the same size (a training step with its optimizer); and of one whose
products are torch's kernels inside the sessions (bfloat16; there ``stop`` is ``off``). The
policies run in turn, several rounds; medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import onnx
import onnx.parser
import torch
from torch import nn

from dort_rewriter import OrtBackend
from dort_rewriter.ort_module import describe, max_ir_version
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session, session_options
from dort_rewriter.runtime.threads import Spinning, ThreadPolicy
from dort_rewriter.signature import GraphSignature, InputSlot, OutputSlot
from dort_rewriter.tools.benchmark import alternate

WIDTH = 512
BATCH = 64


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: {max_ir_version()}, opset_import: ["": 18]> mlp'
        f" (float[N,{WIDTH}] x, float[{WIDTH},{WIDTH}] a, float[{WIDTH},{WIDTH}] b)"
        f" => (float[N,{WIDTH}] y) {{ h = MatMul(x, a) r = Relu(h) y = MatMul(r, b) }}"
    )


def executor(policy: ThreadPolicy) -> Executor:
    def slot(name: str, rows: int | str) -> InputSlot:
        return InputSlot(name=name, kind="tensor", dtype=torch.float32, shape=(rows, WIDTH))

    inputs = (slot("x", "N"), slot("a", WIDTH), slot("b", WIDTH))
    result = OutputSlot(kind="tensor", source="model", name="y", dtype=torch.float32)
    session = create_session(model(), options=session_options(threads=policy))
    return Executor(session, GraphSignature(inputs=inputs, outputs=(result,)))


def loops(run: Executor) -> dict[str, Callable[[], Any]]:
    x, a, b = torch.randn(BATCH, WIDTH), torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)
    weights = [torch.randn(WIDTH, WIDTH) for _ in range(2)]

    def training() -> None:
        y = run(x, a, b)[0]
        for weight in weights:
            weight.add_(y.t() @ x, alpha=1e-6)

    return {"inference": lambda: run(x, a, b), "training": training}


def mixed_loops(policy: ThreadPolicy) -> dict[str, Callable[[], Any]]:
    """Steps whose sessions have kernels of torch beside those of onnxruntime."""
    torch._dynamo.reset()
    module = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()
    )
    options = {"intra_op_threads": policy.intra_op_threads, "spinning": policy.spinning}
    compiled = torch.compile(module, backend=OrtBackend(options))
    x = torch.randn(BATCH, WIDTH)

    def inference() -> None:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            compiled(x)

    def training() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            y = compiled(x)
        y.float().square().mean().backward()
        module.zero_grad()

    return {"inference, torch's kernels": inference, "training, torch's kernels": training}


def time_loop(step: Callable[[], Any], seconds: float) -> float:
    """The median milliseconds of a step."""
    spent = alternate({"step": step}, seconds, time.perf_counter)
    return statistics.median(spent["step"]) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--seconds", type=float, default=0.3, help="per policy and round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", default=f"1,{torch.get_num_threads()}")
    arguments = parser.parse_args()
    threads = sorted({int(n) for n in arguments.threads.split(",")})
    policies = [
        ThreadPolicy(intra_op_threads=n, spinning=spinning)
        for n in threads
        for spinning in get_args(Spinning)
    ]
    samples: dict[tuple[str, int, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for policy in policies:
            # One session at a time: the threads of another would spin beside it.
            torch.set_num_threads(policy.intra_op_threads or 1)
            for kind, step in (loops(executor(policy)) | mixed_loops(policy)).items():
                key = (kind, policy.intra_op_threads or 0, policy.spinning)
                samples.setdefault(key, []).append(time_loop(step, arguments.seconds))
    rows = [
        {"loop": kind, "threads": n, "spinning": spinning, "ms": statistics.median(values)}
        for (kind, n, spinning), values in sorted(samples.items())
    ]
    print(f"{describe()}, torch {torch.__version__}")
    for row in rows:
        print(f"{row['loop']:26} threads={row['threads']} {row['spinning']:5} {row['ms']:8.3f} ms")
    if arguments.json:
        report = {"onnxruntime": describe(), "torch": torch.__version__, "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
