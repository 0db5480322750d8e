"""Where an FX node comes from: the Python line that produced it, the nodes it is computed from."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["ancestors", "describe", "first_place", "source_line"]

_TORCH = os.path.dirname(torch.__file__)


def source_line(node: torch.fx.Node) -> str:
    """``file.py:12 in forward: x.sort()``, or an empty text when torch does not know."""
    return _last_frame(node.meta.get("stack_trace") or "")


def describe(node: torch.fx.Node) -> str:
    """A node as a line of text, with its source line when there is one."""
    where = source_line(node)
    return f"{node.format_node()}{f' at {where}' if where else ''}"


def first_place(graph_module: torch.fx.GraphModule) -> str:
    """The first place a graph comes from, ``file.py:12 in forward``, or an empty text."""
    lines = (source_line(node) for node in graph_module.graph.nodes)
    line = next(filter(None, lines), "")
    return os.path.basename(line.partition(": ")[0])


@functools.lru_cache(maxsize=4096)
def _last_frame(stack: str) -> str:
    lines = [line.strip() for line in stack.splitlines() if line.strip()]
    frames = [i for i, line in enumerate(lines) if line.startswith('File "')]
    if not frames:
        return ""
    # The line of the user's that called into torch says more than the one inside torch.
    outside = [i for i in frames if not lines[i].startswith(f'File "{_TORCH}')]
    at = (outside or frames)[-1]
    file, _, rest = lines[at][len('File "') :].partition('", line ')
    code = lines[at + 1] if at + 1 < len(lines) else ""
    number, _, function = rest.partition(", in ")
    return f"{file}:{number}{f' in {function}' if function else ''}{f': {code}' if code else ''}"


def ancestors(leaves: Sequence[Any]) -> set[torch.fx.Node]:
    """The nodes that some results are computed from."""
    found: set[torch.fx.Node] = set()
    waiting = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting.extend(node.all_input_nodes)
    return found
