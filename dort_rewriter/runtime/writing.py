"""Arguments that a run writes to: whether they are apart from all others in memory, and what was
made of their addresses in the call before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Shapes = Sequence[Sequence[int]]


class Apart:
    """Asked at each call with the addresses and the shapes of the arguments, all of them dense.

    Parameters and caches stay where they are: what was found once is not looked at again. Calls
    from several threads may overlap: ``_known`` is replaced as a whole.
    """

    __slots__ = ("_itemsizes", "_known", "_written")

    def __init__(self, itemsizes: Sequence[int], written: Sequence[bool]) -> None:
        """Take the size of an element of each argument, and whether it is written to."""
        self._itemsizes = tuple(itemsizes)
        self._written = tuple(written)
        self._known: tuple[Sequence[int], Shapes] = ((), ())

    def __call__(self, addresses: Sequence[int], shapes: Shapes) -> bool:
        """Whether nothing that is written to overlaps with anything else."""
        known, of_shapes = self._known
        if known == addresses and of_shapes == shapes:
            return True
        if not self._look(addresses, shapes):
            return False
        self._known = (addresses, shapes)
        return True

    def _look(self, addresses: Sequence[int], shapes: Shapes) -> bool:
        sizes = [
            math.prod(s) * n
            for s, n in zip(shapes[: len(addresses)], self._itemsizes, strict=True)
        ]
        spans = sorted(
            (start, start + size, written)
            for start, size, written in zip(addresses, sizes, self._written, strict=True)
            if size
        )
        end = end_of_written = 0
        for start, stop, written in spans:
            if start < (end if written else end_of_written):
                return False
            end = max(end, stop)
            if written:
                end_of_written = max(end_of_written, stop)
        return True


class Kept:
    """What the latest call made of some addresses: values of onnxruntime, which own no memory.

    Parameters stay where they are: to describe hundreds of them again would take as long as a
    small run. Calls from several threads may overlap: what one has taken is not there for others.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: list[tuple[Sequence[int], Shapes, Any]] = []

    def take(self, addresses: Sequence[int], shapes: Shapes) -> Any:
        """What was made of these addresses and the very same shapes, or None."""
        try:
            known, of_shapes, made = self._held.pop()
        except IndexError:
            return None
        return made if of_shapes is shapes and known == addresses else None

    def keep(self, addresses: Sequence[int], shapes: Shapes, made: Any) -> None:
        """Give back what a call is done with."""
        self._held[:] = [(addresses, shapes, made)]
