"""Plain values of a description, of the type they have to have and within bounds.

Each function returns the value, or raises :class:`ValueError` for another one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_LARGEST = 2**63 - 1
_LONGEST = 10_000
"""Characters of a text: names and devices."""


def expect(holds: bool, what: str, value: Any) -> None:
    """Raise :class:`ValueError` for a value of which something does not hold."""
    if not holds:
        shown = repr(value)
        raise ValueError(f"{shown if len(shown) < 200 else f'{shown[:200]}...'} is no {what}")


def whole(value: Any, what: str = "number", limit: int = _LARGEST) -> int:
    """A whole number from zero on, below another."""
    expect(type(value) is int and 0 <= value < limit, what, value)
    return int(value)


def flag(value: Any) -> bool:
    """True or False."""
    expect(type(value) is bool, "truth value", value)
    return bool(value)


def text(value: Any, what: str = "text", known: Collection[str] | None = None) -> str:
    """A text, one of those that are known."""
    fits = isinstance(value, str) and len(value) <= _LONGEST
    expect(fits and (known is None or value in known), what, value)
    return str(value)


def items(value: Any, what: str = "list", count: int | None = None) -> list[Any]:
    """A list, of so many."""
    expect(type(value) is list and (count is None or len(value) == count), what, value)
    return list(value)


def mapping(value: Any, what: str, keys: Collection[str] | None = None) -> dict[str, Any]:
    """A dictionary with these keys and no others."""
    expect(type(value) is dict and (keys is None or set(value) == set(keys)), what, value)
    return dict(value)
