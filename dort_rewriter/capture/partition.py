"""Cut a graph into blocks for ONNX Runtime and what stays in torch.

Support is decided by whoever converts, before anything is converted. Most graphs are supported as
a whole and are not touched.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from dort_rewriter.errors import UnsupportedOp

__all__ = ["Partition", "partition_graph"]

logger = logging.getLogger(__name__)

Refusal = Callable[[torch.fx.Node], UnsupportedOp | None]


@dataclass(frozen=True)
class Partition:
    """A graph whose supported parts are submodules."""

    graph_module: torch.fx.GraphModule
    blocks: tuple[str, ...]
    """The names of the submodules meant for ONNX Runtime; empty when nothing is."""
    whole: bool
    """True when the graph itself is the only block."""
    fallbacks: tuple[UnsupportedOp, ...]
    """What stays in torch, and why."""


def partition_graph(
    graph_module: torch.fx.GraphModule, refusal: Refusal, min_block_size: int
) -> Partition:
    """Cut a graph by what `refusal` refuses; blocks of fewer nodes than `min_block_size` stay."""
    calls = [n for n in graph_module.graph.nodes if n.op not in ("placeholder", "output")]
    refused = {n: reason for n in calls if (reason := refusal(n)) is not None}
    if not refused:
        return Partition(graph_module, (), True, ())
    fallbacks = tuple(refused.values())
    fused, blocks = _fuse(graph_module, refused, min_block_size)
    return Partition(fused, blocks, False, fallbacks)


def _fuse(
    graph_module: torch.fx.GraphModule,
    refused: Mapping[torch.fx.Node, UnsupportedOp],
    min_block_size: int,
) -> tuple[torch.fx.GraphModule, tuple[str, ...]]:
    from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
    from torch.fx.passes.operator_support import create_op_support

    support = create_op_support(
        lambda _, node: node.op in ("call_function", "get_attr") and node not in refused
    )
    partitioner = CapabilityBasedPartitioner(
        graph_module, support, allows_single_node_partition=True
    )
    proposed = partitioner.propose_partitions()
    worth = [p for p in proposed if _work(p.nodes) >= min_block_size]
    for small in proposed:
        if small not in worth:
            logger.debug("%s node(s) are too few for a session: %s", small.size(), small.nodes)
    fused = partitioner.fuse_partitions(worth)
    names = tuple(
        str(n.target)
        for n in fused.graph.nodes
        if n.op == "call_module" and str(n.target).startswith("fused_")
    )
    return fused, names


def _work(nodes: Mapping[torch.fx.Node, object]) -> int:
    """Count the nodes that compute something: views and sizes cost nothing in torch."""
    return sum(
        isinstance(n.meta.get("val"), torch.Tensor | list | tuple) and not _is_view(n)
        for n in nodes
    )


def _is_view(node: torch.fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.is_view
