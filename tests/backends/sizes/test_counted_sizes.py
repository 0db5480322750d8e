"""Sizes that are counted at run time: the graph stays one model, its results lie as eager's do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend, OrtBackendOptions
from tests.backends.memory.aliases import Mode, Program, check
from tests.backends.ways import compile_strictly, models

F = Callable[[torch.Tensor], Any]


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        yield


def table(n: int) -> tuple[torch.Tensor, ...]:
    """Rows of 6, n - 4 of which begin with a positive number."""
    x = torch.randn(5, 6)
    x[:, 0] = (torch.arange(5) < n - 4) * 2.0 - 1
    return (x,)


def chosen(x: torch.Tensor) -> torch.Tensor:
    return x[x[:, 0] > 0]


def count(x: torch.Tensor) -> int:
    return int((x[:, 0] > 0).sum().item())


COUNTED: dict[str, F] = {
    "nonzero": lambda x: torch.nonzero(x > 0),
    "places": lambda x: torch.nonzero(x > 0) * 2,
    "places by columns": lambda x: torch.nonzero(x > 0).t(),
    "places along each axis": lambda x: torch.nonzero(x > 0, as_tuple=True)[1] + 1,
    "argwhere": lambda x: torch.argwhere(x > 0) + 1,
    "sums of places": lambda x: torch.nonzero(x > 0).sum(0),
    "selected": lambda x: torch.masked_select(x, x > 0) + 1,
    "rows": lambda x: chosen(x) + 1,
    "rows at places": lambda x: x[torch.nonzero(x > 0)[:, 0]] * 2,
    "elements at places": lambda x: x[torch.where(x > 0)] * 2,
    "transposed": lambda x: chosen(x).t().relu(),
    "transposed and copied": lambda x: chosen(x).clone().t().contiguous() + 1,
    "permuted": lambda x: (chosen(x)[:, None].permute(2, 0, 1) * 2).exp(),
    "expanded": lambda x: chosen(x).unsqueeze(1).expand(-1, 2, -1) * 2,
    "a view of it": lambda x: (y := chosen(x) * 2, y.t(), y[:, 1:3]),
    "equal views of it": lambda x: (y := chosen(x) * 2, y.t(), y.t())[1:],
    "halves": lambda x: (chosen(x) * 2).chunk(2, 1),
    "two counts": lambda x: chosen(x) @ x[x[:, 1] > 0].t(),
    "flat": lambda x: chosen(x).reshape(-1) * 2,
    "written": lambda x: chosen(x).mul_(2),
    "repeated": lambda x: torch.repeat_interleave(x, (x[:, 0] > 0).long() + 1, dim=0) * 2,
    "scattered": lambda x: x.masked_scatter(x > 0, x[x > 0] * 2),
    "size": lambda x: (chosen(x).shape[0], x * 2),
}
"""Of what is selected."""

INTEGERS: dict[str, F] = {
    "quotients": lambda x: torch.floor_divide(chosen(x).t(), 2),
    "unique": lambda x: torch.unique(x) + 1,
    "unique, and where": lambda x: (u := torch.unique(x, return_inverse=True), u[0][u[1]])[1],
}
"""Of what has no gradient."""

BY_NUMBER: dict[str, F] = {
    "zeros": lambda x: torch.zeros(count(x)) + 1,
    "zeros, transposed": lambda x: torch.zeros(count(x), 3).t() * 2,
    "full": lambda x: torch.full((count(x), 2), 3.0),
    "arange": lambda x: torch.arange(count(x)) * 2,
    "expanded": lambda x: x[:1].expand(count(x), 6) * 2,
    "an expanded argument": lambda x: x[:1].expand(count(x), 6),
    "product": lambda x: torch.ones(count(x), 2) @ torch.ones(2, count(x)),
    "joined": lambda x: torch.cat([x[:, 0], torch.zeros(count(x))]) * 2,
    "number": lambda x: x * count(x),
}
"""Where a number of the arguments is a size."""


def check_as_one(program: Program, mode: Mode) -> None:
    """Compare a program with eager mode, and ask that each of its graphs is one model.

    NOTE: where elements of nothing, or of dimensions of size one, would lie is as it happens.
    """
    made: list[Any] = []

    def compile_it(function: F) -> F:
        # torch asserts itself that counts are natural: that is left to it.
        made[:] = compile_strictly(function, dynamic=None, fallback=True)
        return made[0]

    check(program, compile_it, sizes=(7, 6, 8), dynamic=None, mode=mode)
    compiled, backend = made
    for size in (4, 5):
        (x,) = program.make(size)
        torch.testing.assert_close(compiled(x), program.function(x), check_stride=False)
    assert set(models(backend)) == {1}


@pytest.mark.parametrize("name", COUNTED)
def test_counted(name: str) -> None:
    mode: Mode = "grad" if len(name) % 2 else "no_grad"
    check_as_one(Program(COUNTED[name], table), mode)


@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str) -> None:
    check_as_one(Program(INTEGERS[name], lambda n: ((table(n)[0] * 3).long(),)), "no_grad")


@pytest.mark.parametrize("name", BY_NUMBER)
def test_by_number(name: str) -> None:
    check_as_one(Program(BY_NUMBER[name], table), "no_grad")


@pytest.mark.parametrize("name", ["transposed", "scattered", "repeated"])
def test_gradients_of_other_counts(name: str) -> None:
    function = COUNTED[name]
    compiled, _ = compile_strictly(function, dynamic=None, fallback=True)
    for size in (7, 4, 5):
        (x,) = table(size)
        given, wanted = (x.clone().requires_grad_() for _ in range(2))
        compiled(given).square().sum().backward()
        function(wanted).square().sum().backward()
        torch.testing.assert_close(given.grad, wanted.grad)


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("name", COUNTED)
def test_checks_of_sizes_are_no_reason_to_refuse(name: str, fallback: bool) -> None:
    torch._dynamo.reset()
    backend = OrtBackend(OrtBackendOptions(fallback=fallback))
    compiled = torch.compile(COUNTED[name], backend=backend, fullgraph=True)
    for n in (5, 7):
        (x,) = table(n)
        torch.testing.assert_close(compiled(x), COUNTED[name](x))


def test_checks_of_a_program_are_made() -> None:
    torch._dynamo.reset()

    def checked(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).any(), "none is positive")
        return x * 2

    compiled = torch.compile(checked, backend=OrtBackend(OrtBackendOptions(fallback=False)))
    (x,) = table(6)
    torch.testing.assert_close(compiled(x), x * 2)
    with pytest.raises(RuntimeError, match="none is positive"):
        compiled(-x.abs())
