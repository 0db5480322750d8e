"""Groups of elementwise operators between Reshapes, computed in the shape outside of them.

NOTE: a group and not a node: what is read twice, as in ``x * sigmoid(x)``, moves as a whole or not
at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from dort_rewriter.graph.shapes import same
from dort_rewriter.optimize.emitter import Emitter
from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.patterns.elementwise import BROADCASTING, UNARY
from dort_rewriter.optimize.patterns.standard.views import VIEWS, reshape_target
from dort_rewriter.optimize.replacing import take_place
from dort_rewriter.optimize.view import Dim, GraphView

__all__ = ["ReshapeElementwise"]

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
    """Reshapes that nobody needs any more."""
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
        """Compute each group in the shape that takes fewer Reshapes."""
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
    if not _equal(graph.dims(node.outputs[0]), inner):
        return False
    return all(
        v is not None and (_equal(graph.dims(v), inner) or _is_small(v, inner, outer, graph))
        for v in node.inputs
    )


def _equal(a: Dims | None, b: Dims) -> bool:
    return a is not None and len(a) == len(b) and all(map(same, a, b))


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
        read = [v for v in outside if _equal(graph.dims(v), region.inner)][:1]
    for value in read:
        view = views.get(value)
        region.sources[value] = None if view is None else view.inputs[0]
        inside = all(r in region.nodes for r in graph.consumers(value))
        if view is not None and inside and not value.is_graph_output():
            region.gone[view] = None


def _view_of_outer(value: ir.Value, region: _Region, graph: GraphView) -> ir.Node | None:
    """The Reshape before which a value has the outer shape."""
    view = graph.producer(value, *VIEWS)
    return view if view is not None and _equal(graph.dims(view.inputs[0]), region.outer) else None


def _restores(reader: ir.Node, region: _Region, graph: GraphView) -> bool:
    """Whether a node gives a result of a region its outer shape, and nothing else."""
    result = reader.outputs[0]
    is_view = reader.op_type in VIEWS and not reader.domain and reader.graph is graph.graph
    return is_view and not result.is_graph_output() and _equal(graph.dims(result), region.outer)


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
        attributes = {k: a.value for k, a in node.attributes.items()}
        old = node.outputs[0]
        new = moved[old] = emitter.call(node.op_type, *inputs, **attributes)
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
