"""Operators after which AOTAutograd forgets the order in memory that eager mode gives a tensor.

For a write in place it makes a new value of the operator that writes nothing, and for some of them
that is contiguous whatever is written. Results have other strides than in eager mode then, and
what is drawn in the order of memory (``rand_like``) has other numbers. ``copy_`` keeps the order.
"""

from __future__ import annotations

import torch

from dort_rewriter.aten import is_contiguous, overlaps
from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.overlapping_writes import name_of, traced_value

DEFECT = Defect(
    operators="masked_fill_, index_add_, scatter_, tril_, addmm_ and eleven more; rrelu",
    effect=(
        "The result of an in-place operator on a tensor that is not contiguous is contiguous: "
        "other strides, other random numbers after it."
    ),
    seen_in=("2.8", "2.13"),
    remedy="Dynamo's graph is changed: `x.index_add_(...)` is `x.copy_(x.index_add(...))`",
    upstream="pytorch#133512, pytorch#111133; fixed after 2.13 by pytorch#186328",
)


_SUMS = frozenset({"cumprod_", "cumsum_"})
"""Those that widen integers where they write nothing."""

_FORGETTING = _SUMS | {
    *("addmm_", "bernoulli_", "index_add_", "index_copy_", "index_reduce_", "masked_fill_"),
    *("masked_scatter_", "mvlgamma_", "renorm_", "scatter_", "scatter_add_", "scatter_reduce_"),
    *("tril_", "triu_"),
}
"""Methods of a tensor, found by trying all (torch 2.8 and 2.13)."""


def keep_orders(graph_module: torch.fx.GraphModule) -> int:
    """Let ``x.index_add_(...)`` be ``x.copy_(x.index_add(...))`` in Dynamo's graph where ``x`` is
    not contiguous, and ``rrelu`` read what is; return how many there were."""
    done, nodes = 0, list(graph_module.graph.nodes)
    for node, name in zip(nodes, list(map(name_of, nodes)), strict=True):
        if node.op == "call_method" and name in _FORGETTING and _has_order(node):
            _write_by_copy(node)
        elif name == "rrelu" and _makes_rows(node) and _has_order(node.args[0]):
            with node.graph.inserting_before(node):
                rows = node.graph.call_method("contiguous", (node.args[0],))
            _describe(rows, node)
            node.args = (rows, *node.args[1:])
        else:
            continue
        done += 1
    if done:
        graph_module.recompile()
    return done


def _write_by_copy(node: torch.fx.Node) -> None:
    """Write what the operator makes elsewhere.

    Random operators fill new memory: ``x.bernoulli`` does in another order than ``bernoulli_``.
    """
    written, name, graph = node.args[0], name_of(node), node.graph
    kwargs = dict(node.kwargs)
    if name in _SUMS:
        kwargs["dtype"] = traced_value(node).dtype
    with graph.inserting_before(node):
        if name == "bernoulli_":
            made = graph.call_function(torch.empty_like, (written,))
            _describe(made, node)
            filled = graph.call_method(name, (made, *node.args[1:]), kwargs)
        else:
            made = filled = graph.call_method(name[:-1], node.args, kwargs)
    _describe(filled, node)
    node.target, node.args, node.kwargs = "copy_", (written, made), {}


def _describe(new: torch.fx.Node, node: torch.fx.Node) -> None:
    """It is of the same line, and a tensor like the other's in memory of its own."""
    value = traced_value(node)
    with value.fake_mode:
        new.meta = {**node.meta, "example_value": torch.empty_like(value)}


def _makes_rows(node: torch.fx.Node) -> bool:
    """Whether a call of ``rrelu`` makes a contiguous result whatever it reads."""
    in_place = node.args[4] if len(node.args) > 4 else node.kwargs.get("inplace", False)
    return node.op == "call_function" and bool(node.args) and not in_place


def _has_order(node: object) -> bool:
    """Whether a tensor is neither contiguous nor has elements that are one in memory."""
    value = traced_value(node)
    if not isinstance(value, torch._subclasses.FakeTensor) or value.layout is not torch.strided:
        return False
    return value.dim() > 1 and not is_contiguous(value) and not overlaps(value)


def present() -> bool:
    """Whether what is filled in place loses its strides."""
    x = torch.zeros(3, 4).t()
    return torch.compile(_fill, backend="aot_eager")(x).stride() != _fill(x).stride()


def _fill(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    return y.masked_fill_(y > 0, 1.0)
