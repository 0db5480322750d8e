"""Views and writes at random: results lie in memory, and share it, as in eager mode."""

from __future__ import annotations

import pytest

from tests.backends.random_views import Views, failure, generate, shrink

SEEDS, BATCH = 40, 8


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_as_in_eager_mode(first: int) -> None:
    """``python -m tests.backends.random_views --first SEED --count 1`` runs one of them again."""
    for seed in range(first, first + BATCH):
        views = generate(seed)
        found = failure(views)
        assert not found, f"seed {seed}\n{views.text()}{found}"


def test_programs_are_of_several_lines() -> None:
    programs = [generate(seed) for seed in range(SEEDS)]
    assert min(len(p.lines) for p in programs) >= 1
    assert sum(len(p.lines) for p in programs) > 4 * SEEDS
    assert any("_(" in line for p in programs for line in p.lines)


def test_a_failing_program_shrinks_to_what_fails() -> None:
    views = Views(
        ("torch.randn(n, 6)", "torch.randn(n, n)"),
        ("b0[1:]", "b1"),
        ("v0 = a0.t()", "v1 = v0[1:]", "a0.mul_(2)", "v2 = a1 * 2"),
        ("v1", "v2"),
        "grad",
        True,
        leaves=False,
    )
    small = shrink(views, lambda v: any("a0.t()" in line for line in v.lines))
    assert small.lines == ("v0 = a0.t()", "v2 = a1 * 2")
    assert (small.bases, small.arguments) == (("torch.randn(n, 6)",), ("b0", "b0"))
    assert (small.mode, small.dynamic, small.results) == ("no_grad", False, ("v2",))
