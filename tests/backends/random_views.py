"""Programs of views and writes at random, compared with eager mode in all a caller can tell.

``python -m tests.backends.random_views --first SEED --count N`` runs some, and prints each that
fails with its seed, shrunk. A program is text, made by running it: a step that eager mode refuses
at one of the sizes is not taken.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tests.backends.aliases import MODES, Mode, Program, check
from tests.backends.shrinking import smallest
from tests.backends.ways import compile_strictly

__all__ = ["Views", "failure", "generate", "shrink"]

BASES = (
    "torch.randn(n, 6)",
    "torch.randn(n, 6)",
    "torch.randn(6, n).t()",
    "torch.randn(n, 12)[:, 1:7]",
    "torch.randn(2 * n, 6)[::2]",
    "torch.randn(n, 1).expand(n, 6)",
    "torch.randn(n, 3, 4)",
    "torch.randn(n, 4, 3).transpose(1, 2)",
    "torch.randn(n, n)",
    "torch.randn(3 * n)",
    "torch.randn(n, 6, dtype=torch.float64)",
    "torch.arange(6 * n).view(n, 6)",
    "torch.arange(6 * n, dtype=torch.int32).view(n, 6)",
    "torch.randn(n, 6) > 0",
)
OF_BASES = ("{b}", "{b}", "{b}", "{b}[1:]", "{b}[:-1]", "{b}[::2]", "{b}.t()", "{b}[..., 1]")
OF_BASES += ("{b}.view(-1)", "{b}.detach()", "{b}[:, 1:4]", "{b}.view(-1)[2:]", "{b}[2:3]")

VIEWS = """
{t}[1:]
{t}[:-1]
{t}[::2]
{t}[-2:]
{t}[0]
{t}[-1]
{t}[..., 1]
{t}[:, 1:3]
{t}[..., :2]
{t}[..., 1::2]
{t}[2:2]
{t}[: {t}.shape[0] // 2]
{t}[None]
{t}.select({d}, {k})
{t}.narrow({d}, 1, 2)
{t}.transpose({d}, {e})
{t}.t()
{t}.mT
{t}.permute(*reversed(range({t}.dim())))
{t}.movedim({d}, {e})
{t}.swapaxes({d}, {e})
{t}.reshape(-1)
{t}.view(-1)
{t}.flatten()
{t}.flatten({d})
{t}.ravel()
{t}.view({t}.shape[0], -1)
{t}.view(-1, 2)
{t}.reshape(2, -1)
{t}.reshape({t}.shape[0], 2, -1)
{t}.unflatten(-1, (2, -1))
{t}.unsqueeze({d})
{t}.unsqueeze(-1)
{t}.squeeze()
{t}.squeeze({d})
{t}.expand(2, *{t}.shape)
{t}[..., :1].expand({t}.shape)
{t}.expand_as({t})
{t}.diagonal()
{t}.diagonal(1)
{t}.diagonal(-1, {d}, {e})
{t}.unfold({d}, 2, 1)
{t}.unfold({d}, 2, 2)
{t}.as_strided((2, 2), (1, 1))
{t}.as_strided((3,), (2,))
{t}.as_strided((2, 3), (3, 1), 1)
{t}.as_strided({t}.shape, {t}.stride())
{t}.detach()
{t}.view_as({t})
{t}.view(torch.int32)
{t}.view(torch.uint8)
{t}.view({t}.dtype)
{t}.contiguous()
{t}.clone()
{t}.reshape({t}.shape)
{t}.to({t}.dtype)
{t}.data
torch.broadcast_to({t}, (2, *{t}.shape))
{t}.adjoint()
{t}.real
""".strip().splitlines()
SEVERAL = """
{t}.split(2, {d})
{t}.chunk(2, {d})
{t}.chunk(3, {d})
{t}.unbind({d})
{t}.tensor_split(3, {d})
{t}.tensor_split((1, 3), {d})
{t}.split([1, {t}.shape[0] - 1])
{t}.split({t}.shape[0] // 2)
""".strip().splitlines()
COMPUTED = """
{t} * 2
{t} + 1
{t} + {u}
{t} * {u}
{t}.sum({d})
{t}.sum()
{t}.cumsum({d})
-{t}
torch.cat([{t}, {u}])
torch.stack([{t}, {t} + 1], {d})
{t}.relu()
{t}.to(torch.float64)
torch.where({t} > 0, {t}, {u})
{t}.flip({d})
{t} > 0
{t}.max({d}).values
{t}.sin()
{t}.softmax({d})
torch.zeros_like({t})
{t}.new_zeros({t}.shape)
{t}.repeat(2, *[1] * ({t}.dim() - 1))
""".strip().splitlines()
WRITES = """
{t}.mul_(2)
{t}.add_(1)
{t}.add_({u})
{t}.copy_({u})
{t}.zero_()
{t}.fill_(3)
{t}[1:].mul_(3)
{t}[0] = 5
{t}[..., 1].add_(2)
{t}[..., 0] = {u}[..., 0]
{t}.clamp_(min=0)
{t}.t().mul_(2)
{t}.view(-1)[::2].add_(1)
{t}.diagonal().fill_(1)
{t}.logical_not_()
{t}.unsqueeze_(0)
{t}.transpose_(0, -1)
{t}.squeeze_()
{t}.detach().add_(1)
{t}.copy_({t} + 1)
{t}[1:].copy_({t}[:-1].clone())
{t}.chunk(2)[0].mul_(2)
""".strip().splitlines()


@dataclasses.dataclass(frozen=True)
class Views:
    """A program as text: bases, the arguments that are views of them, its lines, its results."""

    bases: tuple[str, ...]
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    mode: Mode = "no_grad"
    dynamic: bool | None = False
    leaves: bool = True
    """Whether the bases are leaves that require a gradient, rather than computed of such."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes to run with."""
        return (4, 6, 8) if self.dynamic is None else (4, 6) if self.dynamic else (4,)

    def text(self) -> str:
        """The program as Python: ``make(n)``, ``show(b0, ...)`` and ``program(a0, ...)``."""
        bases = "".join(f"b{i}, " for i in range(len(self.bases)))
        arguments = "".join(f"a{i}, " for i in range(len(self.arguments)))
        lines = [
            f"# {self.mode} dynamic={self.dynamic} leaves={self.leaves}",
            f"def make(n): return {', '.join(self.bases)},",
            f"def show({bases}): return {', '.join(self.arguments)},",
            f"def program({arguments}):",
            *(f"    {line}" for line in self.lines),
            f"    return {', '.join(self.results)},",
        ]
        return "\n".join(lines) + "\n"

    def program(self) -> Program:
        """The program as what :func:`tests.backends.aliases.check` takes."""
        space: dict[str, Any] = {"torch": torch}
        exec(compile(self.text(), "<program>", "exec"), space)  # our own text
        show = space["show"]
        return Program(
            space["program"], space["make"], not self.leaves, lambda bases: show(*bases)
        )


def failure(views: Views) -> str:
    """What differs from eager mode; an empty text if nothing does."""
    torch._dynamo.reset()

    def compile_it(function: Callable[..., Any]) -> Callable[..., Any]:
        return compile_strictly(function, dynamic=views.dynamic, fullgraph=False, fallback=True)[0]

    try:
        check(
            views.program(), compile_it,
            sizes=views.sizes, dynamic=views.dynamic, mode=views.mode,
        )  # fmt: skip
    except Exception as error:  # judged as what differs is
        return f"{type(error).__name__}: {error}"
    return ""


def generate(seed: int) -> Views:
    """The program of a seed."""
    return _Writer(random.Random(seed)).write()


class _Writer:
    """Writes a program, and runs it at each size while it does."""

    def __init__(self, choose: random.Random) -> None:
        self.choose = choose
        bases = tuple(choose.choice(BASES) for _ in range(choose.choice((1, 1, 2))))
        arguments = tuple(
            choose.choice(OF_BASES).format(b=f"b{choose.randrange(len(bases))}")
            for _ in range(choose.randint(1, 3))
        )
        dynamic = choose.choice((False, False, True, None))
        mode = choose.choice(tuple(MODES))
        self.views = Views(bases, arguments, (), ("a0",), mode, dynamic, choose.random() < 0.4)

    def write(self) -> Views:
        wanted = self.choose.randint(3, 12)
        if not _runs(self.views):
            self.views = dataclasses.replace(
                self.views, bases=BASES[:1], arguments=("b0",) * len(self.views.arguments)
            )
        for _ in range(4 * wanted):
            if len(self.views.lines) < wanted:
                self._step()
        names = sorted(_tensors(self.views))
        made = [n for n in names if n.startswith("v")] or names
        results = self.choose.sample(made, min(len(made), self.choose.randint(1, 4)))
        if self.choose.random() < 0.3:
            results.append(self.choose.choice(names))
        return dataclasses.replace(self.views, results=tuple(results))

    def _step(self) -> None:
        tensors = _tensors(self.views)
        names = list(tensors)
        table = self.choose.choices((VIEWS, SEVERAL, COMPUTED, WRITES), (45, 10, 20, 25))[0]
        first, second = (max(self.choose.choices(range(len(names)), k=2)) for _ in range(2))
        rank = max(tensors[names[first]].dim(), 1)
        line = self.choose.choice(table).format(
            t=names[first], u=names[second], k=self.choose.randint(0, 2),
            d=self.choose.randrange(-rank, rank), e=self.choose.randrange(rank),
        )  # fmt: skip
        made = sum(n.startswith("v") for n in names)
        if table is SEVERAL:
            line = f"v{made}, v{made + 1}, *_ = {line}"
        elif table is not WRITES:
            line = f"v{made} = {line}"
        taken = dataclasses.replace(self.views, lines=(*self.views.lines, line))
        if _runs(taken):
            self.views = taken


def _tensors(views: Views) -> dict[str, torch.Tensor]:
    """The tensors of a program by name, at the first size."""
    names = [f"a{i}" for i in range(len(views.arguments))]
    for line in views.lines:
        names += re.findall(r"\bv\d+\b(?=.* = )", line.partition(" = ")[0] + " = ")
    results = _run(dataclasses.replace(views, results=tuple(names)), views.sizes[0])
    return dict(zip(names, results, strict=True))


def _run(views: Views, size: int) -> Sequence[torch.Tensor]:
    torch.manual_seed(0)
    program = views.program()
    _, arguments = program.start(size, views.mode)
    with MODES[views.mode]():
        results: Sequence[torch.Tensor] = program.function(*arguments)
    return results


def _runs(views: Views) -> bool:
    """Whether eager mode takes a program at each size, and nothing is too large."""
    try:
        for size in views.sizes:
            _run(views, size)
        tensors = _tensors(views).values()
        _ = [t.grad_fn for t in tensors]  # refused where a part of a split was written around
        return all(t.numel() < 1000 and t.dim() < 6 for t in tensors)
    except (AttributeError, IndexError, NameError, RuntimeError, TypeError, ValueError):
        return False


def shrink(views: Views, fails: Callable[[Views], bool]) -> Views:
    """A smaller program that still fails: fewer lines, results, arguments, simpler ones."""
    return smallest(views, _smaller, lambda candidate: _runs(candidate) and fails(candidate))


def _smaller(views: Views) -> Iterator[Views]:
    change = functools.partial(dataclasses.replace, views)
    for i in reversed(range(len(views.lines))):
        yield change(lines=views.lines[:i] + views.lines[i + 1 :])
    for i in range(len(views.results)):
        if len(views.results) > 1:
            yield change(results=views.results[:i] + views.results[i + 1 :])
    if len(views.arguments) > 1:
        yield change(arguments=views.arguments[:-1])
    if len(views.bases) > 1:
        yield change(bases=views.bases[:-1])
    for i, text in enumerate(views.arguments):
        if text != "b0":
            yield change(arguments=(*views.arguments[:i], "b0", *views.arguments[i + 1 :]))
    for i, text in enumerate(views.bases):
        if text != BASES[0]:
            yield change(bases=(*views.bases[:i], BASES[0], *views.bases[i + 1 :]))
    if views.dynamic is not False:
        yield change(dynamic=False)
    if views.mode != "no_grad":
        yield change(mode="no_grad")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1000, help="how many")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.first, options.first + options.count):
        if not (found := failure(generate(seed))):
            continue
        failed += 1
        kind = found.partition(":")[0]
        small = shrink(generate(seed), lambda v, kind=kind: failure(v).partition(":")[0] == kind)
        print(
            f"# seed {seed}\n{small.text()}# " + failure(small).replace("\n", "\n# "), flush=True
        )
    print(f"seeds {options.first} to {options.first + options.count - 1}: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    import logging

    import dort_rewriter

    # torch logs what fails while it traces; a program that does is judged all the same.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    logging.getLogger("dort_rewriter").setLevel(logging.ERROR)
    dort_rewriter.install()
    sys.exit(main())
