"""Which tests run where: each stack of torch takes a sample of what both need not run whole.

A test with several parameters is tried with a few of their combinations: each value of each
parameter occurs, the values of the others in turn. The other stack takes the combinations that are
left, as far as there are such. Of a long list of programs that a backend compiles, the slow part
of the suite, each stack takes every other one.

Two kinds of tests hardly depend on the version of torch: those of the folders in ``SHARED``, and
those marked ``alternating``, which are slow as well. The stacks share what is chosen of them:
every other test runs on each. ``--exhaustive`` runs all; so does a command line that names files
or tests (``test_x.py``, ``-k``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from itertools import combinations

import pytest

__all__ = ["choose", "sample"]

ALTERNATING = "alternating"
EVERY = "every_combination"
"""Marks a test whose combinations, or rows, all run: they differ by the version of torch."""
SHARED = ("tests/deployment/", "tests/kernels/", "tests/optimize/", "tests/tools/")
"""Folders whose tests are about files, kernels, models of ONNX and commands."""
BY_VALUE = "by_value"
"""Marks a test whose combinations are listed, several parameters at a time: equal values of a
parameter are one."""

COMPILES = "onnxrt"
"""The fixture of tests that compile by a backend (``tests/backends``)."""
LONG = 4
"""Rows from which on the stacks share a list of what is compiled."""

Row = tuple[Hashable, ...]


def sample(items: Sequence[pytest.Item], *, second: bool) -> set[pytest.Item]:
    """The tests that the first or the second of two stacks runs."""
    shared = [item for item in items if _is_shared(item)]
    own = [item for item in items if not _is_shared(item)]
    chosen = _chosen(shared, second=False)
    return set(chosen[second::2]) | set(_chosen(own, second=second))


def _is_shared(item: pytest.Item) -> bool:
    if item.get_closest_marker(EVERY) is not None:
        return False
    return item.get_closest_marker(ALTERNATING) is not None or item.nodeid.startswith(SHARED)


def _chosen(items: Sequence[pytest.Item], *, second: bool) -> list[pytest.Item]:
    """Single tests and the sample of each table, in their order."""
    tables: dict[str, list[pytest.Function]] = defaultdict(list)
    kept: set[pytest.Item] = set()
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tables[item.nodeid.partition("[")[0]].append(item)
        else:
            kept.add(item)
    for table in tables.values():
        if table[0].get_closest_marker(EVERY) is not None:
            kept.update(table)
            continue
        by_value = table[0].get_closest_marker(BY_VALUE) is not None
        chosen = choose([_row(item, by_value) for item in table], backwards=second)
        is_long = len(chosen) == len(table) >= LONG and COMPILES in table[0].fixturenames
        if is_long and not _is_shared(table[0]):
            chosen = chosen[second::2]
        kept.update(table[i] for i in chosen)
    return [item for item in items if item in kept]


def _row(item: pytest.Function, by_value: bool) -> Row:
    """The value of each column: of all parameters of a ``parametrize``, or of each parameter.

    NOTE: ``callspec.indices`` are places in the whole table, since pytest 9.
    """
    values = {name: id(value) for name, value in item.callspec.params.items()}
    if by_value:
        return tuple(values.values())
    columns = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        split = names.split(",") if isinstance(names, str) else names
        columns.append(tuple(values.pop(name.strip()) for name in split))
    if values:  # what a hook parametrized is one column
        columns.append(tuple(values.values()))
    return tuple(columns)


def choose(rows: Sequence[Row], *, backwards: bool) -> list[int]:
    """Which of the rows hold each value of each column, pairs of values as different as can be.

    Columns that say the same, as those of one ``parametrize`` for two names, count once; a table
    of one column is chosen whole. ``backwards`` prefers the rows at the end to those before.
    """
    columns = list(dict.fromkeys(zip(*rows, strict=True)))
    if len(columns) < 2:
        return list(range(len(rows)))
    values = [tuple(enumerate(row)) for row in zip(*columns, strict=True)]
    order = list(range(len(rows)))[:: -1 if backwards else 1]
    used: Counter[Hashable] = Counter()
    missing = {value for row in values for value in row}
    chosen: list[int] = []
    while missing:

        def is_late(i: int) -> tuple[int, int, int]:
            row = values[i]
            new = sum(value in missing for value in row)
            return -new, sum(used[v] for v in row), sum(used[p] for p in combinations(row, 2))

        best = min(order, key=is_late)
        order.remove(best)
        chosen.append(best)
        missing.difference_update(values[best])
        used.update(values[best])
        used.update(combinations(values[best], 2))
    return sorted(chosen)
