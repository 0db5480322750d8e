"""Indexing that takes everything, in order."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.gathers import GatherNDRange
from tests.optimize.rewrites import assert_refuses, assert_rewrites

GRID = """(float[4,7] x) => (float[4,1,1,7] y)
<int64 zero = {0}, int64 one = {1}, int64 rows = {ROWS}, int64 columns = {COLUMNS},
 int64[3] ends = {1, 2, 3}, int64[3] fronts = {0, 1, 2}, int64[4] s = {4, 1, 1, 7},
 int64[1] last = {4}> {
    i = Range(START, rows, one)
    j = Range(zero, columns, one)
    k = Unsqueeze(i, ends)
    l = Unsqueeze(j, fronts)
    m = Expand(k, s)
    n = Expand(l, s)
    o = Unsqueeze(m, last)
    p = Unsqueeze(n, last)
    q = Concat<axis=-1>(o, p)
    y = GatherND(x, q)
}"""


def _grid(start: str = "zero", rows: str = "4", columns: str = "7") -> str:
    return GRID.replace("START", start).replace("ROWS", rows).replace("COLUMNS", columns)


def test_indices_that_count_all_axes() -> None:
    """As attention masks are read in transformers."""
    assert_rewrites(
        GatherNDRange,
        _grid(),
        """(float[4,7] x) => (float[4,1,1,7] y) <int64[4] s = {4, 1, 1, 7}> {
            y = Reshape(x, s)
        }""",
    )


def test_constant_indices() -> None:
    """The same once they are computed."""
    assert_rewrites(
        GatherNDRange,
        """(float[2,3] x) => (float[2,1,3] y)
        <int64[2,1,3,2] i = {0, 0, 0, 1, 0, 2, 1, 0, 1, 1, 1, 2}> {y = GatherND(x, i)}""",
        "(float[2,3] x) => (float[2,1,3] y) <int64[3] s = {2, 1, 3}> {y = Reshape(x, s)}",
    )


def test_indices_that_start_later() -> None:
    """They take something else."""
    assert_refuses(
        GatherNDRange,
        _grid(start="one", rows="5").replace("float[4,7] x", "float[5,7] x"),
        "the indices do not count the axes one after the other",
    )


def test_indices_that_leave_rows_out() -> None:
    """There are more rows than they count."""
    assert_refuses(
        GatherNDRange,
        _grid().replace("float[4,7] x", "float[5,7] x"),
        "the indices do not count all of an axis",
    )


@pytest.mark.parametrize("indices", ["0, 0, 1, 1", "1, 0, 0, 1"])
def test_other_indices(indices: str) -> None:
    """The diagonal; the rows in the reverse order."""
    assert_refuses(
        GatherNDRange,
        f"""(float[2,2] x) => (float[2] y) <int64[2,2] i = {{{indices}}}> {{
            y = GatherND(x, i)
        }}""",
        "the indices do not count the axes one after the other",
    )


def test_some_indices_are_constants() -> None:
    """Those that are small enough to be folded."""
    assert_rewrites(
        GatherNDRange,
        """(float[2,3] x) => (float[2,1,3] y)
        <int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64[3] s = {2, 1, 3},
         int64[1] last = {3}, int64[2,1,3,1] k = {0, 0, 0, 1, 1, 1}> {
            i = Range(zero, three, one)
            j = Expand(i, s)
            m = Unsqueeze(j, last)
            q = Concat<axis=-1>(k, m)
            y = GatherND(x, q)
        }""",
        "(float[2,3] x) => (float[2,1,3] y) <int64[3] s = {2, 1, 3}> {y = Reshape(x, s)}",
    )
