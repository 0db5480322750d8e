"""Weights inside of several models, written once: the bytes that models have in common.

A model is written without the bytes of its large weights, and with the places where they belong;
what is read is put together again. So graphs with frozen weights take their room on disk once.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dort_rewriter.deployment.plain import expect, whole

SMALLEST = 4_096
"""Bytes of a weight that is worth a part of its own."""
_MOST = 2**31 - 1
"""Bytes of a model, which is a message of protobuf."""


@dataclass(frozen=True)
class Part:
    """Bytes in the file of parts."""

    offset: int
    bytes: int
    digest: int


@dataclass(frozen=True)
class Insertion:
    """A part that belongs into a model."""

    position: int
    """How many of the bytes that the model has of its own come before it."""
    part: int
    """Its place among the parts."""


class PartsWriter:
    """Takes weights out of models, and writes each once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts: list[Part] = []
        self._places: dict[bytes, int] = {}
        self._end = 0

    def take(self, message: bytes, weights: Iterable[bytes]) -> tuple[bytes, list[Insertion]]:
        """The bytes that a model keeps, and what belongs between them.

        ``weights`` are those of its weights, in the order of the message.
        """
        own: list[bytes] = []
        insertions: list[Insertion] = []
        start = kept = 0
        for weight in weights:
            if len(weight) < SMALLEST or (found := message.find(weight, start)) < 0:
                continue
            own.append(message[start:found])
            kept += found - start
            insertions.append(Insertion(kept, self._place(weight)))
            start = found + len(weight)
        own.append(message[start:])
        return b"".join(own), insertions

    def _place(self, weight: bytes) -> int:
        key = hashlib.sha256(weight).digest()
        if key not in self._places:
            with self.path.open("ab") as file:
                file.write(weight)
            self._places[key] = len(self.parts)
            self.parts.append(Part(self._end, len(weight), zlib.crc32(weight)))
            self._end += len(weight)
        return self._places[key]


def join(
    own: bytes,
    insertions: Sequence[Insertion],
    parts: Sequence[Part],
    read: Callable[[int, int], bytes],
) -> bytes:
    """The model of which these are the bytes of its own; ``read`` reads the file of parts.

    Raises :class:`ValueError` for parts that are damaged.
    """
    pieces, start = [], 0
    for insertion in insertions:
        part = parts[insertion.part]
        content = read(part.bytes, part.offset)
        expect(
            len(content) == part.bytes and zlib.crc32(content) == part.digest,
            "part of a model",
            (part.offset, part.bytes),
        )
        pieces += [own[start : insertion.position], content]
        start = insertion.position
    return b"".join([*pieces, own[start:]])


def check_insertions(insertions: Sequence[Insertion], parts: Sequence[Part]) -> None:
    """Raise :class:`ValueError` for parts of a model that are not in order, or too many bytes."""
    positions = [i.position for i in insertions]
    expect(positions == sorted(positions), "list of positions", positions)
    size = sum(parts[whole(i.part, "part", limit=len(parts))].bytes for i in insertions)
    expect(size <= _MOST, "size of a model", size)
