"""Diffs that only add lines and show none of the file they are for: made, applied and reverted.

Zero lines of context: the position of an addition is a line number, so that the caller must know
the exact content of the file (:mod:`dort_rewriter.hook.sources` goes by its SHA-256).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dort_rewriter.errors import HookError

__all__ = ["Addition", "apply", "parse", "render", "revert"]

HEADER = re.compile(r"@@ -(?P<after>\d+),0 \+(?P<first>\d+)(?:,(?P<count>\d+))? @@")


@dataclass(frozen=True, kw_only=True)
class Addition:
    """Lines put into a file."""

    after: int
    """The line of the original they follow, counted from 1; 0 puts them first."""
    lines: tuple[str, ...]
    """With their line ends."""


def parse(diff: str) -> list[Addition]:
    """Read a diff; :class:`HookError` if it does anything but add lines."""
    additions: list[Addition] = []
    lines = diff.splitlines(keepends=True)
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.startswith(("--- ", "+++ ")) and not additions:
            continue
        if (header := HEADER.match(line)) is None:
            raise HookError(f"Line {position} of the diff is not understood: {line.rstrip()!r}.")
        count = int(header["count"] or 1)
        added = lines[position : position + count]
        position += count
        if len(added) < count or not all(text.startswith("+") for text in added):
            raise HookError(f"The diff takes lines away or is cut: {line.rstrip()!r}.")
        additions.append(
            Addition(after=int(header["after"]), lines=tuple(text[1:] for text in added))
        )
    return additions


def render(path: str, additions: Iterable[Addition]) -> str:
    """Write a diff for the file at ``path``, which ``patch -p1`` and ``git apply`` read too."""
    text = [f"--- a/{path}\n", f"+++ b/{path}\n"]
    shift = 0
    for addition in additions:
        count = len(addition.lines)
        text.append(f"@@ -{addition.after},0 +{addition.after + shift + 1},{count} @@\n")
        text += [f"+{line}" for line in addition.lines]
        shift += count
    return "".join(text)


def apply(additions: Sequence[Addition], source: str) -> str:
    """Add the lines to a file."""
    lines = source.splitlines(keepends=True)
    for addition in reversed(additions):
        if addition.after > len(lines):
            raise HookError(f"The file has {len(lines)} lines, the diff wants {addition.after}.")
        lines[addition.after : addition.after] = addition.lines
    return "".join(lines)


def revert(additions: Sequence[Addition], source: str) -> str | None:
    """Take the lines out of a file again; None if they are not all where they should be."""
    lines = source.splitlines(keepends=True)
    for addition in additions:
        # What stood before this one is out already: its position is that of the original.
        end = addition.after + len(addition.lines)
        if tuple(lines[addition.after : end]) != addition.lines:
            return None
        del lines[addition.after : end]
    return "".join(lines)
