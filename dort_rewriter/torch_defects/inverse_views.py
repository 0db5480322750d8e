"""Results that are written through a view of them, and are views of what was written afterwards.

Functionalization computes the view's new value, and makes the base out of it by the inverse of the
view. In eager mode the base is no view of anything: it has no ``_base``, the views that are
returned with it have it for theirs. Dynamo's tensors tell which results are no views.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputType

from dort_rewriter.aten import is_tracked, lineage, results_of
from dort_rewriter.torch_defects.defect import Defect

DEFECT = Defect(
    operators="in-place mutation of `x.view(-1)`, `x.t()`, `x.unsqueeze(0)`, then `return x`",
    effect="The result is a view (`_is_view()`, `_base`) of a tensor that is not in the program.",
    seen_in=("2.8", "2.13"),
    remedy="such results are detached from what they are made of, in the graph",
    upstream="`reports/inverse_views.md`",
)


def detach_owning_results(graph: torch.fx.Graph, metadata: Any, program: torch.fx.Graph) -> int:
    """Let the results that are no views be none where they are made by views of new memory.

    Returns how many they are. ``metadata`` is AOTAutograd's of that graph, or None; ``program`` is
    Dynamo's graph of it.
    """
    returned = results_of(program)
    if metadata is None or len(metadata.output_info) != len(returned):
        return 0
    results = results_of(graph)
    first = len(metadata.tokens) + len(metadata.mutated_inp_runtime_indices)
    changed: set[torch.fx.Node] = set()
    for leaf, info, own in zip(results[first:], metadata.output_info, returned, strict=False):
        if not _is_owner(own) or info.output_type is not OutputType.non_alias or leaf in changed:
            continue
        chain = lineage(leaf)
        if chain[-1].op == "placeholder" or len(chain) == 1 or not is_tracked(leaf):
            continue
        with graph.inserting_after(leaf):
            detached = graph.call_function(torch.ops.aten.detach.default, (leaf,))
        detached.meta = {**leaf.meta, "val": leaf.meta["val"].detach()}
        leaf.replace_all_uses_with(detached, lambda user, new=detached: user is not new)
        changed.add(leaf)
    return len(changed)


def _is_owner(leaf: Any) -> bool:
    """Whether what Dynamo's graph returns is a tensor that is no view."""
    value = leaf.meta.get("example_value") if isinstance(leaf, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and not value._is_view()


def present() -> bool:
    """Whether a tensor that is written through a view of it becomes a view."""
    return torch.compile(_turn, backend="aot_eager")(torch.ones(2, 3))._is_view()


def _turn(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.t().add_(1)
    return y
