"""Leave out the copies of a joint graph that nobody can tell from what they copy.

Dropout with a probability of zero is one: its result and what it copies would both be saved for
the backward graph.
"""

from __future__ import annotations

import torch

from dort_rewriter.aten.aliases import exposed, lineage
from dort_rewriter.aten.operators import is_mutation

__all__ = ["drop_copies"]

aten = torch.ops.aten


def drop_copies(graph: torch.fx.Graph) -> int:
    """Let what reads a copy read what was copied, and return how many copies are gone.

    A copy stays when the caller may see it or its source, and change one of them, and when the
    source is an argument, or a view, whose layout the copy may change.
    """
    nodes = list(graph.nodes)
    if any(is_mutation(node) for node in nodes):
        return 0
    seen_by_caller = exposed(graph)
    dropped = 0
    for node in nodes:
        if node.op != "call_function" or node.target is not aten.clone.default or node.kwargs:
            continue
        source = node.args[0]
        fresh = source.op == "call_function" and lineage(source) == [source]
        if fresh and node not in seen_by_caller and source not in seen_by_caller:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            dropped += 1
    return dropped
