"""Children of a process that imported torch alone compile a model: a program of its own.

usage: python -m tests.backends.lifetime.late_forks WAY...

NOTE: nothing here imports the package before a child does.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import torch
from torch.utils.data import DataLoader, Dataset

LIMIT = 120.0
"""Seconds for a child that takes four on a quiet machine."""


def compile_by_name(_: int = 0) -> bool:
    """Whether a compiled function gives what eager mode gives, in two threads."""
    importlib.import_module("dort_rewriter")  # torch 2.8 compiles by its own backend otherwise
    options = {"intra_op_threads": 2, "cache": False}
    x = torch.linspace(-1, 1, 64)
    compiled = torch.compile(_function, backend="onnxrt", options=options)
    right = [torch.allclose(compiled(x), _function(x)) for _ in range(3)]
    return all(right)


def _function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + 1) * x


def in_fork() -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if compile_by_name() else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status == 0
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError


def in_pool() -> bool:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return all(pool.map_async(compile_by_name, [0]).get(LIMIT))


def in_executor() -> bool:
    context = multiprocessing.get_context("fork")
    executor = ProcessPoolExecutor(1, context)
    work = executor.submit(compile_by_name)
    try:
        return work.result(LIMIT)
    except TimeoutError:
        for process in executor._processes.values():
            process.kill()
        raise
    finally:
        executor.shutdown()


class _Compiling(Dataset[bool]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> bool:
        return compile_by_name()


def in_loader() -> bool:
    loader = DataLoader(_Compiling(), num_workers=1, multiprocessing_context="fork", timeout=LIMIT)
    return all(bool(found) for found in loader)


WAYS: dict[str, Callable[[], bool]] = {
    "fork": in_fork,
    "pool": in_pool,
    "executor": in_executor,
    "loader": in_loader,
}


def main(ways: list[str]) -> dict[str, str]:
    torch.set_num_threads(2)
    matrix = torch.ones(512, 512)
    torch.mm(matrix, matrix)
    torch.ones(1 << 20).mul_(2.0)
    ends = {}
    for way in ways:
        try:
            ends[way] = "done" if WAYS[way]() else "wrong"
        except Exception as error:  # the caller is told  # noqa: PERF203
            ends[way] = f"{type(error).__name__}: {error}"
    return ends


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])), flush=True)
