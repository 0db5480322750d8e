"""Programs at random: a seed is one program, eager mode runs it, and a failing one shrinks."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests.backends.program_check import failure, shrink
from tests.backends.random_programs import SIZES, RandomProgram, generate

pytestmark = pytest.mark.filterwarnings("ignore")  # eager mode warns of what it refuses


def test_a_seed_is_one_program() -> None:
    assert generate(3).text() == generate(3).text()
    assert len({generate(seed).text() for seed in range(20)}) == 20


@pytest.mark.parametrize("seed", range(20))
def test_eager_mode_runs_what_is_made(seed: int) -> None:
    program = generate(seed, (5, 12))
    make, function = program.functions()
    with torch.no_grad(), warnings.catch_warnings():
        for size in SIZES if program.dynamic else SIZES[:1]:
            assert len(function(*make(size))) == len(program.results)


def test_a_failing_program_shrinks_to_what_fails() -> None:
    program = RandomProgram(
        arguments=("torch.randn((n, 3))", "torch.randn((3,))"),
        lines=("v0 = a0 + 1", "v1 = v0.exp()", "v2 = v1.sum()", "v3 = a1.tan()"),
        results=("v2", "v3", "a0"),
        grad=True,
        dynamic=True,
    )
    small = shrink(program, lambda p: any("exp" in line for line in p.lines))
    assert small.lines == ("v1 = a0.exp()",)
    assert (small.grad, small.dynamic, small.arguments) == (False, False, ("torch.randn((n, 3))",))


def test_a_right_program_does_not_fail() -> None:
    program = RandomProgram(("torch.randn((n, 3))",), ("v0 = a0.exp()", "v1 = v0.t()"), ("v1",))
    assert failure(program) == ""


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph_module: torch.fx.GraphModule, args: object, **_: object) -> object:
        return lambda *given: tuple(r * 2 for r in graph_module.forward(*given))

    compile_it = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda f, backend, **more: compile_it(
            f, backend=wrong if backend == "onnxrt" else backend, **more
        ),
    )
    program = RandomProgram(("torch.randn((n, 3))",), ("v0 = a0.exp()",), ("v0",))
    assert failure(program).startswith("size 4, r0")
