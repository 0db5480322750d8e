"""A program whose first compilation, and whose end, find several threads at work.

usage: python -m tests.backends.lifetime.starts_and_ends
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

import torch
from torch import nn

THREADS = 6
X = torch.randn(16, 8)


def compile_at_once() -> list[Callable[..., torch.Tensor]]:
    """Compile by name in several threads at once, Dynamo not imported before."""
    models = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(THREADS)]
    start, errors = threading.Barrier(THREADS), []
    made: list[Callable[..., torch.Tensor]] = []

    def work(model: nn.Module) -> None:
        try:
            start.wait()
            compiled = torch.compile(model, backend="onnxrt")
            with torch.no_grad():
                torch.testing.assert_close(compiled(X), model(X))
            made.append(compiled)
        except BaseException as error:  # raised below, in the main thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return made


def leave_daemons(compiled: Callable[..., torch.Tensor]) -> None:
    """Let threads that nobody waits for run a session while the interpreter ends.

    A function that is registered after the first call still finds them at work.
    """
    called = threading.Semaphore(0)

    def call() -> None:
        with torch.no_grad():
            while True:
                compiled(X)
                called.release()

    def drain() -> None:
        for _ in range(20):
            called.acquire()
        with torch.no_grad():  # as its threads: a compilation beside calls is not torch 2.8's
            torch.testing.assert_close(compiled(X), compiled(X))
        print("drained", flush=True)

    atexit.register(drain)
    for _ in range(3):
        threading.Thread(target=call, daemon=True).start()
    for _ in range(20):
        called.acquire()


if __name__ == "__main__":
    first, *_ = compile_at_once()
    print("compiled", flush=True)
    leave_daemons(first)
    print("ends", flush=True)
