"""Run programs at random through the ``onnxrt`` backend, and compare each with eager mode.

usage: python scripts/fuzz.py [--programs 5000] [--first SEED]

Values, types, strides, aliases, what was written, gradients: ``tests/backends/program_check.py``
says what is compared. Each failure prints its seed and the program, shrunk, as Python. Exits with
1 if there is one.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch


def run(seeds: Iterable[int], steps: tuple[int, int], shrinking: float) -> int:
    """How many of the programs fail."""
    from tests.backends.program_check import failure, shrink
    from tests.backends.random_programs import RandomProgram, generate

    failed = 0
    for seed in seeds:
        program = generate(seed, steps)
        if not (found := failure(program)):
            continue
        failed += 1
        given_up, until = found.startswith("given up"), time.monotonic() + shrinking

        def fails(smaller: RandomProgram, given_up: bool = given_up, until: float = until) -> bool:
            left = failure(smaller) if time.monotonic() < until else ""
            return bool(left) and left.startswith("given up") == given_up

        small = shrink(program, fails)
        switches = [n for n in ("grad", "dynamic", "autocast") if getattr(small, n)]
        print(f"# seed {seed} {' '.join(switches)}\n{small.text()}", flush=True)
        print(
            "\n".join(f"# {line}" for line in (failure(small) or found).splitlines()), flush=True
        )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=5000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, nargs="+", help="these alone")
    parser.add_argument(
        "--shrinking", type=float, default=120.0, help="seconds for making one failure smaller"
    )
    parser.add_argument("--steps", type=int, nargs=2, default=(5, 40), help="steps of a program")
    options = parser.parse_args()
    os.environ["DORT_CACHE"] = "0"
    os.environ["ONNXRT_CHANGE_REWRITER"] = "1"
    torch.set_num_threads(1)
    # torch logs what fails while it traces; a program that does is judged all the same.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    logging.getLogger("dort_rewriter").propagate = False
    import dort_rewriter

    dort_rewriter.install()
    seeds = options.seeds or range(options.first, options.first + options.programs)
    failed = run(seeds, tuple(options.steps), options.shrinking)
    print(f"{len(seeds)} seeds from {seeds[0]} to {seeds[-1]}: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
