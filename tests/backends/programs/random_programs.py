"""Programs at random: a few operators over a few tensors, written as Python text.

A program is made by running it: a step that eager mode refuses, at one of the two sizes, is not
taken. The text is all there is of it, so that a finding can be read, shrunk and kept.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tests.backends.memory.aliases import MODES, Mode, Program
from tests.backends.programs import random_views as views
from tests.backends.programs.random_operators import ORDERED_STEPS, STEPS, WRITES

__all__ = ["PARTS", "RandomProgram", "generate"]

PARTS = {"operators": (5, 40), "views": (3, 12)}
"""What programs are made of, and how many steps they have."""
SIZES = (4, 6, 8)
"""The sizes ``n`` that a program runs with, one after the other: all where torch finds out by
itself what changes, two with symbolic sizes, one without."""
MAX_NUMBERS = 2_000
"""Larger tensors say no more, and take longer."""

FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
INTEGERS = ("int64", "int64", "int32", "int16", "int8", "uint8")
LAYOUTS = (
    ("(n, 3)", ""),
    ("(n, 3)", ""),
    ("(3, n)", ".t()"),
    ("(n, 6)", "[:, ::2]"),
    ("(n + 1, 3)", "[1:]"),
    ("(1, 3)", ".expand(n, 3)"),
    ("(n,)", ""),
    ("(2 * n,)", "[::2]"),
    ("(3,)", ""),
    ("(1, 3)", ""),
    ("(n, 1)", ""),
    ("(2, n, 3)", ""),
    ("(2, 3, n)", ".transpose(1, 2)"),
    ("(2, 3, n, 2)", ""),
    ("(2, n, n)", ""),
    ("(n, n)", ""),
    ("()", ""),
    ("(0, 3)", ""),
    ("(n, 0)", ""),
)
"""Sizes in memory, and how a view is made of it."""
ORDERED = (
    ("(n, n)", ".t()"),
    ("(n, n)", ".t().contiguous().t()"),
    ("(2, n, n)", ".mT"),
    ("(3, n)", ".t()"),
    ("(3, n, 2)", ".permute(2, 1, 0)"),
    ("(n, 2, n)", ".permute(1, 0, 2)"),
    ("(2, n, 3, 2)", ".permute(3, 2, 1, 0)"),
    ("(2, 3, n, 4)", ".contiguous(memory_format=torch.channels_last)"),
    ("(1, 2, n, n)", ".contiguous(memory_format=torch.channels_last)"),
    ("(2, 1, 4, n)", ".contiguous(memory_format=torch.channels_last)"),
    ("(2, 2, n, 2, 2)", ".contiguous(memory_format=torch.channels_last_3d)"),
    ("(n, 2 * n)", "[:, ::2]"),
)
"""Layouts that are column-major, reversed, channels-last, or have gaps."""
ALIASES = ("a0.view(-1)", "a0[1:]", "a0.detach()", "a0[..., :1]", "a0.t()", "a0[0]")
SPECIAL = ("torch.inf", "-torch.inf", "torch.nan", "0.0", "-0.0", "1e-40", "1e-30", "1e3", "1e30")
"""Numbers among those of some arguments: not finite, huge, or less than the normal ones."""
NUMBERS = ("-1", "0", "1", "2", "3", "0.5", "2.5", "-0.25", "True")


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    """A program as text: how its arguments are made for a size ``n``, its lines, its results."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    results: tuple[str, ...]
    grad: bool = False
    dynamic: bool | None = False
    autocast: bool = False
    inference: bool = False
    bases: tuple[str, ...] = ()
    """What the arguments are views of, ``b0`` and so on; without, they are made themselves."""

    @property
    def mode(self) -> Mode:
        """What its calls happen under."""
        return "inference" if self.inference else "grad" if self.grad else "no_grad"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes to run with."""
        return SIZES if self.dynamic is None else SIZES[:2] if self.dynamic else SIZES[:1]

    @property
    def mutates(self) -> bool:
        """Whether something is written to."""
        return any(re.search(r"_\(|\] [-+*]?= |out=", line) for line in self.lines)

    def text(self) -> str:
        """The program as Python: ``make(n)``, perhaps ``show(b0, ...)``, ``program(a0, ...)``."""
        names = "".join(f"a{i}, " for i in range(len(self.arguments)))
        made = _returned("a", self.arguments)
        if self.bases:
            bases = "".join(f"b{i}, " for i in range(len(self.bases)))
            made = [*_returned("b", self.bases), "", f"def show({bases}):", *made]
        indent = "    "
        body = []
        if self.autocast:
            body.append('    with torch.autocast("cpu", dtype=torch.bfloat16):')
            indent = "        "
        body += [f"{indent}{line}" for line in (*self.lines, f"return {', '.join(self.results)},")]
        return "\n".join(["def make(n):", *made, "", f"def program({names}):", *body, ""])

    def functions(self) -> Program:
        """How its arguments are made, and what they are given to."""
        space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "show": tuple}
        exec(compile(self.text(), "<program>", "exec"), space)  # our own text
        show = space["show"]
        seen = (lambda bases: show(*bases)) if self.bases else show
        return Program(space["program"], space["make"], self.mutates, seen)


def _returned(letter: str, made: Sequence[str]) -> list[str]:
    names = "".join(f"{letter}{i}, " for i in range(len(made)))
    return [*(f"    {letter}{i} = {m}" for i, m in enumerate(made)), f"    return {names}"]


def generate(
    seed: int, steps: tuple[int, int] | None = None, part: str = "operators"
) -> RandomProgram:
    """The program of a seed, of operators or of views and writes."""
    steps = PARTS[part] if steps is None else steps
    if part == "views":
        return _ViewWriter(random.Random(seed)).write(steps)
    # What is special has draws of its own, so that all else is as it would be without.
    special, ordered = (random.Random(f"{name} of {seed}") for name in ("special", "planes"))
    return _Writer(random.Random(seed), special, ordered).write(steps)


class _Writer:
    """Writes a program, and runs it at each size while it does."""

    def __init__(
        self,
        choose: random.Random,
        special: random.Random | None = None,
        ordered: random.Random | None = None,
    ) -> None:
        self.choose = choose
        self.special = special if special is not None and special.random() < 0.2 else None
        self.ordered = ordered if ordered is not None and ordered.random() < 0.3 else None
        self.grad = choose.random() < 0.5
        self.dynamic = choose.random() < 0.3
        self.autocast = choose.random() < 0.15
        self.spaces: list[dict[str, Any]] = [
            {"torch": torch, "F": torch.nn.functional, "n": n}
            for n in SIZES[: 2 if self.dynamic else 1]
        ]
        self.arguments: list[str] = []
        self.lines: list[str] = []
        self.mode: Mode = "no_grad"
        """What steps are tried under."""

    def start(self) -> None:
        """Make the arguments."""
        for _ in range(self.choose.randint(1, 3)):
            self._argument()

    def write(self, steps: tuple[int, int]) -> RandomProgram:
        torch.manual_seed(0)
        self.start()
        wanted = self.choose.randint(*steps)
        for _ in range(4 * wanted):
            if len(self.lines) < wanted:
                self._step()
        names = self._tensors()
        made = [n for n in names if n.startswith("v")] or names
        results = self.choose.sample(made, min(len(made), self.choose.randint(1, 4)))
        if made[-1] not in results:
            results.append(made[-1])
        if self.choose.random() < 0.15:
            results.append(self.choose.choice(names))
        return self.finish(tuple(results))

    def finish(self, results: tuple[str, ...]) -> RandomProgram:
        """The program as it was written."""
        return RandomProgram(
            tuple(self.arguments), tuple(self.lines), results,
            self.grad, self.dynamic, self.autocast,
        )  # fmt: skip

    def _argument(self) -> None:
        if self.arguments and self.choose.random() < 0.15:
            text = self.choose.choice(ALIASES)
        else:
            text = self._made()
        name = f"a{len(self.arguments)}"
        if self._run(f"{name} = {text}"):
            self.arguments.append(text)

    def _made(self) -> str:
        sizes, after = self.choose.choice(LAYOUTS)
        if self.ordered is not None and self.ordered.random() < 0.7:
            sizes, after = self.ordered.choice(ORDERED)
        kind = self.choose.random()
        if kind < 0.65:
            make, dtype = (
                self.choose.choice(("randn", "randn", "rand")),
                self.choose.choice(FLOATS),
            )
        elif kind < 0.9:
            make, dtype = "randint", self.choose.choice(INTEGERS)
        else:
            return f"torch.randn({sizes}){after} > 0"
        low = "0, 5, " if make == "randint" else ""
        made = f"torch.{make}({low}{sizes}, dtype=torch.{dtype})"
        if self.special is not None and make != "randint":
            kept = f"torch.rand({sizes}) < 0.7"
            made = f"{made}.where({kept}, {self.special.choice(SPECIAL)})"
        return f"{made}{after}"

    def _tensors(self) -> list[str]:
        names = [n for n, v in self.spaces[0].items() if isinstance(v, torch.Tensor)]
        return sorted(names, key=lambda n: (n[0], int(n[1:])))

    def _step(self) -> None:
        names = self._tensors()
        if not names:
            return
        step, is_write = self._choose_step()
        if (line := self._fill(step, names)) is None:
            return
        if not is_write:
            several = line[0] if line[1:3] == "::" else ""
            expression = line[3:] if several else line
            first = sum(n.startswith("v") for n in names)
            made = ", ".join(f"v{first + i}" for i in range(2 if several else 1))
            line = f"{made}{', *_' if several == '*' else ''} = {expression}"
        if self._run(line):
            self.lines.append(line)

    def _choose_step(self) -> tuple[str, bool]:
        table = WRITES if self.choose.random() < 0.12 else STEPS
        step = self.choose.choice(table)
        if self.ordered is not None and table is STEPS and self.ordered.random() < 0.3:
            step = self.ordered.choice(ORDERED_STEPS)
        return step, table is WRITES

    def _fill(self, step: str, names: Sequence[str]) -> str | None:
        """Put operands into a step: tensors of the kinds it asks for, the later ones rather."""
        space = self.spaces[0]
        filled: dict[str, str] = {}
        first: torch.Tensor | None = None
        for field in dict.fromkeys(re.findall(r"\{(\w)\}", step)):
            if field == "s":
                filled[field] = self.choose.choice(NUMBERS)
            elif field == "k":
                filled[field] = str(self.choose.randint(1, 3))
            elif field in "de":
                rank = 0 if first is None else first.dim()
                filled[field] = str(self.choose.randint(-rank, rank - 1) if rank else 0)
            else:
                fitting = [n for n in names if _is_kind(space[n], field)]
                if not fitting:
                    return None
                near = [n for n in fitting if first is not None and space[n].shape == first.shape]
                pool = near if near and self.choose.random() < 0.7 else fitting
                at = max(self.choose.randrange(len(pool)), self.choose.randrange(len(pool)))
                filled[field] = pool[at]
                first = space[pool[at]] if first is None else first
        return step.format(**filled)

    def _run(self, line: str) -> bool:
        """Run a line at each size; tell whether all went well and nothing is too large."""
        after: list[Mapping[str, Any]] = []
        for space in self.spaces:
            local = dict(space)
            try:
                with MODES[self.mode]():
                    exec(line, local)  # our own text
                # Refused where a part of a split was written around.
                _ = [v.grad_fn for v in local.values() if isinstance(v, torch.Tensor)]
            except (RuntimeError, TypeError, IndexError, ValueError, AttributeError):
                return False
            if not all(_is_small(v) for n, v in local.items() if n not in space):
                return False
            after.append(local)
        for space, local in zip(self.spaces, after, strict=True):
            space.update(local)
        return True


class _ViewWriter(_Writer):
    """Writes a program of views of a few bases, and of writes to them."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__(choose)
        self.autocast = False
        self.mode = choose.choice(tuple(MODES))
        self.dynamic: bool | None = choose.choice((False, False, True, None))
        self.bases = tuple(choose.choice(views.BASES) for _ in range(choose.choice((1, 1, 2))))
        self.arguments = [
            choose.choice(views.OF_BASES).format(b=f"b{choose.randrange(len(self.bases))}")
            for _ in range(choose.randint(1, 3))
        ]

    def start(self) -> None:
        try:
            self._start()
        except (RuntimeError, IndexError):  # a view that this base does not have
            self.bases, self.arguments = views.BASES[:1], ["b0"] * len(self.arguments)
            self._start()

    def _start(self) -> None:
        program = self.finish(("a0",))
        given = dataclasses.replace(program.functions(), mutates=True)
        self.spaces = []
        for size in program.sizes:
            _, arguments = given.start(size, self.mode)
            names = {f"a{i}": a for i, a in enumerate(arguments)}
            self.spaces.append({"torch": torch, "n": size, **names})

    def finish(self, results: tuple[str, ...]) -> RandomProgram:
        return RandomProgram(
            tuple(self.arguments), tuple(self.lines), results, self.mode == "grad",
            self.dynamic, False, self.mode == "inference", self.bases,
        )  # fmt: skip

    def _choose_step(self) -> tuple[str, bool]:
        (table,) = self.choose.choices(views.TABLES, views.WEIGHTS)
        return self.choose.choice(table), table is views.WRITES


def _is_small(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return value.numel() <= MAX_NUMBERS and not value.is_complex() and value.dim() <= 5


def _is_kind(value: torch.Tensor, field: str) -> bool:
    if field in "fgh":
        return value.is_floating_point()
    if field in "ij":
        return not value.is_floating_point() and value.dtype != torch.bool
    if field in "bc":
        return value.dtype == torch.bool
    return True
