"""What :mod:`sanitize_kernels` draws: nodes with their inputs, those of programs first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

FLOAT, INT64, BOOL, HALF, DOUBLE = 1, 7, 9, 10, 11
FLOATS = (FLOAT, DOUBLE, HALF)
TYPES = (*FLOATS, INT64, BOOL, 16, 0)

OPERATIONS = {1: (6, 7, 8, 9, 10, 11, 12, 19, 20, 21, 22), 3: (18,)}
"""The operations of a program by their number of operands, where it is not two."""
OPERATIONS[2] = tuple(i for i in range(24) if i not in OPERATIONS[1] + OPERATIONS[3])


@dataclass
class Tensor:
    """An input: its type, its sizes, and its content where it is integers that matter."""

    type: int
    dims: list[int]
    content: list[int] = field(default_factory=list)


@dataclass
class Case:
    """A node with its inputs; an attribute is an integer, a list of them, or a float."""

    op: str
    attributes: dict[str, int | float | list[int]]
    inputs: list[Tensor]
    results: list[int]
    """The types of the results; 0 for one that nobody reads."""

    def line(self, seed: int) -> str:
        """What the program reads."""
        words: list[object] = [self.op, seed, len(self.attributes)]
        for name, value in self.attributes.items():
            kind = "I" if isinstance(value, list) else "f" if isinstance(value, float) else "i"
            single = round(1024 * value) if isinstance(value, float) else value
            numbers = single if isinstance(single, list) else [single]
            words += [name, kind, len(numbers), *numbers]
        words.append(len(self.inputs))
        for x in self.inputs:
            words += [x.type, len(x.dims), *x.dims, len(x.content), *x.content]
        return " ".join(map(str, [*words, len(self.results), *self.results]))


def draw_dims(r: random.Random, least: int = 0, most: int = 4) -> list[int]:
    """Sizes: some are one, some make vectors, few are zero."""
    return [
        r.choice((1, 1, 2, 3, 4, 5, 8, 9, 17, 33, 0 if r.random() < 0.1 else 7))
        for _ in range(r.randint(least, most))
    ]


def integers(values: Sequence[int]) -> Tensor:
    return Tensor(INT64, [len(values)], list(values))


def draw_part(r: random.Random, dims: Sequence[int]) -> list[int]:
    """Sizes that broadcast to others."""
    kept = [1 if r.random() < 0.3 else d for d in dims]
    return kept[r.randint(0, len(kept)) :] if r.random() < 0.4 else kept


def elementwise(r: random.Random, op: str) -> Case:
    masks = int(op == "MaskedElementwise")
    dims, dtype = draw_dims(r, int(op.startswith("Transposed"))), r.choice(FLOATS)
    inputs = [Tensor(BOOL, draw_part(r, dims)) for _ in range(masks)]
    inputs += [Tensor(dtype, draw_part(r, dims)) for _ in range(r.randint(1, 5))]
    inputs.append(Tensor(dtype, dims))
    program: list[int] = []
    written: list[int] = []
    for i in range(r.randint(1, 8)):
        arity = r.choice((1, 2, 3))
        read = [
            r.choice(written) if written and r.random() < 0.5 else -r.randint(1, len(inputs))
            for _ in range(arity)
        ]
        register = r.choice([*written, i])
        program += [r.choice(OPERATIONS[arity]), register, *read, *[0] * (3 - arity)]
        written.append(register)
    results = [r.choice(written) for _ in range(r.randint(1, 3))]
    attributes: dict[str, int | float | list[int]] = {"program": program, "results": results}
    if op.startswith("Transposed"):
        attributes["perm"] = r.sample(range(len(dims)), len(dims))
    return Case(op, attributes, inputs, [dtype] * len(results))


def elementwise_list(r: random.Random, op: str) -> Case:
    one = elementwise(r, "Elementwise")
    count, dtype = r.randint(1, 4), one.inputs[-1].type
    inputs = list(one.inputs)
    for _ in range(count - 1):
        dims = draw_dims(r)
        inputs += [Tensor(dtype, draw_part(r, dims)) for _ in one.inputs[:-1]] + [
            Tensor(dtype, dims)
        ]
    return Case(op, {**one.attributes, "count": count}, inputs, one.results * count)


def write_rows(r: random.Random, op: str) -> Case:
    dims, dtype = draw_dims(r, 1), r.choice(FLOATS)
    axis, count = r.randrange(len(dims)), r.randint(0, 5)
    wrap = r.randint(0, 1)
    size = max(dims[axis], 1)
    index = [r.randint(-size * wrap, size - 1) for _ in range(count)]
    rows = [*dims[:axis], count, *dims[axis + 1 :]]
    inputs = [Tensor(INT64, [count], index), Tensor(dtype, dims), Tensor(dtype, rows)]
    return Case(op, {"axis": axis, "wrap": wrap}, inputs, [dtype])
