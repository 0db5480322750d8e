"""What the two stacks take of a table of combinations."""

from __future__ import annotations

import itertools
import types
from unittest import mock

import pytest

from tests.sampling import choose, sample

TABLES = {
    "two columns": list(itertools.product(range(7), range(2))),
    "three columns": list(itertools.product(range(5), range(3), range(2))),
    "with holes": [(i, j) for i, j in itertools.product(range(6), range(3)) if (i + j) % 3],
    "one column twice": [(i, i, j) for i, j in itertools.product(range(4), range(2))],
}


@pytest.mark.parametrize("name", TABLES)
def test_each_value_is_tried(name: str) -> None:
    rows = TABLES[name]
    for backwards in (False, True):
        chosen = [rows[i] for i in choose(rows, backwards=backwards)]
        assert len(chosen) == max(len(set(column)) for column in zip(*rows, strict=True))
        for column, tried in zip(zip(*rows, strict=True), zip(*chosen, strict=True), strict=True):
            assert set(tried) == set(column)


def test_the_stacks_take_what_is_left() -> None:
    rows = TABLES["two columns"]
    first, second = (set(choose(rows, backwards=b)) for b in (False, True))
    assert first | second == set(range(len(rows)))


def test_one_parameter_is_tried_whole() -> None:
    rows = [(i,) for i in range(9)]
    assert choose(rows, backwards=False) == list(range(9))
    assert choose([(i, i) for i in range(9)], backwards=True) == list(range(9))


def _rows(count: int, *fixtures: str, folder: str = "tests/") -> list[pytest.Item]:
    """A table of one parameter, as pytest collects it."""
    items: list[pytest.Item] = []
    for i in range(count):
        item = mock.create_autospec(pytest.Function, instance=True)
        item.nodeid, item.fixturenames = f"{folder}test_it[{i}]", list(fixtures)
        item.callspec = types.SimpleNamespace(params={"name": i})
        item.get_closest_marker.return_value = None
        item.iter_markers.return_value = []
        items.append(item)
    return items


@pytest.mark.parametrize(
    ("rows", "fixtures", "each"),
    [(9, ("onnxrt",), (5, 4)), (3, ("onnxrt",), (3, 3)), (9, (), (9, 9))],
)
def test_the_stacks_share_long_lists_of_programs(
    rows: int, fixtures: tuple[str, ...], each: tuple[int, int]
) -> None:
    items = _rows(rows, *fixtures)
    kept = [sample(items, second=second) for second in (False, True)]
    assert tuple(map(len, kept)) == each
    assert kept[0] | kept[1] == set(items)


def test_the_stacks_share_what_hardly_depends_on_torch() -> None:
    items = _rows(9, folder="tests/optimize/")
    kept = [sample(items, second=second) for second in (False, True)]
    assert tuple(map(len, kept)) == (5, 4)
    assert kept[0] | kept[1] == set(items)
