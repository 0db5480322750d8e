"""Programs of elementwise instructions, two run at a time where they can be: the same bits."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

from tests.kernels.test_custom_kernels import OPERATIONS, Array, _random, _run

FIRSTS = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Sqrt": 8}
SECONDS = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3}
PLAIN = [0, 1, 2, 3, 4, 6, 8, 18]
"""Operations that both numpy and the kernel round once."""


def _computed(program: list[int], results: list[int], inputs: list[Array]) -> list[Array]:
    """What the instructions give one after the other."""
    registers: dict[int, Any] = {}
    with np.errstate(all="ignore"):
        for i in range(0, len(program), 5):
            operation, to, *read = program[i : i + 5]
            # what stands in the place of operands that there are not is looked at by nobody
            operands = [inputs[-1 - r] if r < 0 else registers.get(r) for r in read]
            registers[to] = OPERATIONS[operation](*operands)
    return [registers[r] for r in results]


def _check(program: list[int], results: list[int], inputs: list[Array]) -> None:
    ranks = [inputs[0].ndim] * len(results)
    got = _run("Elementwise", *inputs, ranks=ranks, program=program, results=results)
    for mine, alone in zip(got, _computed(program, results, inputs), strict=True):
        np.testing.assert_array_equal(mine, alone, err_msg=f"{program} {results}")


def _inputs(dtype: Any) -> list[Array]:
    special = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-30, 3.0], dtype=dtype)
    grid = np.array(np.meshgrid(special, special, special), dtype=dtype).reshape(3, -1)
    return [np.concatenate([g, _random(600 + i, dtype=dtype)[:600]]) for i, g in enumerate(grid)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("first", "second"), list(itertools.product(FIRSTS, SECONDS)))
def test_two_instructions(first: str, second: str, dtype: Any) -> None:
    """The first one's result on either side, twice, and read again by others or as a result."""
    a, b = [FIRSTS[first], 1, -1, -2, -2], SECONDS[second]
    inputs = _inputs(dtype)
    _check([*a, b, 0, 1, -3, 1], [0], inputs)
    _check([*a, b, 0, -3, 1, 1], [0], inputs)
    _check([*a, b, 1, 1, -3, 1], [1], inputs)
    _check([*a, b, 0, 1, 1, 1], [0], inputs)
    _check([*a, b, 0, 1, -3, 1], [0, 1], inputs)
    _check([*a, b, 0, 1, -3, 1, 0, 2, 1, 0, 0], [0, 2], inputs)


def test_what_the_first_instruction_reads_is_written_between() -> None:
    """r2 = r0 * c, then r0 is another: the product is not put off."""
    program = [0, 0, -1, -2, -1, 2, 2, 0, -3, 0, 1, 0, -1, -3, -1, 0, 1, 2, -2, 2]
    _check(program, [1, 0], _inputs(np.float32))


@pytest.mark.parametrize("seed", range(40))
def test_programs_at_random(seed: int) -> None:
    """Few registers, written again and again."""
    r = random.Random(seed)
    program: list[int] = []
    written: list[int] = []
    for _ in range(r.randrange(2, 16)):
        readable = [-1, -2, -3, *written * 2]
        to = r.randrange(4)
        program += [r.choice(PLAIN), to, *(r.choice(readable) for _ in range(3))]
        written = sorted({*written, to})
    results = r.sample(written, r.randrange(1, len(written) + 1))
    _check(program, results, _inputs(r.choice([np.float32, np.float64])))
