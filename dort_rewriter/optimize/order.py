"""An order of the nodes with a low peak of memory.

Nodes are taken one by one among those that are ready: first what frees more than it allocates.
When that ends up above the order of the exporter, which is usually good, the latter stays.

NOTE: this is the order of the nodes in the model. onnxruntime sorts them again, from its outputs
back, and looks at ours only between equals; other runtimes follow it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from graphlib import TopologicalSorter

import onnx_ir as ir

from dort_rewriter.optimize.view import values_read, waits_of

_UNKNOWN_SIZE = 32
"""What a symbolic dimension counts as."""

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""Operators whose result shares the memory of their first input."""


def order_by_memory(graph: ir.Graph) -> tuple[int, int]:
    """Sort the nodes of a graph; return the peak before and after, in bytes."""
    nodes = list(graph)
    memory = _Memory(graph)
    before = memory.peak(nodes)
    chosen = _schedule(nodes, memory)
    after = memory.peak(chosen)
    if after >= before:
        return before, before
    graph.remove(nodes)
    graph.extend(chosen)
    return before, after


def peak_bytes(graph: ir.Graph) -> int:
    """The most bytes that intermediate results and outputs take at one time."""
    return _Memory(graph).peak(list(graph))


class _Memory:
    """What each node reads and writes: buffers, which results may share, and their sizes.

    Inputs and constants are left out: they are there from beginning to end.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.sizes: dict[int, int] = {}
        self.reads: dict[ir.Node, list[int]] = {}
        self.writes: dict[ir.Node, list[int]] = {}
        self.kept: set[int] = set()
        """Buffers that the graph returns."""
        buffers: dict[ir.Value, int] = {}
        for node in graph:
            read = dict.fromkeys(v for v in values_read(node) if v in buffers)
            self.reads[node] = list(dict.fromkeys(buffers[v] for v in read))
            self.writes[node] = []
            shared = node.inputs[0] if node.op_type in _VIEWS and not node.domain else None
            for value in node.outputs:
                if shared is not None and shared in buffers:
                    buffers[value] = buffers[shared]
                else:
                    buffers[value] = len(self.sizes)
                    self.sizes[buffers[value]] = _nbytes(value)
                    self.writes[node].append(buffers[value])
        self.kept = {buffers[v] for v in graph.outputs if v in buffers}
        self.readers: dict[int, list[ir.Node]] = {b: [] for b in self.sizes}
        for node, read_buffers in self.reads.items():
            for buffer in read_buffers:
                self.readers[buffer].append(node)

    def peak(self, nodes: Sequence[ir.Node]) -> int:
        """The peak of running these nodes in this order."""
        left = {buffer: len(readers) for buffer, readers in self.readers.items()}
        live = highest = 0
        for node in nodes:
            live += self.allocated(node)
            highest = max(highest, live)
            live -= self.freed(node, left)
            for buffer in self.reads[node]:
                left[buffer] -= 1
        return highest

    def allocated(self, node: ir.Node) -> int:
        """The bytes that a node needs for its results."""
        return sum(self.sizes[b] for b in self.writes[node])

    def freed(self, node: ir.Node, left: dict[int, int]) -> int:
        """The bytes that are free once the node has run; ``left`` counts readers to come."""
        done = [b for b in self.reads[node] if left[b] == 1]
        done += [b for b in self.writes[node] if left[b] == 0]
        return sum(self.sizes[b] for b in done if b not in self.kept)


def _schedule(nodes: Sequence[ir.Node], memory: _Memory) -> list[ir.Node]:
    """The nodes in a new order: always the ready one that lets memory grow the least."""
    place = {node: i for i, node in enumerate(nodes)}
    sorter = TopologicalSorter(waits_of(nodes))
    sorter.prepare()
    left = {buffer: len(readers) for buffer, readers in memory.readers.items()}

    def entry(node: ir.Node) -> tuple[int, int]:
        return memory.allocated(node) - memory.freed(node, left), place[node]

    ready: list[tuple[int, int]] = []
    reached: set[ir.Node] = set()
    """Those that were ready so far."""
    chosen: dict[ir.Node, None] = {}
    while sorter.is_active():
        for node in sorter.get_ready():
            reached.add(node)
            heapq.heappush(ready, entry(node))
        node = nodes[heapq.heappop(ready)[1]]
        if node in chosen:
            continue  # its growth was recomputed since
        chosen[node] = None
        for buffer in memory.reads[node]:
            left[buffer] -= 1
        sorter.done(node)
        for buffer in memory.reads[node]:
            if left[buffer] == 1:  # the last reader frees it
                for reader in memory.readers[buffer]:
                    if reader in reached and reader not in chosen:
                        heapq.heappush(ready, entry(reader))
    return list(chosen)


def _nbytes(value: ir.Value) -> int:
    if value.dtype is None or value.shape is None:
        return 0
    elements = math.prod(d if isinstance(d, int) else _UNKNOWN_SIZE for d in value.shape)
    return elements * value.dtype.bitwidth // 8
