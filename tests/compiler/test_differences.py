"""How two results differ: one comparison, which all others are made of."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from dort_rewriter.compiler.differences import (
    Tolerance,
    difference,
    farthest,
    first_difference,
    gaps,
    largest,
    limit_of,
)

NAN, INF = math.nan, math.inf


def T(*numbers: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(numbers, dtype=dtype)


@pytest.mark.parametrize(
    ("expected", "got", "kind", "words"),
    [
        ([1.0, 2.0], [1.0, 2.0], None, ""),
        ([1.0, NAN, INF, -INF], [1.0, NAN, INF, -INF], None, ""),
        ([1.0, 1.0], [1.0, NAN], "nan", "at most by inf: at [1] 1.0 expected, nan given"),
        ([1.0, NAN], [1.0, 1.0], "nan", "at [1] nan expected, 1.0 given"),
        ([1.0, INF], [1.0, 3.0], "inf", "at [1] inf expected, 3.0 given"),
        ([1.0, INF], [1.0, -INF], "inf", "at [1] inf expected, -inf given"),
        ([100.0, 1.0], [100.0, 1.001], None, ""),
        ([0.001, 0.0], [0.0011, 0.0], "value", "1 of 2 elements differ by more than 1e-06"),
        ([], [], None, ""),
        ([1.0, 1.0], [1.0], "type", "float32[2] expected, float32[1] given"),
    ],
)
def test_numbers(expected: list[float], got: list[float], kind: str | None, words: str) -> None:
    found = difference(T(*got), T(*expected))
    assert (found.kind if found else None) == kind
    assert words in (found.text if found else "")


def test_what_is_asked_for() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(3, 2).t()
    assert difference(a, b) is None
    found = difference(a, b, strides=True)
    assert found is not None
    assert found == ("stride", "float32[2, 3]: strides (1, 2) expected, (3, 1) given")
    assert difference(a[:1], b[:1].contiguous(), strides=True) is None
    assert difference(-a, a) is None
    assert difference(torch.ones(2) + 1e-6j, torch.ones(2) + 0j) is None
    found = difference(-a, a, zeros=True)
    assert found is not None
    assert found.kind == "zero"


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        (T(2**53, dtype=torch.int64), T(2**53 + 1, dtype=torch.int64), "1 of 1 elements differ"),
        (T(1, dtype=torch.uint16), T(1, dtype=torch.uint16), ""),
        (T(True, dtype=torch.bool), T(False, dtype=torch.bool), "False expected, True given"),
        (T(1j, dtype=torch.complex64), T(1j, dtype=torch.complex64), ""),
        (T(1.0).to(torch.float8_e4m3fn), T(2.0).to(torch.float8_e4m3fn), "2.0 expected"),
        (T(1.0), None, "None expected, float32[1] given"),
        (T(0.0, 1.0).to_sparse(), T(0.0, 2.0).to_sparse(), "at [1] 2.0 expected, 1.0 given"),
        (1, True, "True expected, 1 given"),
        (None, None, ""),
    ],
)
def test_types(a: Any, b: Any, text: str) -> None:
    assert text in first_difference([a], [b])
    assert bool(first_difference([a], [b])) == bool(text)
    assert bool(farthest(a, b)) == bool(text)


def test_sequences() -> None:
    assert first_difference([T(1.0)], []) == "0 results expected, 1 given"
    assert first_difference([T(1.0), T(1.0)], [T(1.0), T(2.0)]).startswith("result 1: float32[1]")


def test_distances() -> None:
    assert farthest(T(1.0), T(1.5, dtype=torch.float64)) == 0.5
    assert farthest(T(1.5, dtype=torch.float64), T(1.0)) == INF
    assert farthest(T(), T()) == 0
    assert gaps(T(NAN, INF, INF, 1.0), T(NAN, INF, -INF, 3.0)).tolist() == [0, 0, INF, 2]
    assert largest(T(-3.0, INF, NAN)) == 3
    assert largest(None) == largest(T()) == limit_of(1) == 0


def test_the_parts_of_a_tolerance() -> None:
    limit = Tolerance(absolute=1.0, relative=0.1, of_largest=0.01)
    expected = T(10.0, -100.0, INF)
    assert limit.limits(expected).tolist() == pytest.approx([3.0, 12.0, 2.0])
    assert limit.excess(T(13.0, -106.0, INF), expected) == pytest.approx(1.0)
    assert limit.excess(T(13.0, NAN, INF), expected) == INF
    assert limit.excess(T(1.0), expected) == INF
    assert Tolerance().excess(T(1.0), T(1.0)) == 0
