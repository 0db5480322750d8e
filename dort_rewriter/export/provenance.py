"""Where an FX node comes from: the Python line that produced it."""

from __future__ import annotations

import functools

import torch

__all__ = ["describe", "source_line"]


def source_line(node: torch.fx.Node) -> str:
    """Return ``file.py:12 in forward: x.sort()``, or an empty text when torch does not know."""
    return _last_frame(node.meta.get("stack_trace") or "")


def describe(node: torch.fx.Node) -> str:
    """Return a node as a line of text, with its source line when there is one."""
    where = source_line(node)
    return f"{node.format_node()}{f' at {where}' if where else ''}"


@functools.lru_cache(maxsize=4096)
def _last_frame(stack: str) -> str:
    lines = [line.strip() for line in stack.splitlines() if line.strip()]
    at = next((i for i in reversed(range(len(lines))) if lines[i].startswith('File "')), None)
    if at is None:
        return ""
    file, _, rest = lines[at][len('File "') :].partition('", line ')
    code = lines[at + 1] if at + 1 < len(lines) else ""
    number, _, function = rest.partition(", in ")
    return f"{file}:{number}{f' in {function}' if function else ''}{f': {code}' if code else ''}"
