"""Run programs at random through the ``onnxrt`` backend, and compare each with eager mode.

usage: python scripts/fuzz.py [--programs 5000] [--first SEED] [--part views]
                              [--providers NAME ...]

Values, types, strides, aliases, what was written, gradients:
``tests/backends/programs/program_check.py`` says what is compared. Each failure prints its seed
and the program, shrunk, as Python. Where torch's AOTAutograd alone does the same as the backend,
the seed is said to be torch's, and counted apart. A program that ends the process is a failure as
well, unless eager mode alone ends it the same way; the seeds after it go on in another process.
Exits with 1 if there is a failure.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from children import FORKS, Lost, measured
from sweeps import require_backend, require_verdicts

Steps = tuple[int, int] | None

MOST_PASSED = 0.5
"""The share of programs that eager mode may refuse, or whose graphs may be torch's as a whole."""
OPTIONS: dict[str, Any] = {}
"""Options of the backend, which the forks inherit."""


def run(seeds: Sequence[int], part: str, steps: Steps, shrinking: float) -> Counter[str]:
    """Judge the programs of some seeds, and return how many there are of each verdict."""
    from tests.backends.programs.program_check import run_eager
    from tests.backends.programs.random_programs import generate

    kinds: Counter[str] = Counter()
    for seed, kind in measured(seeds, lambda seed: [judge_seed(seed, part, steps, shrinking)]):
        if isinstance(kind, Lost):
            program, end = generate(seed, steps, part), str(kind)
            alone = FORKS.Process(target=run_eager, args=(program,))
            alone.start()
            alone.join()
            kind = "torch's" if alone.exitcode == kind.status else "wrong"
            print(f"# seed {seed} is {kind}: {end}", flush=True)
            if kind == "wrong":
                print(program.text(), flush=True)
        kinds[kind] += 1
    return kinds


def judge_seed(seed: int, part: str, steps: Steps, shrinking: float) -> str:
    """The verdict on the program of a seed."""
    from tests.backends.programs.program_check import judge, shrink
    from tests.backends.programs.random_programs import RandomProgram, generate

    program = generate(seed, steps, part)
    try:
        verdict = judge(program, OPTIONS)
    except Exception:  # a defect of the judge: the other seeds are judged all the same
        print(f"# seed {seed}: the judge failed\n{traceback.format_exc()}", flush=True)
        return "judge failed"
    if verdict.kind in ("left", "torch's"):
        first = " ".join(verdict.text.splitlines()[:2])[:200]
        print(f"# seed {seed} is {verdict.kind}: {first}", flush=True)
    if not verdict.failed:
        return verdict.kind
    until = time.monotonic() + shrinking

    def fails(smaller: RandomProgram) -> bool:
        return time.monotonic() < until and judge(smaller, OPTIONS).kind == verdict.kind

    small = shrink(program, fails)
    switches = [n for n in ("grad", "dynamic", "autocast", "inference") if getattr(small, n)]
    print(f"# seed {seed} {' '.join(switches)}\n{small.text()}", flush=True)
    lines = (judge(small, OPTIONS).text or verdict.text).splitlines()
    print("\n".join(f"# {line}" for line in lines), flush=True)
    return verdict.kind


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
    parser.add_argument("--part", default="operators", choices=("operators", "views"))
    parser.add_argument("--steps", type=int, nargs=2, help="steps of a program, at least and most")
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
    require_backend()
    seeds = options.seeds or range(options.first, options.first + options.programs)
    start = time.monotonic()
    steps = tuple(options.steps) if options.steps else None
    kinds = run(seeds, options.part, steps, options.shrinking)
    failed = kinds["wrong"] + kinds["fell back"] + kinds["judge failed"]
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    seconds = time.monotonic() - start
    print(f"{len(seeds)} seeds from {seeds[0]} to {seeds[-1]} in {seconds:.0f} s: {counted}")
    print(f"{failed} failed")
    passed = ["refused"] * kinds["refused"] + ["left"] * kinds["left"]
    require_verdicts(len(seeds) - len(passed), passed, most=MOST_PASSED)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
