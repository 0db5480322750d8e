"""What looking at one node cannot tell: rewrites of the whole graph.

NOTE: of LeavesLast: onnxruntime does not run a model in the order it is written. It walks back
from the nodes without readers, the last written one first, so that the gradients of weights,
written as soon as they can be computed, all run at the end of the backward pass: what they read
has left the caches by then, and is kept in memory all that time.

NOTE: of ReshapeElementwise: a group and not a node: what is read twice, as in ``x * sigmoid(x)``,
moves as a whole or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, same
from dort_rewriter.optimize.patterns.base import Emitter, GraphPass
from dort_rewriter.optimize.patterns.recognize.operands import Piece, slice_of
from dort_rewriter.optimize.patterns.standard.moves import BROADCASTING, UNARY
from dort_rewriter.optimize.patterns.standard.views import VIEWS, reshape_target
from dort_rewriter.optimize.view import GraphView, same_sizes, take_place, waits_of

_RANDOM = frozenset(
    {"Dropout", "Bernoulli", "Multinomial"}
    | {f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")}
)


class CommonSubexpressions(GraphPass):
    """Two nodes of one operator with equal inputs and attributes become one, random ones never.

    NOTE: the pass of onnx_ir merges two training Dropouts with equal inputs.
    """

    def run(self, graph: GraphView) -> int:
        seen: dict[Any, ir.Node] = {}
        merged = 0
        for node in list(graph.graph):
            if (key := _key(node)) is None:
                continue
            first = seen.setdefault(key, node)
            if first is not node and _can_merge(first, node):
                for kept, gone in zip(first.outputs, node.outputs, strict=True):
                    gone.replace_all_uses_with(kept)
                graph.graph.remove(node, safe=True)
                merged += 1
        return merged


def _can_merge(first: ir.Node, second: ir.Node) -> bool:
    """Whether the model does not return the second: an output needs its own name."""
    if any(v.is_graph_output() for v in second.outputs):
        return False
    types = [(a.dtype, b.dtype) for a, b in zip(first.outputs, second.outputs, strict=True)]
    return all(a == b for a, b in types if a is not None and b is not None)


def _key(node: ir.Node) -> Any:
    if node.op_type in _RANDOM:
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.is_ref() or attribute.type in (
            ir.AttributeType.GRAPH,
            ir.AttributeType.GRAPHS,
        ):
            return None
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = (value.dtype, tuple(value.shape), value.tobytes())
        attributes.append((name, tuple(value) if isinstance(value, list) else value))
    return (
        node.domain,
        node.op_type,
        node.overload,
        tuple(map(id, node.inputs)),
        tuple(attributes),
        len(node.outputs),
    )


class SlicesSplit(GraphPass):
    """``Slice(x, 0, 4), Slice(x, 4, 8) -> Split(x)``   when they take all of an axis, once.

    NOTE: it comes late, so that rules which recognize rotary embeddings see their Slices first.
    """

    late = True

    def run(self, graph: GraphView) -> int:
        groups: dict[tuple[ir.Value, int], list[tuple[Piece, ir.Node]]] = defaultdict(list)
        for node in graph.graph:
            piece = slice_of(node, graph)
            if piece is not None and not node.outputs[0].is_graph_output():
                groups[piece.source, piece.axis].append((piece, node))
        emitter = None
        done = 0
        for (source, axis), found in groups.items():
            dims = graph.dims(source)
            ordered = sorted(found, key=lambda pair: pair[0].start)
            if dims is None or not _covers([piece for piece, _ in ordered], dims[axis]):
                continue
            emitter = emitter or Emitter(graph.graph, graph.opset)
            _split(graph.graph, emitter, [n for _, n in found], ordered)
            done += 1
        return done


def _covers(pieces: Sequence[Piece], size: object) -> bool:
    """Whether pieces, in order, take each element once."""
    ends = [0, *(p.end for p in pieces)]
    starts = [*(p.start for p in pieces), size]
    return len(pieces) > 1 and ends == starts and all(p.start < p.end for p in pieces)


def _split(
    graph: ir.Graph,
    emitter: Emitter,
    nodes: Sequence[ir.Node],
    ordered: Sequence[tuple[Piece, ir.Node]],
) -> None:
    """Put a Split where the first of the Slices stands.

    NOTE: it reads what the Slices read by now: their source may be a Slice that was replaced.
    """
    emitter.begin({**nodes[0].metadata_props, "rule": SlicesSplit.__name__})
    sizes = [piece.end - piece.start for piece, _ in ordered]
    parts = emitter.Split(nodes[0].inputs[0], sizes, axis=ordered[0][0].axis)
    graph.insert_before(nodes[0], emitter.nodes)
    for part, (_, node) in zip(parts, ordered, strict=True):
        take_place(node.outputs[0], part)
    graph.remove(nodes, safe=True)


_ELEMENTWISE = frozenset((*UNARY, *BROADCASTING))
Dims = tuple[Dim, ...]
Order = dict[ir.Node, tuple[int, ...]]
"""Where nodes stand; what takes the place of one stands behind all that stood before it."""


@dataclass
class _Region:
    """Elementwise nodes that compute in one shape, what they would read and give in another."""

    inner: Dims
    outer: Dims
    nodes: dict[ir.Node, None] = field(default_factory=dict)
    sources: dict[ir.Value, ir.Value | None] = field(default_factory=dict)
    """What each input was before its Reshape; None for one that needs a Reshape of its own."""
    gone: dict[ir.Node, None] = field(default_factory=dict)
    """Reshapes that are not needed any more."""
    back: dict[ir.Value, None] = field(default_factory=dict)
    """Results that others read in the inner shape."""

    @property
    def gain(self) -> int:
        """Reshapes less than before."""
        added = sum(source is None for source in self.sources.values()) + len(self.back)
        return len(self.gone) - added


class ReshapeElementwise(GraphPass):
    """``Reshape(Mul(Reshape(x), Reshape(y))) -> Mul(x, y)``   for any group of such nodes.

    Where that leaves fewer Reshapes; numbers and vectors over the last axis, when it is the last
    of both shapes, are read as they are.
    """

    late = True

    def run(self, graph: GraphView) -> int:
        done = 0
        order: Order = {node: (i,) for i, node in enumerate(graph.graph)}
        seen: set[tuple[ir.Node, str]] = set()
        for view in list(graph.graph):
            for start, inner, outer in _starts(view, graph):
                if start.graph is not graph.graph or (start, str(outer)) in seen:
                    continue
                region = _grow(start, inner, outer, graph)
                seen.update((node, str(outer)) for node in region.nodes)
                _look_around(region, graph)
                if region.gain > 0 and _can_write(region):
                    _move(region, order, graph)
                    done += 1
        return done


def _starts(view: ir.Node, graph: GraphView) -> Iterator[tuple[ir.Node, Dims, Dims]]:
    """The nodes around a Reshape, the shape they compute in, and the other one."""
    if view.graph is None or view.domain or view.op_type not in VIEWS:
        return
    x, y = graph.dims(view.inputs[0]), graph.dims(view.outputs[0])
    if x is None or y is None or not x or not y:
        return
    for reader in graph.consumers(view.outputs[0]):
        if _fits(reader, y, x, graph):
            yield reader, y, x
            break
    producer = graph.producer(view.inputs[0])
    if producer is not None and _fits(producer, x, y, graph):
        yield producer, x, y


def _fits(node: ir.Node, inner: Dims, outer: Dims, graph: GraphView) -> bool:
    """Whether a node computes in the inner shape, and could in the outer."""
    if node.domain or node.op_type not in _ELEMENTWISE or node.graph is not graph.graph:
        return False
    if not same_sizes(graph.dims(node.outputs[0]), inner):
        return False
    return all(
        v is not None and (same_sizes(graph.dims(v), inner) or _is_small(v, inner, outer, graph))
        for v in node.inputs
    )


def _is_small(value: ir.Value, inner: Dims, outer: Dims, graph: GraphView) -> bool:
    """Whether a value broadcasts alike to both shapes."""
    dims = graph.dims(value)
    if dims is None or len(dims) > 1:
        return False
    return dims in ((), (1,)) or (same(dims[0], inner[-1]) and same(dims[0], outer[-1]))


def _grow(start: ir.Node, inner: Dims, outer: Dims, graph: GraphView) -> _Region:
    """All nodes connected to one that compute in its shape."""
    region = _Region(inner, outer)
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node in region.nodes or not _fits(node, inner, outer, graph):
            continue
        region.nodes[node] = None
        waiting += graph.consumers(node.outputs[0])
        for value in node.inputs:
            if value is not None and (producer := value.producer()) is not None:
                waiting.append(producer)
    return region


def _look_around(region: _Region, graph: GraphView) -> None:
    for node in region.nodes:
        _look_before(node, region, graph)
        result = node.outputs[0]
        readers = [r for r in graph.consumers(result) if r not in region.nodes]
        views = [r for r in readers if _restores(r, region, graph)]
        region.gone.update(dict.fromkeys(views))
        if len(views) < len(readers) or result.is_graph_output():
            region.back[result] = None


def _look_before(node: ir.Node, region: _Region, graph: GraphView) -> None:
    """Find what the inputs of a node were before their Reshapes; small ones stay what they are.

    NOTE: small inputs alone have the inner shape together, and would not broadcast to a larger
    one: where there is nothing else, one of them is reshaped.
    """
    outside = [v for v in node.inputs if v is not None and v.producer() not in region.nodes]
    views = {v: view for v in outside if (view := _view_of_outer(v, region, graph)) is not None}
    read = [
        v for v in outside if v in views or not _is_small(v, region.inner, region.outer, graph)
    ]
    if not read and len(outside) == len(node.inputs):
        read = [v for v in outside if same_sizes(graph.dims(v), region.inner)][:1]
    for value in read:
        view = views.get(value)
        region.sources[value] = None if view is None else view.inputs[0]
        inside = all(r in region.nodes for r in graph.consumers(value))
        if view is not None and inside and not value.is_graph_output():
            region.gone[view] = None


def _view_of_outer(value: ir.Value, region: _Region, graph: GraphView) -> ir.Node | None:
    """The Reshape before which a value has the outer shape."""
    view = graph.producer(value, *VIEWS)
    return (
        view if view is not None and same_sizes(graph.dims(view.inputs[0]), region.outer) else None
    )


def _restores(reader: ir.Node, region: _Region, graph: GraphView) -> bool:
    """Whether a node gives a result of a region its outer shape, and nothing else."""
    result = reader.outputs[0]
    is_view = reader.op_type in VIEWS and not reader.domain and reader.graph is graph.graph
    return (
        is_view and not result.is_graph_output() and same_sizes(graph.dims(result), region.outer)
    )


def _can_write(region: _Region) -> bool:
    """Whether the Reshapes that are needed can be written as constants."""
    if None in region.sources.values() and reshape_target(region.inner, region.outer) is None:
        return False
    return not region.back or reshape_target(region.outer, region.inner) is not None


def _move(region: _Region, order: Order, graph: GraphView) -> None:
    """Compute a region in the outer shape."""
    emitter = Emitter(graph.graph, graph.opset)
    to_outer = reshape_target(region.inner, region.outer)
    to_inner = reshape_target(region.outer, region.inner)
    moved: dict[ir.Value, ir.Value] = {}
    nodes = sorted(region.nodes, key=order.__getitem__)
    for node in nodes:
        emitter.begin({**node.metadata_props, "rule": ReshapeElementwise.__name__})
        inputs = []
        for value in node.inputs:
            if value in region.sources and value not in moved:
                source = region.sources[value]
                moved[value] = emitter.Reshape(value, to_outer) if source is None else source
            inputs.append(value if value is None else moved.get(value, value))
        old = node.outputs[0]
        new = moved[old] = emitter.again(node, *inputs)
        new.type, new.shape = old.type, ir.Shape(region.outer)
        back = emitter.Reshape(new, to_inner) if old in region.back else None
        if back is not None:  # an output of the model is read by its name inside the region too
            moved[back] = new
        for i, added in enumerate(emitter.nodes):
            order[added] = (*order[node], i)
        graph.graph.insert_before(node, emitter.nodes)
        _redirect(old, new, back, region)
    dead = [n for n in (*reversed(nodes), *region.gone) if n.graph is graph.graph]
    for node in dead:
        for i in range(len(node.inputs)):
            node.replace_input_with(i, None)
    graph.graph.remove(dead)


def _redirect(old: ir.Value, new: ir.Value, back: ir.Value | None, region: _Region) -> None:
    """Let those who read a result outside of a region read what stands for it."""
    for reader, index in old.uses():
        if reader in region.gone:
            reader.outputs[0].replace_all_uses_with(new)
        elif reader not in region.nodes and back is not None:
            reader.replace_input_with(index, back)
    if back is not None and old.is_graph_output():
        take_place(old, back)


class LeavesLast(GraphPass):
    """Nodes that no node reads are written last, in the reverse of the order they can run in."""

    last = True

    def run(self, graph: GraphView) -> int:
        nodes = list(graph.graph)
        leaves = [node for node in nodes if not any(v.uses() for v in node.outputs)]
        if len(leaves) < 2:
            return 0
        moved = set(leaves)
        inner = [node for node in nodes if node not in moved]
        position = {node: i for i, node in enumerate(inner)}
        waits = waits_of(nodes)

        def ready(leaf: ir.Node) -> int:
            """The position of the last node it waits for."""
            return max((position[p] for p in waits[leaf] if p in position), default=-1)

        leaves.sort(key=ready, reverse=True)
        wanted = [*inner, *leaves]
        count = sum(a is not b for a, b in zip(nodes, wanted, strict=True))
        if count:
            graph.graph.remove(leaves)
            graph.graph.extend(leaves)
        return count
