"""One backend of the demonstration in a process of its own: asked line by line, in JSON.

A process each makes first results and memory what a program meets; the asker takes turns, so that
steps share what else the machine is doing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import torch

from dort_rewriter.tools.command import brief
from dort_rewriter.tools.demo_model import Size, make_batch, make_model
from dort_rewriter.tools.dumps import dump_onnx

PREFIX = "demo"

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


class Worker:
    """The model under one backend."""

    def __init__(self, backend: str, size: Size, folder: str | None = None) -> None:
        self._model = make_model(size)
        self._tokens, self._next = make_batch(size)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        self._call: Callable[[torch.Tensor], torch.Tensor] = (
            self._model if backend == "eager" else torch.compile(self._model, backend=backend)
        )
        self._folder = folder
        """Where the graphs of the next training step are written; None: nowhere."""

    def inference(self) -> dict[str, Any]:
        """The seconds of a call without gradients."""
        start = time.perf_counter()
        with torch.no_grad():
            self._call(self._tokens)
        return {"seconds": time.perf_counter() - start}

    def training(self) -> dict[str, Any]:
        """The seconds of a training step, its optimizer included, and its loss."""
        folder, self._folder = self._folder, None
        files: list[Path] = []
        start = time.perf_counter()
        with contextlib.ExitStack() as stack:
            if folder is not None:
                files = stack.enter_context(dump_onnx(PREFIX, folder, clean=True))
            self._optimizer.zero_grad()
            scores = self._call(self._tokens).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(scores, self._next.flatten())
            loss.backward()
            self._optimizer.step()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "loss": float(loss.detach()), "files": list(map(str, files))}

    def memory(self) -> dict[str, Any]:
        """The peak memory of this process in megabytes during a training step, None if unknown."""
        try:
            RESET.write_text("5")  # the peak starts again
            self.training()
            lines = STATUS.read_text().splitlines()
        except OSError:  # another system than Linux, or one that hides it
            return {"megabytes": None}
        peak = next((line for line in lines if line.startswith("VmHWM")), None)
        return {"megabytes": None if peak is None else int(peak.split()[1]) / 1024}


def serve(questions: TextIO, answers: TextIO) -> None:
    """Make a worker of the first line, and answer each that follows until there is none."""
    worker: Worker | None = None
    for line in questions:
        try:
            asked = json.loads(line)
            if worker is None:
                size = Size(**asked.pop("size"))
                worker, answer = Worker(size=size, **asked), {}
            else:
                answer = getattr(worker, asked)()
        except Exception as error:  # a compiler may be missing: the table says why
            answer = {"failure": brief(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve on the standard input and output, which nothing else of the process gets."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
