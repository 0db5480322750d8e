"""Results that are views of what is a view itself, or of memory that arguments share.

NOTE: AOTAutograd alone, and so ``aot_eager`` and Inductor, takes the steps of these views twice:
it is no measure here, and ends the process for some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dort_rewriter import CaptureError, OrtBackend
from dort_rewriter.torch_defects.view_replays import share_memory
from tests.backends.memory.aliases import Program, observe

Tensor = torch.Tensor


def beside_its_numbers(view: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        w = view(x * 2)
        return w, w.detach()

    return function


OF_RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "transposed": beside_its_numbers(lambda v: v.t()),
    "sliced": beside_its_numbers(lambda v: v[1:]),
    "stepped": beside_its_numbers(lambda v: v[:, ::2]),
    "viewed": beside_its_numbers(lambda v: v.view(-1)),
    "moved": beside_its_numbers(lambda v: v.view(-1)[3:].unflatten(0, (2, -1)).t()),
    "split": beside_its_numbers(lambda v: v.split(2)[1]),
    "unbound": beside_its_numbers(lambda v: v.unbind()[1]),
    "in chunks": beside_its_numbers(lambda v: v.chunk(2)[1].t()),
    "viewed again": lambda x: (lambda w: (w, w.detach().t()[1:], w[:, 1]))((x * 2).t()),
    "twice": lambda x: (lambda w: (w, w.detach(), w.detach().detach()))((x * 2).t()),
    "part of what is no view": lambda x: (lambda v: (v, v.split(2)[1], v.t()))(x * 2),
    "of an argument": lambda x: (lambda w: (w, w.detach()))(x.t()),
}


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", OF_RESULTS)
def test_what_is_a_view_of_a_result(name: str, dynamic: bool, mode: Any) -> None:
    program = Program(OF_RESULTS[name], lambda n: (torch.arange(n * n * 1.0).view(n, n),))
    torch._dynamo.reset()
    compiled = torch.compile(program.function, backend=OrtBackend(), dynamic=dynamic)
    for size in (3, 4) if dynamic else (3,):
        # Autograd refuses writes to a part of a split; AOTAutograd's is a tensor as any other.
        is_part = mode == "grad" and name in ("split", "unbound", "in chunks")
        without = ("is a view", "after writing") if is_part else ()
        equals_eager(compiled, program, size, mode, without)


def after(write: Callable[[Tensor], Any], *views: Callable[[Tensor], Tensor]) -> Any:
    """Write through the first view of an argument, and return all of them, of symbolic sizes."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        first = views[0](x)
        write(first)
        return first, *(view(x) for view in views[1:])

    return function


def halves(x: Tensor) -> Tensor:
    return x.view(2, x.shape[0] // 2, x.shape[1])


OF_WRITTEN: dict[str, Callable[[Tensor], Any]] = {
    "copied": after(lambda v: v.copy_(v), lambda x: x.unflatten(0, (2, -1))),
    "multiplied": after(lambda v: v.mul_(2), lambda x: x.unflatten(0, (2, -1))),
    "multiplied, viewed later": after(lambda v: v.mul_(2), lambda x: x[:], halves),
    "copied, a part": after(lambda v: v.copy_(v + 1), lambda x: x[:, : x.shape[1] // 2]),
    "multiplied, a part": after(lambda v: v.mul_(2), lambda x: x[:, x.shape[1] // 2 :]),
    "three views": after(lambda v: v.copy_(v + 1), halves, lambda x: halves(x)[1].t(), halves),
    "zero": after(lambda v: v.zero_(), halves),
    "filled": after(lambda v: v.fill_(2.0), halves, lambda x: x[x.shape[0] // 2 :]),
    "twice": after(lambda v: v.add_(1).relu_(), halves, lambda x: x[:, : x.shape[1] // 2]),
    "read before": after(lambda v: v.mul_(v[:1] + 1), lambda x: halves(x)[1]),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch reads that of the argument
@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference"])
@pytest.mark.parametrize("stepped", [False, True], ids=["dense", "stepped"])
@pytest.mark.parametrize("name", OF_WRITTEN)
def test_what_is_a_view_of_what_was_written(name: str, stepped: bool, mode: Any) -> None:
    """The argument begins behind the start of its memory: so does a view of it."""

    def make(n: int) -> tuple[Tensor, ...]:
        return (torch.arange(n * n + n * 1.0).repeat_interleave(2),)

    def show(made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        n = int(made[0].numel() / 2) ** 0.5
        x = made[0].view(int(n) + 1, -1)[1:]
        return ((x[:, ::2] if stepped else x),)

    program = Program(OF_WRITTEN[name], make, mutates=True, show=show)
    torch._dynamo.reset()
    compiled = torch.compile(program.function, backend=OrtBackend(), dynamic=True)
    for size in (4, 6):
        equals_eager(compiled, program, size, mode)


OF_SHARED_MEMORY: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "part of a split": lambda a, b: (a.mul_(2), b.chunk(2)[1])[1],
    "transposed part of a split": lambda a, b: (a.mul_(2), b.view(2, -1).split(1)[1].t())[1],
    "slice": lambda a, b: (a.mul_(2), b[2:].view(-1))[1],
    "view before the write": lambda a, b: (lambda v: (a.mul_(2), v.view(-1))[1])(b.chunk(2)[1]),
    "unbound": lambda a, b: (b.add_(1), a.unbind()[1])[1],
    "nothing is written": lambda a, b: (a.t(), b[2:] * 2),
    "of the part that is not written": lambda a, b: (b[:2].add_(1), a.t()[1:])[1],
}


def two_of_one_memory(n: int) -> tuple[Tensor, ...]:
    a = torch.arange(n * 3.0 + 3).view(n + 1, 3)[1:]
    return a, a.view(-1)


@pytest.mark.parametrize("name", OF_SHARED_MEMORY)
def test_what_is_a_view_of_shared_memory(name: str) -> None:
    program = Program(OF_SHARED_MEMORY[name], two_of_one_memory, mutates=True)
    torch._dynamo.reset()
    equals_eager(torch.compile(program.function, backend=OrtBackend()), program, 4, "no_grad")


def of_two(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return b.view(torch.uint8)


def part_of_two(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return a.chunk(2)[0].view(torch.uint8)


@pytest.mark.parametrize("function", [of_two, part_of_two])
def test_a_view_in_another_type(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of memory of two arguments, or a part of symbolic sizes: eager mode runs it."""
    program = Program(function, two_of_one_memory, mutates=True)
    torch._dynamo.reset()
    refusing = torch.compile(function, backend=OrtBackend({"fallback": False}), dynamic=True)
    with pytest.raises(CaptureError, match="in another type"):
        refusing(*two_of_one_memory(4))
    monkeypatch.delenv("DORT_STRICT")
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend(), dynamic=True)
    equals_eager(compiled, program, 4, "no_grad")


@pytest.mark.parametrize("to_real", [True, False])
def test_parts_of_complex_numbers(to_real: bool) -> None:
    """Of symbolic sizes: torch has a way from the ones to the others, and sessions run it."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        part = b.chunk(2)[0]
        return torch.view_as_real(part) if to_real else torch.view_as_complex(part)

    def make(n: int) -> tuple[Tensor, ...]:
        parts = torch.arange(n * 4.0).reshape(n, 2, 2).clone()
        return torch.ones(n), torch.complex(*parts.unbind(-1)) if to_real else parts

    program = Program(function, make, mutates=True)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend({"fallback": False}), dynamic=True)
    equals_eager(compiled, program, 4, "no_grad")


def equals_eager(
    compiled: Callable[..., Any],
    program: Program,
    size: int,
    mode: Any,
    without: tuple[str, ...] = (),
) -> None:
    expected = observe(program.function, program, size, mode)
    got = observe(compiled, program, size, mode)
    assert got.keys() == expected.keys(), got.get("error")
    for name, fact in expected.items():
        if any(words in name for words in without):
            continue
        if isinstance(fact, Tensor):
            assert torch.equal(got[name], fact), name
        else:
            assert got[name] == fact, name


def test_what_a_transform_wraps_tells_no_memory() -> None:
    """A graph whose caller was not traced is compiled inside the transform."""
    shared = []

    def seen(x: torch.Tensor) -> torch.Tensor:
        shared.append(share_memory([x, x]))
        return x * 2

    torch.func.vjp(seen, torch.randn(3))
    torch.vmap(seen)(torch.randn(2, 3))
    assert shared == [False, False]
    x = torch.randn(3)
    assert share_memory([x, x[1:]])
