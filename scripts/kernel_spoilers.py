"""Nodes for the operators of our own, half of them with something that nobody would write."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping

from kernel_cases import EDGES, INT64, MAKERS, TYPES, Case, Tensor


def _other(r: random.Random, value: int) -> int:
    other = r.choice((r.choice(EDGES), value + 1, value - 1, -value, value * 2))
    return min(max(other, EDGES[0]), EDGES[-1])


def _spoil_attribute(r: random.Random, case: Case) -> None:
    if not case.attributes:
        return
    name = r.choice(list(case.attributes))
    value = case.attributes[name]
    if r.random() < 0.1:
        del case.attributes[name]
    elif isinstance(value, list):
        place = r.randint(0, len(value))
        if place < len(value) and r.random() < 0.8:
            value[place] = _other(r, value[place])
        else:
            value[place : place + r.randint(0, 1)] = [r.choice(EDGES)] * r.choice((0, 1, 5))
    elif isinstance(value, int):
        case.attributes[name] = _other(r, value)


def _spoil_sizes(r: random.Random, case: Case) -> None:
    """Change a size of one input, or of all that have it."""
    some = r.choice(case.inputs)
    if not some.dims or r.random() < 0.1:
        some.dims = [*some.dims, *[1] * r.choice((1, 2, 12))]
        return
    old, new = r.choice(some.dims), r.choice((0, 1, 2, 3, 16, 2**31, 2**40, 2**62))
    for x in case.inputs if r.random() < 0.5 else [some]:
        x.dims = [new if d == old else d for d in x.dims]
        if r.random() < 0.1:
            x.dims.pop(r.randrange(len(x.dims))) if x.dims else None


def _spoil_content(r: random.Random, case: Case) -> None:
    """Change what an input of integers holds."""
    given = [x for x in case.inputs if x.content]
    if given:
        content = r.choice(given).content
        place = r.randrange(len(content))
        content[place] = _other(r, content[place])


def _spoil_signature(r: random.Random, case: Case) -> None:
    """Change the types or the number of inputs or results."""
    inputs, results = case.inputs, case.results
    what = r.randint(0, 5)
    if what == 0:
        r.choice(inputs).type = r.choice(TYPES)
    elif what == 1:
        results[r.randrange(len(results))] = r.choice(TYPES)
    elif what == 2 and len(inputs) > 1:
        inputs.pop(r.randrange(len(inputs)))
    elif what == 3:
        inputs += [dataclasses.replace(r.choice(inputs)) for _ in range(r.choice((1, 2, 20)))]
    elif what == 4 and len(results) > 1:
        results.pop()
    else:
        results += [r.choice(results)] * r.choice((1, 20))


SPOILERS = (_spoil_attribute, _spoil_sizes, _spoil_content, _spoil_signature)
MOST_ELEMENTS = 2**20


def draw(r: random.Random, op: str, makers: Mapping[str, Callable[..., Case]] = MAKERS) -> Case:
    """A case: half of them are spoiled, in one way or several."""
    case = makers[op](r, op)
    case.inputs = [Tensor(x.type, list(x.dims), list(x.content)) for x in case.inputs]
    if r.random() < 0.5:
        for spoil in r.choices(SPOILERS, (4, 2, 2, 1), k=r.randint(1, 3)):
            spoil(r, case)
        if "key" in case.attributes:  # who knows it spoils nothing
            case.attributes["key"] = 0
    for x in case.inputs:  # sizes that have no memory here can only be those of nothing
        if math.prod(x.dims) > MOST_ELEMENTS:
            x.dims.insert(r.randint(0, len(x.dims)), 0)
        x.content = x.content[: math.prod(x.dims)] if x.type == INT64 else []
    return case
