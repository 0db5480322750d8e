"""A failing program made small: what both generators of programs share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def smallest(found: T, smaller: Callable[[T], Iterable[T]], fails: Callable[[T], bool]) -> T:
    """What still fails when nothing more can be taken away; `smaller` gives what to try."""
    while (candidate := next(filter(fails, smaller(found)), None)) is not None:
        found = candidate
    return found
