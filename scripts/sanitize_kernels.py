"""Crafted nodes for the operators of our own, computed under the address and UB sanitizers.

``sanitize_kernels.cpp`` stands for ONNX Runtime: it gives each tensor memory of exactly its size.
Cases are drawn at random: as exporters write them (``kernel_cases.py``), or with attributes,
sizes, types, numbers of inputs and integers replaced by what nobody would write
(``kernel_spoilers.py``). Each must be computed or refused: what a sanitizer finds, work without
end and memory without limit end the run, with the case that did it.

    python scripts/sanitize_kernels.py --cases 20000 --seed 1

With ``--saved`` descriptions of saved models are changed (``saved_mutations.py``) and loaded, with
the libraries as they are installed: each is refused by an ExecutionError, or is right.

    python scripts/sanitize_kernels.py --saved 2000 --seed 1

With ``--torch`` nodes that kernels of torch and MKL compute are run in sessions
(``torch_cases.py``): there are no sanitizers in these libraries; none may end the process.

    python scripts/sanitize_kernels.py --torch 20000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kernel_cases import MAKERS
from kernel_spoilers import draw

from dort_rewriter.kernels.build import includes

HERE = Path(__file__).resolve().parent
FLAGS = [
    *("-std=c++17", "-O1", "-g", "-pthread", "-ffp-contract=off", "-D_GLIBCXX_ASSERTIONS"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
]
SETTINGS = {"ASAN_OPTIONS": "max_allocation_size_mb=1024:detect_leaks=1"}


def build(compiler: str, flags: Sequence[str], target: Path) -> None:
    """Compile the operators with the sanitizers, around what stands for ONNX Runtime."""
    source = HERE / "sanitize_kernels.cpp"
    command = [compiler, *FLAGS, *flags, *includes(), str(source), "-o", str(target)]
    subprocess.run(command, check=True)


def sanitize(program: Path, lines: Iterator[tuple[str, str]]) -> Counter[str]:
    """Count the answers to cases by operator; an exception for what is found."""
    answers: Counter[str] = Counter()
    with subprocess.Popen(
        [program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **SETTINGS},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for op, line in lines:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise AssertionError(f"{op}: the program ended at this case:\n{line}")
            answers[f"{op} {answer.partition(':')[0].strip()}"] += 1
        process.stdin.close()
        if process.wait() != 0:
            raise AssertionError("memory was not given back")
    return answers


def draw_all(cases: int, seed: int, only: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the operator and the line of each case."""
    for number in range(cases):
        r = random.Random(f"{seed} {number}")
        op = only[number % len(only)]
        yield op, draw(r, op).line(r.randrange(2**31))


def run_apart(script: str, *arguments: object) -> Counter[str]:
    """Count the answers of a program that draws cases; an exception for what must not be."""
    environment = {**os.environ, "DORT_CACHE": "0", "ONNXRT_CHANGE_REWRITER": "1"}
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"it ended by {done.returncode}, after\n{done.stderr[-2000:]}")
    answers = Counter(json.loads(done.stdout.splitlines()[-1]))
    allowed = ("computed", "refused", "right", "other", "not run")
    if wrong := [answer for answer in answers if not answer.endswith(allowed)]:
        raise AssertionError(f"neither right nor refused: {wrong}")
    return answers


def mutate_saved(cases: int, seed: int) -> Counter[str]:
    """Count what became of changed descriptions of saved models."""
    with tempfile.TemporaryDirectory() as folder:
        return run_apart("saved_mutations.py", folder, cases, seed)


def main() -> int:
    """Compile, feed, and print the answers by operator as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--torch", type=int, default=0, help="only nodes that torch and MKL compute"
    )
    parser.add_argument("--saved", type=int, default=0, help="only descriptions of saved models")
    parser.add_argument("--only", default=",".join(MAKERS), help="operators, by name")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument(
        "--flags", default="-march=native", help="for the processor; '' for a portable library"
    )
    options = parser.parse_args()
    try:
        if options.saved:
            answers = mutate_saved(options.saved, options.seed)
        elif options.torch:
            answers = run_apart("torch_cases.py", options.torch, options.seed)
        else:
            answers = feed(options)
    except AssertionError as found:
        print(found, file=sys.stderr)
        return 1
    print(json.dumps(dict(sorted(answers.items())), indent=1))
    return 0


def feed(options: argparse.Namespace) -> Counter[str]:
    """Compile the operators, and feed them."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "sanitized")
        build(options.compiler, options.flags.split(), program)
        lines = draw_all(options.cases, options.seed, options.only.split(","))
        return sanitize(program, lines)


if __name__ == "__main__":
    sys.exit(main())
