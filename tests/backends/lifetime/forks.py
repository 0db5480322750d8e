"""What forked children do with models that their parent compiled: a program of its own.

usage: python -m tests.backends.lifetime.forks THREADS PATTERNS

NOTE: a child that waits for ever is killed and named; nothing here may hang.
"""

from __future__ import annotations

import copy
import faulthandler
import gc
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dort_rewriter import installed
from tests.backends.ways import compile_strictly

LIMIT = 300.0
"""Seconds for a child that takes two on a quiet machine."""

X = torch.randn(256, 64)


class Subject:
    """A compiled model, and what eager mode says."""

    def __init__(self, **options: Any) -> None:
        self.model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128))
        reference = copy.deepcopy(self.model)
        self.weights = list(self.model.parameters())
        self.compiled, self.backend = compile_strictly(self.model, fullgraph=False, **options)
        self.wanted = reference(X).detach()
        loss = reference(X).square().mean()
        self.gradients = torch.autograd.grad(loss, list(reference.parameters()))

    def infer(self) -> None:
        with torch.no_grad():
            torch.testing.assert_close(self.compiled(X), self.wanted)

    def train(self) -> None:
        got = torch.autograd.grad(self.compiled(X).square().mean(), self.weights)
        torch.testing.assert_close(got, self.gradients)

    def both(self) -> None:
        for _ in range(3):
            self.infer()
            self.train()


def in_child(work: Callable[[], object]) -> str:
    """How a child that does this work ended.

    NOTE: not by ``sys.exit``: a child of a process that imported onnxruntime 1.31 may wait there
    for ever, for a thread of onnxruntime. Those of multiprocessing end by ``os._exit`` too.
    """
    faulthandler.cancel_dump_traceback_later()  # of a child that forks: its thread stays here
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(0.9 * LIMIT)  # where it waits, in the report
        try:
            work()
        except BaseException as error:  # the parent is told
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return "done" if status == 0 else f"status {status}"
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def work_in_parallel() -> torch.Tensor:
    """Let torch share an operator between its threads."""
    return torch.ones(1 << 20).mul_(2.0)


def map_in_pool(subject: Subject) -> str:
    """How a pool of forked workers ended that calls a model of the parent."""
    global _shared
    _shared = subject
    with multiprocessing.get_context("fork").Pool(2) as pool:
        try:
            pool.map_async(_call_shared, range(4)).get(LIMIT)
        except multiprocessing.TimeoutError:
            return "hangs"
    return "done"


_shared: Subject


def _call_shared(_: int) -> None:
    _shared.both()


def forget(subject: Subject) -> None:
    """Let sessions go, as far as a child may."""
    torch._dynamo.reset()
    subject.__dict__.clear()
    gc.collect()


def main(threads: int, patterns: str) -> dict[str, str]:
    os.environ["ONNXRT_CHANGE_REWRITER"] = "1"
    torch.set_num_threads(threads)
    with installed():
        subject = Subject(optimization={"patterns": patterns})
        subject.both()
        work_in_parallel()
        ends = {
            "a model of the parent": in_child(subject.both),
            "torch alone": in_child(work_in_parallel),
            "a grandchild": in_child(lambda: _expect(in_child(subject.both))),
            "a model of its own": in_child(lambda: Subject(cache=False).both()),
            "sessions of the parent end": in_child(lambda: forget(subject)),
            "a pool": map_in_pool(subject),
        }
        subject.both()
        ends["the parent itself"] = "done"
        return ends


def _expect(end: str) -> None:
    assert end == "done", end


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])), flush=True)
