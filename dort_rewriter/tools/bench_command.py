"""``dort-rewriter bench``: how fast a model is in eager mode, by Inductor, in ONNX Runtime."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from dort_rewriter.tools.benchmark import BACKENDS, MEANING, MODES, benchmark
from dort_rewriter.tools.busy import busy
from dort_rewriter.tools.command import answer, list_of, make_parser
from dort_rewriter.tools.demo_model import Size, make_batch, make_model
from dort_rewriter.tools.model_source import HELP, load_pair

__all__ = ["run_bench"]


def run_bench(arguments: Sequence[str]) -> int:
    """Print the table; 1 when a variant of this package fails or is not what eager computes."""
    parser = make_parser(
        "bench",
        "Time inference and training steps of a model under several backends, in turns, and\n"
        "compare what they compute with eager mode. Ends with 1 if a backend of this package\n"
        "fails, or differs.\n\n"
        f"backends:\n{list_of(MEANING)}\n"
        "  and each other name that torch.compile knows.",
        "examples:\n"
        "  dort-rewriter bench                                  a small model of its own\n"
        "  dort-rewriter bench model.py:make_model --modes inference\n"
        "  dort-rewriter bench package.models:small --backends eager,onnxrt,onnxrt-fused --json",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=HELP)
    parser.add_argument(
        "--modes",
        default=",".join(MODES),
        metavar="NAMES",
        help="inference, training: forward, backward and gradients (default: %(default)s)",
    )
    parser.add_argument(
        "--backends",
        default=",".join(BACKENDS),
        metavar="NAMES",
        help="those to time, of the above (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.0,
        help="for each backend and mode, after its first step (default: %(default)s)",
    )
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time on one thread, for a machine that others use too",
    )
    options = parser.parse_args(arguments)
    model, args = _built_in() if options.model is None else load_pair(options.model)
    print("The first steps compile; that of Inductor may take a minute.", file=sys.stderr)
    threads = torch.get_num_threads()
    if not options.cpu_time and (words := busy(threads)):
        print(f"NOTE: {words}; --cpu-time counts processor time.", file=sys.stderr)
    if options.cpu_time:
        torch.set_num_threads(1)
    try:
        found = benchmark(
            model,
            args,
            modes=options.modes.split(","),
            backends=options.backends.split(","),
            seconds=options.seconds,
            clock=time.process_time if options.cpu_time else time.perf_counter,
            dynamic=True if options.dynamic else None,
        )
    finally:
        torch.set_num_threads(threads)
    answer(options.json, found.to_dict(), str(found))
    return int(bool(found.wrong))


def _built_in() -> tuple[Any, Sequence[Any]]:
    """The model of the demonstration."""
    size = Size()
    return make_model(size), make_batch(size)[:1]
