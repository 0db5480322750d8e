"""Run programs at random through the ``onnxrt`` backend, and compare each with eager mode.

usage: python scripts/fuzz.py [--programs 5000] [--first SEED] [--providers NAME ...]

Values, types, strides, aliases, what was written, gradients: ``tests/backends/program_check.py``
says what is compared. Each failure prints its seed and the program, shrunk, as Python. Where
torch's AOTAutograd alone does the same as the backend, the seed is said to be torch's, and counted
apart. A program that ends the process is a failure as well, unless eager mode alone ends it the
same way; the seeds after it go on in another process. Exits with 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from child_records import receive_until_closed

FORKS = multiprocessing.get_context("fork")

OPTIONS: dict[str, Any] = {}
"""Options of the backend, which the forks inherit."""


def run(seeds: Sequence[int], steps: tuple[int, int], shrinking: float) -> Counter[str]:
    """Judge the programs of some seeds, and return how many there are of each verdict."""
    from tests.backends.program_check import run_eager
    from tests.backends.random_programs import generate

    kinds: Counter[str] = Counter()
    while seeds:
        found, status = judge_in_a_process(seeds, steps, shrinking)
        kinds.update(found)
        seeds = seeds[len(found) :]
        if not seeds:
            break
        program = generate(seeds[0], steps)
        alone = FORKS.Process(target=run_eager, args=(program,))
        alone.start()
        alone.join()
        kind = "torch's" if alone.exitcode == status else "wrong"
        kinds[kind] += 1
        print(f"# seed {seeds[0]} is {kind}: the process ended with {status}", flush=True)
        if kind == "wrong":
            print(program.text(), flush=True)
        seeds = seeds[1:]
    return kinds


def judge_in_a_process(
    seeds: Sequence[int], steps: tuple[int, int], shrinking: float
) -> tuple[list[str], int | None]:
    """The verdicts on the first programs, until one of them ends the process; how that ended."""
    receiver, sender = FORKS.Pipe(duplex=False)
    child = FORKS.Process(target=send_verdicts, args=(sender, seeds, steps, shrinking))
    child.start()
    sender.close()
    found, _ = receive_until_closed(receiver)
    child.join()
    return found, child.exitcode


def send_verdicts(
    verdicts: Connection, seeds: Sequence[int], steps: tuple[int, int], shrinking: float
) -> None:
    """Send the kind of each verdict as it is found."""
    for kind in judge_each(seeds, steps, shrinking):
        verdicts.send(kind)


def judge_each(seeds: Sequence[int], steps: tuple[int, int], shrinking: float) -> Iterator[str]:
    """Yield the verdict on the program of each seed."""
    from tests.backends.program_check import judge, shrink
    from tests.backends.random_programs import RandomProgram, generate

    # What the interpreter has loaded is not looked through again and again for garbage.
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    for seed in seeds:
        program = generate(seed, steps)
        try:
            verdict = judge(program, OPTIONS)
        except Exception:  # a defect of the judge: the other seeds are judged all the same
            print(f"# seed {seed}: the judge failed\n{traceback.format_exc()}", flush=True)
            yield "judge failed"
            continue
        if verdict.kind in ("left", "torch's"):
            first = " ".join(verdict.text.splitlines()[:2])[:200]
            print(f"# seed {seed} is {verdict.kind}: {first}", flush=True)
        if not verdict.failed:
            yield verdict.kind
            continue
        until = time.monotonic() + shrinking

        def fails(smaller: RandomProgram, kind: str = verdict.kind, until: float = until) -> bool:
            return time.monotonic() < until and judge(smaller, OPTIONS).kind == kind

        small = shrink(program, fails)
        switches = [n for n in ("grad", "dynamic", "autocast") if getattr(small, n)]
        print(f"# seed {seed} {' '.join(switches)}\n{small.text()}", flush=True)
        lines = (judge(small, OPTIONS).text or verdict.text).splitlines()
        print("\n".join(f"# {line}" for line in lines), flush=True)
        yield verdict.kind


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
    parser.add_argument("--providers", nargs="*", help="execution providers, best first")
    options = parser.parse_args()
    if options.providers:
        OPTIONS["preferred_execution_providers"] = options.providers
    os.environ["DORT_CACHE"] = "0"
    os.environ["ONNXRT_CHANGE_REWRITER"] = "1"
    torch.set_num_threads(1)
    # torch logs what fails while it traces; a program that does is judged all the same.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    logging.getLogger("dort_rewriter").propagate = False
    import dort_rewriter

    dort_rewriter.install()
    seeds = options.seeds or range(options.first, options.first + options.programs)
    start = time.monotonic()
    kinds = run(seeds, tuple(options.steps), options.shrinking)
    failed = kinds["wrong"] + kinds["given up"] + kinds["judge failed"]
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    seconds = time.monotonic() - start
    print(f"{len(seeds)} seeds from {seeds[0]} to {seeds[-1]} in {seconds:.0f} s: {counted}")
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
