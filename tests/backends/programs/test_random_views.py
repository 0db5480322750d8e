"""Views and writes at random: results lie in memory, and share it, as in eager mode."""

from __future__ import annotations

import pytest

from tests.backends.programs.program_check import judge, shrink
from tests.backends.programs.random_programs import RandomProgram, generate

pytestmark = pytest.mark.filterwarnings("ignore")  # eager mode warns of what it refuses

SEEDS, BATCH = 40, 8


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_as_in_eager_mode(first: int) -> None:
    """``scripts/fuzz.py --part views --seeds SEED`` runs one of them again."""
    for seed in range(first, first + BATCH):
        program = generate(seed, part="views")
        verdict = judge(program)
        assert not verdict.failed, f"seed {seed}\n{program.text()}{verdict.text}"


def test_programs_are_of_several_lines() -> None:
    programs = [generate(seed, part="views") for seed in range(SEEDS)]
    assert min(len(p.lines) for p in programs) >= 1
    assert sum(len(p.lines) for p in programs) > 4 * SEEDS
    assert {p.mode for p in programs} == {"grad", "no_grad", "inference"}
    assert {p.dynamic for p in programs} == {False, True, None}
    assert sum(p.mutates for p in programs) > SEEDS / 4


def test_a_failing_program_shrinks_to_what_fails() -> None:
    program = RandomProgram(
        arguments=("b0[1:]", "b1"),
        lines=("v0 = a0.t()", "v1 = v0[1:]", "a0.mul_(2)", "v2 = a1 * 2"),
        results=("v1", "v2"),
        grad=True,
        dynamic=None,
        bases=("torch.randn(n, 6)", "torch.randn(n, n)"),
    )
    small = shrink(program, lambda p: any("a0.t()" in line for line in p.lines))
    assert small.lines == ("v0 = a0.t()",)
    assert (small.bases, small.arguments) == (("torch.randn(n, 6)",), ("b0", "b0"))
    assert (small.mode, small.dynamic) == ("no_grad", False)
