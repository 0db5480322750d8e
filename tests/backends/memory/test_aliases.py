"""Results that are views, arguments that are written: as in eager mode, for sizes of any kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.backends.memory.aliases import Mode, Program, check
from tests.backends.ways import compile_strictly


def vector(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n),)


def matrix(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 6),)


def square(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, n),)


def cube(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 3, 4),)


def integers(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.arange(n * 6, dtype=torch.int64).view(n, 6),)


def transposed(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(6, n).t(),)


def gapped(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 12)[:, 1:7],)


def stepped(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(2 * n, 6)[::2],)


def late(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 6)[1:3],)


def expanded(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 1).expand(n, 6),)


def pair(n: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(n, 6), torch.randn(n, 6)


def neighbours(n: int) -> tuple[torch.Tensor, ...]:
    base = torch.randn(n + 1, 6)
    return base[:-1], base[1:]


def image(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 3, 4, 4).to(memory_format=torch.channels_last),)


def column(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 1),)


def lonely(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.full((1,), n + 0.5),)


def lonely_channel(n: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 1, 4, 4).to(memory_format=torch.channels_last),)


F = Callable[..., Any]

OF_ARGUMENTS: dict[str, F] = {
    "itself": lambda x: x,
    "itself twice": lambda x: (x, x),
    "chunks": lambda x: x.chunk(2),
    "chunks of the last": lambda x: x.chunk(3, -1),
    "split in two": lambda x: x.split(x.shape[0] // 2),
    "split": lambda x: torch.split(x, 2),
    "split by sizes": lambda x: x.split([2, x.shape[0] - 2]),
    "unbind of the last": lambda x: x.unbind(-1),
    "tensor_split": lambda x: x.tensor_split(3),
    "tensor_split at": lambda x: x.tensor_split([1, 3]),
    "hsplit": lambda x: x.hsplit(2),
    "one of the chunks": lambda x: x.chunk(2)[1],
    "chunks and more": lambda x: (*x.chunk(2), x * 2),
    "two kinds of chunks": lambda x: (*x.chunk(2), *x.t().chunk(2)),
    "chunks of chunks": lambda x: x.chunk(2)[1].chunk(2, 1),
    "rows": lambda x: x[1:3],
    "every second": lambda x: x[::2],
    "last rows": lambda x: x[-2:],
    "half": lambda x: x[: x.shape[0] // 2],
    "a row": lambda x: x[1],
    "the last row": lambda x: x[-1],
    "columns": lambda x: x[:, 1:5:2],
    "narrow": lambda x: x.narrow(1, 2, 3),
    "nothing": lambda x: x[2:2],
    "transposed": lambda x: x.t(),
    "transposed twice": lambda x: x.t().t(),
    "an argument and its view": lambda x: (x, x.t()),
    "unsqueezed": lambda x: x.unsqueeze(1),
    "expanded": lambda x: x.unsqueeze(0).expand(3, *x.shape),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "flattened or not": lambda x: x.flatten(),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 1)),
    "detached": lambda x: x.detach(),
    "detached and not": lambda x: (x * 2, x.detach()[1:]),
    "alias": lambda x: x.view_as(x),
    "bits": lambda x: x.view(torch.int32),
    "bits of a part": lambda x: x[1:].view(torch.int32),
    "under no_grad": lambda x: _no_grad(lambda: x[1:]),
}

OF_COMPUTED: dict[str, F] = {
    "split": lambda x: (x * 2).split(2),
    "chunks": lambda x: (x * 2).chunk(2),
    "chunks of the last": lambda x: (x * 2).chunk(3, -1),
    "chunks and the whole": lambda x: (y := x * 2, *y.chunk(2)),
    "unbind": lambda x: (x + 1).unbind(1),
    "second chunk": lambda x: (x * 2).chunk(2)[1],
    "split by sizes": lambda x: (x * 2).split([2, x.shape[0] - 2]),
    "row": lambda x: (x * 2)[1],
    "last row": lambda x: (x * 2)[-1],
    "columns": lambda x: (x * 2)[:, :5],
    "columns twice": lambda x: (y := x * 2, (y[:, :4], y[:, 2:]))[1],
    "steps": lambda x: (x * 2)[::2, 1::2],
    "squeezed rows": lambda x: (a := (x + 1)[0:1], a.squeeze()),
    "write, then squeeze": lambda x: (a := (x + 1)[0:1], a.squeeze(), a.mul_(3))[:2],
    "as_strided": lambda x: torch.as_strided((x * 2).relu()[:, :5], (2, 5), (6, 1)),
    "as_strided beyond": lambda x: torch.as_strided((x * 2).relu()[:, :5], (4, 6), (6, 1)),
    "as_strided with an offset": lambda x: (x * 2).t().as_strided((3, 2), (2, 1), 3),
    "as_strided of two": lambda x: (y := (x + 1).t(), y.as_strided((2, 2), (1, 3)), y[1:]),
    "empty_strided": lambda x: torch.empty_strided((x.shape[0], 6), (8, 1)).copy_(x),
    "empty_strided wide": lambda x: torch.empty_strided((x.shape[0], 6), (1, 64)).copy_(x),
    "empty_strided and a view": lambda x: (
        y := torch.empty_strided((x.shape[0], 6), (8, 1)).copy_(x),
        y[1:],
    ),
    "a view and empty_strided": lambda x: (
        y := torch.empty_strided((x.shape[0], 6), (8, 1)).copy_(x),
        y[1:],
        y,
    )[1:],
    "as_strided of a copy": lambda x: (y := x.t().flatten(), y.as_strided((2,), (1,)), y[2:]),
    "as_strided of a part of a copy": lambda x: (
        y := x.t().flatten(),
        y[2:].as_strided((3,), (1,)),
    ),
    "expanded": lambda x: (x.sum(1, keepdim=True) * 2).expand(-1, 5),
    "diagonal": lambda x: (x * 2).diagonal(1),
    "diagonal and whole": lambda x: (y := x * 2, y.diagonal()),
    "unfold": lambda x: (x * 2).unfold(0, 2, 1),
    "unfold, divided": lambda x: overlapping_quotient(x),
    "unfold, overlapping": lambda x: (x * 2).unfold(1, 3, 1)[:, 1:],
    "unfold, written to": lambda x: (
        y := (x * 2).unfold(1, 2, 1),
        y.slice_scatter(y[:, :1] - 9, 1, 0, 1),
    )[1],
    "unfold, written to and read": lambda x: (
        y := (x * 2).unfold(0, 2, 1),
        y.select_scatter(y[..., 0] - 9, -1, 0) * 2,
    )[1],
    "unfold, its diagonal written to": lambda x: (
        y := (x * 2).unfold(1, 2, 1),
        y.diagonal_scatter(y.diagonal() - 9),
    )[1],
    "transposed": lambda x: (x * 2).t(),
    "transposed part": lambda x: (x * 2)[1:, 1:4].t(),
    "two views of one": lambda x: (y := (x * 2).sin(), (y.t(), y.view(-1)))[1],
    "equal, but two": lambda x: ((x + 1).t(), (x + 1).t()),
    "equal parts, but two": lambda x: ((x + 1)[1:], (x + 1)[1:]),
    "equal pieces of a split": lambda x: (y := x * 2, y.split(2)[0], y.split(2, 0)[-2])[1:],
    "equal chunks and the whole": lambda x: (y := x * 2, y.chunk(2)[1], y.chunk(2)[1]),
    "equal chunks of a row": lambda x: (
        y := (x * 2).view(1, -1),
        y.chunk(3, 1)[1],
        y.chunk(3, 1)[1].t(),
        y.chunk(3, 1)[1],
    )[1:],
    "one chunk twice": lambda x: (c := (x * 2).chunk(2)[0], c),
    "copies": lambda x: (y := x * 2, y.clone(), y.t().clone()),
    "copy of a view": lambda x: (y := x * 2, (y.t(), y.clone().t()))[1],
    "one result twice": lambda x: (y := x * 2, y, y.t()),
    "a view twice": lambda x: (y := (x * 2).t(), y),
    "contiguous or not": lambda x: (y := x * 2, y.contiguous(), y.t().contiguous()),
    "reshaped": lambda x: (y := x * 2, y.reshape(-1), y.t().reshape(-1)),
    "nothing of it": lambda x: (x * 2)[:0],
    "nothing but columns": lambda x: (x * 2)[:, 3:3].t(),
    "detached": lambda x: (y := x * 2, y.detach()),
    "detached part": lambda x: (y := x * 2, y.detach()[1:]),
    "bits": lambda x: (x * 2).view(torch.int32),
    "bits and whole": lambda x: (y := x * 2, y.view(torch.int32)),
    "bits of a part": lambda x: (x * 2)[1:].view(torch.int16),
    "mask": lambda x: (x > 0)[1:].t(),
    "stored transposed": lambda x: x.t().exp()[1:, :2],
    "part of a stack": lambda x: torch.stack([x, x + 1], 1)[:, 1],
    "a row of a reduction": lambda x: x.sum(1)[1],
    "gradients of it": lambda x: torch.nn.functional.softmax(x, -1)[:, 1:3],
    "complex": lambda x: torch.view_as_real(torch.complex(x, x + 1)),
    "real part": lambda x: torch.complex(x, x + 1).real,
    "conjugate": lambda x: torch.complex(x, x + 1).conj().imag,
    "size and view": lambda x: (x.shape[0] * 2, (x * 2)[x.shape[0] // 2 :]),
    "chunk of a mask": lambda x: (y := x.amax(0) > 0, y.chunk(3)[1]),
    "row of one": lambda x: (x * 2).unbind(1)[0].chunk(2)[1][1::2].view(1, 1),
    "under no_grad": lambda x: _no_grad(lambda: (x * 2)[1:]),
    "no_grad and grad": lambda x: (y := x * 2, _no_grad(lambda: y[1:]), y[2:]),
}

WRITING: dict[str, F] = {
    "argument": lambda x: x.mul_(2),
    "argument, then a view": lambda x: (x.mul_(2), x[1:])[1],
    "view of an argument": lambda x: (x[1:].mul_(2), x.sum())[1],
    "chunks of an argument": lambda x: [c.add_(i) for i, c in enumerate(x.chunk(2))],
    "a view before the write": lambda x: (x[1:], x.add_(1))[0],
    "column": lambda x: x[:, 1].zero_(),
    "transposed": lambda x: (x.t()[1].fill_(3), x.t())[1],
    "both": lambda x: (y := x + 1, y[1:].mul_(2), x.sub_(1)),
    "as_strided": lambda x: (x.as_strided((2, 2), (6, 1), 1).zero_(), x * 2)[1],
    "diagonal": lambda x: (x.diagonal().fill_(1), x + 0),
    "computed column": lambda x: (y := x * 2, y[:, 1].zero_(), y.t())[::2],
    "computed row, view before": lambda x: (y := x * 2, z := y[1:], y[2].zero_(), z)[::3],
    "stepped": lambda x: (x[::2].mul_(2), x[1::2])[1],
    "its own transpose": lambda x: x.t_(),
    "unsqueezed in place": lambda x: (x.unsqueeze_(0), x * 2),
    "index": lambda x: (x.index_fill_(0, torch.tensor([1]), 0.0), x[1:]),
    "copied into": lambda x: (y := torch.zeros(x.shape[0], 8), y[:, 1:7].copy_(x), y)[1:],
    "detached": lambda x: (x.detach()[1].mul_(2), x * 2)[1],
}

OF_PAIRS: dict[str, F] = {
    "views of both": lambda x, y: (x[1:], y.t(), x * y),
    "swapped": lambda x, y: (y, x),
    "second written": lambda x, y: (y.add_(x), x[1:]),
    "both written": lambda x, y: (x.mul_(2), y.add_(1))[0],
    "added": lambda x, y: ((z := x + y)[1:], z[:-1], x),
}


OF_LATE: dict[str, F] = {
    "diagonal written": lambda x: (x.expand(2, *x.shape), x.diagonal().fill_(1))[0],
    "row written": lambda x: (y := x[-1].split(2)[1], y[::2].add_(1))[0],
    "chunk written twice": lambda x: (y := x.chunk(2, 1)[0], y.add_(1), y.relu_())[0],
    "view of a chunk written twice": lambda x: (y := x.chunk(2, 1)[0].t(), y.add_(1), y.relu_())[
        0
    ],
    "column written": lambda x: (x[:, 1].zero_(), x.t()[1:])[1],
}
"""Of what begins in the middle of its storage."""


def _no_grad(function: Callable[[], Any]) -> Any:
    with torch.no_grad():
        return function()


def overlapping_quotient(x: torch.Tensor) -> torch.Tensor:
    y = x.unfold(1, 2, 1)
    return y // (y * y + 1)


LAYING_OUT: tuple[F, ...] = (
    torch.floor_divide,
    torch.copysign,
    torch.logaddexp,
    torch.xlogy,
    torch.logical_and,
    lambda x, y: torch.floor_divide(x, y).sin(),
)
"""Operators that torch's fake tensors lay out otherwise than its kernels."""


def read_gaps_of_view(x: torch.Tensor) -> torch.Tensor:
    """Elements of the storage that lie between those of an argument."""
    y = x.chunk(2)[1]
    y.masked_fill_(y > 0.5, 0)
    return torch.cat([y.as_strided((2,), (1,)), y.as_strided((3,), (1,))[1:]])


def product_of_one(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What is computed has no layout of its own; it is saved for the backward in two shapes."""
    squares = torch.kron(x, x)
    column = squares.unsqueeze(-1)
    return column.mT @ column, torch.hypot(x, squares)


PROGRAMS: dict[str, Program] = {
    **{f"argument: {k}": Program(f, matrix) for k, f in OF_ARGUMENTS.items()},
    **{f"computed: {k}": Program(f, matrix) for k, f in OF_COMPUTED.items()},
    **{f"writing: {k}": Program(f, matrix, mutates=True) for k, f in WRITING.items()},
    **{f"pair: {k}": Program(f, pair, mutates="written" in k) for k, f in OF_PAIRS.items()},
    **{
        f"neighbours: {k}": Program(f, neighbours, mutates="written" in k)
        for k, f in OF_PAIRS.items()
    },
    **{
        f"{make.__name__}: {k}": Program(f, make)
        for make in (transposed, gapped, stepped, expanded)
        for k, f in {
            "computed part": lambda x: (x * 2)[1:, :3],
            "parts": lambda x: (x[1:], x.t()[1:], (x + 1).t()),
            "chunks": lambda x: (*x.chunk(2), *(x * 2).chunk(2, 1)),
            "as_strided": lambda x: (x * 2).as_strided((2, 3), (1, 2), 1),
            "laid out by kernels": lambda x: [
                f(x, y) for f in LAYING_OUT for y in (x * 1, x[0], 1 + x.t().contiguous().t())
            ],
            "logsigmoid": lambda x: (
                torch.nn.functional.logsigmoid(x),
                torch.nn.functional.logsigmoid(x).sin(),
            ),
            "batch norm": lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        }.items()
    },
    **{
        f"{make.__name__}: {k}": Program(f, make, mutates=True)
        for make in (transposed, gapped, stepped)
        for k, f in {
            "written": lambda x: (x.mul_(2), x[1:])[1],
            "part written": lambda x: (x[1:].mul_(2), x.t()),
            "part written, gaps read": lambda x: (x[1:].mul_(2), 1 + x.as_strided((5,), (1,)))[1],
            "a view of what is written, gaps read": read_gaps_of_view,
            "gaps written": lambda x: (x[1:].add_(1), x.as_strided((3,), (1,)).fill_(3), x * 2)[2],
        }.items()
    },
    **{
        f"{make.__name__}: {k}": Program(f, make)
        for make in (image, lonely_channel)
        for k, f in {
            "relu": lambda x: x.relu(),
            "part": lambda x: (x * 2)[:, :1, 1:],
            "permuted": lambda x: (x * 2).permute(0, 2, 3, 1),
            "copied": lambda x: (x.clone(), (x * 2).contiguous()),
        }.items()
    },
    **{f"late: {k}": Program(f, late, mutates=True) for k, f in OF_LATE.items()},
    **{f"integers: {k}": Program(OF_COMPUTED[k], integers) for k in ("chunks", "bits", "steps")},
    "vector: chunks": Program(lambda x: x.chunk(2), vector),
    "vector: chunks of what is computed": Program(lambda x: (x * 2).chunk(2), vector),
    "cube: moved": Program(lambda x: (x * 2).permute(2, 0, 1)[1:], cube),
    "cube: a slice": Program(lambda x: ((x * 2)[:, 1], (x * 2)[..., 1]), cube),
    "column: expanded, with a dimension more": Program(
        lambda x: [
            f(x[:2].t().expand(1, n, 2))
            for f in (torch.abs, torch.sin, lambda x: x + 1)
            for n in (4, len(x))
        ],
        column,
    ),
    "lonely: products": Program(product_of_one, lonely),
    "square: diagonals": Program(lambda x: ((x * 2).diagonal(), x.diagonal(-1)), square),
}


def _compile(**how: Any) -> Callable[[F], F]:
    return lambda function: compile_strictly(function, fallback=True, fullgraph=False, **how)[0]


# With symbolic sizes the fake tensors of torch give other strides to dimensions of size one.
OF_ANY_SIZE = [name for name in PROGRAMS if not name.startswith("lonely_channel")]
WAYS: tuple[Mode, ...] = ("no_grad", "grad")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each program to one way of compiling it, or to every way with ``--exhaustive``."""
    every = metafunc.config.getoption("--exhaustive")
    match metafunc.function.__name__:
        case "test_known_sizes":
            pairs = [
                (name, mode)
                for i, name in enumerate(PROGRAMS)
                for j, mode in enumerate(WAYS)
                if every or i % 2 == j
            ]
        case "test_sizes_found_to_vary":
            pairs = [(n, WAYS[i % 2]) for i, n in enumerate(OF_ANY_SIZE) if every or i % 3 == 0]
        case _:
            return
    metafunc.parametrize(("name", "mode"), pairs, ids=[f"{n}-{m}" for n, m in pairs])


@pytest.mark.alternating
def test_known_sizes(name: str, mode: Mode) -> None:
    check(PROGRAMS[name], _compile(dynamic=False), mode=mode)


@pytest.mark.alternating
@pytest.mark.parametrize("name", [n for n in OF_ANY_SIZE if re.search("chunk|split|late", n)])
def test_symbolic_sizes(name: str) -> None:
    check(PROGRAMS[name], _compile(dynamic=True), sizes=(4, 6), dynamic=True)


@pytest.mark.alternating
def test_sizes_found_to_vary(name: str, mode: Mode) -> None:
    check(PROGRAMS[name], _compile(dynamic=None), sizes=(4, 6, 8), dynamic=None, mode=mode)


def test_where_an_argument_begins_in_its_storage_may_change() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2,), (1,), 2) * 2

    compiled = _compile(dynamic=False)(function)
    base = torch.arange(8.0)
    for x in (base[:6], base[2:]):
        assert torch.equal(compiled(x), function(x))
