"""Nodes that run one program on tensors of their own become one node: a step of an optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.bodies import values_read
from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.patterns.kernels.programs import is_instruction, write_program
from dort_rewriter.optimize.replacing import take_place
from dort_rewriter.optimize.view import GraphView

__all__ = ["ElementwiseLists"]

_MOST = 1024
"""Inputs of a node, or results; the kernel takes twice as many."""

_FEW = 4096
"""Elements of a result that may be made before it is read: a bias, not a weight."""


@dataclass(frozen=True)
class _Entry:
    """A node, and the program that computes it."""

    node: ir.Node
    code: tuple[int, ...]
    results: tuple[int, ...]
    written: Sequence[ir.Value] | None = None
    """The inputs of a program that was written here."""

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """What the program reads. NOTE: another list may have taken the place of what made it."""
        return self.node.inputs if self.written is None else self.written

    @property
    def kind(self) -> tuple[Any, ...]:
        """What has to be equal."""
        types = [
            tuple(None if v is None else v.dtype for v in values)
            for values in (self.inputs, self.node.outputs)
        ]
        return *types, self.code, self.results


class ElementwiseLists(GraphPass):
    """``Elementwise`` nodes of one program that do not read each other -> ``ElementwiseList``,
    when what they give is returned, or has no axes: a list waits for all that it reads; or when
    they read inputs of the model, and give little: the biases of layers in another type.

    Operators that stand alone are taken too, if they read arguments and constants only: the
    counters of steps.
    """

    late = True

    def run(self, graph: GraphView) -> int:
        """Join what can be joined, and return how many lists there are more."""
        groups: dict[Any, list[_Entry]] = {}
        depths = _depths(graph.graph)
        for node in graph.graph:
            entry = _entry(node, depths[node], graph)
            if entry is not None:
                groups.setdefault((depths[node], *entry.kind), []).append(entry)
        found = [part for group in groups.values() for part in _parts(group) if len(part) > 1]
        for part in found:
            _join(graph.graph, part)
        if found:
            graph.graph.opset_imports.setdefault(OWN_DOMAIN, 1)
            graph.graph.sort()
        return len(found)


def _depths(graph: ir.Graph) -> dict[ir.Node, int]:
    """How many nodes stand before each on the longest way: those of one depth are apart."""
    depths: dict[ir.Node, int] = {}
    for node in graph:
        read = [v.producer() for v in values_read(node)]
        depths[node] = 1 + max((depths[p] for p in read if p in depths), default=0)
    return depths


def _entry(node: ir.Node, depth: int, graph: GraphView) -> _Entry | None:
    """What a list would compute in the place of a node, if it may."""
    if (node.domain, node.op_type) == (OWN_DOMAIN, "Elementwise"):
        given = all(v.is_graph_output() or _is_number(v) for v in node.outputs) or _is_bias(node)
        code, results = (tuple(node.attributes[n].as_ints()) for n in ("program", "results"))
        return _Entry(node, code, results) if given else None
    if depth > 1 or not is_instruction(node) or not node.outputs[0].is_graph_output():
        return None
    program = write_program([node], node.outputs)
    attributes: dict[str, Any] = {"program": program.code, "results": program.results, "count": 1}
    runs = graph.runs(
        "ElementwiseList", program.inputs, outputs=node.outputs, domain=OWN_DOMAIN, **attributes
    )
    if not runs:
        return None
    return _Entry(node, tuple(program.code), tuple(program.results), program.inputs)


def _is_bias(node: ir.Node) -> bool:
    """Whether a node reads what the model is given, and gives little."""
    fed = all(v is None or v.is_graph_input() or v.is_initializer() for v in node.inputs)
    return fed and all(_is_small(v) for v in node.outputs)


def _is_small(value: ir.Value) -> bool:
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    return value.shape is not None and len(sizes) == len(value.shape) and math.prod(sizes) <= _FEW


def _is_number(value: ir.Value) -> bool:
    return value.shape is not None and not value.shape


def _parts(group: Sequence[_Entry]) -> Iterator[Sequence[_Entry]]:
    """Parts of one size, or nearly: the last one is not left with a node alone."""
    most = _MOST // max(len(group[0].inputs), len(group[0].node.outputs))
    parts = -(-len(group) // most)
    ends = [len(group) * k // parts for k in range(parts + 1)]
    for first, end in pairwise(ends):
        yield group[first:end]


def _join(graph: ir.Graph, entries: Sequence[_Entry]) -> None:
    first, nodes = entries[0], [e.node for e in entries]
    outputs = [v for n in nodes for v in n.outputs]
    shared = _shared(entries)
    joined = ir.node(
        "ElementwiseList",
        [*_without(shared, entries), *(first.inputs[i] for i in shared)],
        {
            "program": _renumbered(first, shared),
            "results": first.results,
            "count": len(nodes),
            "shared": len(shared),
        },
        domain=OWN_DOMAIN,
        num_outputs=len(outputs),
        metadata_props={**first.node.metadata_props, "rule": ElementwiseLists.__name__},
    )
    graph.insert_after(nodes[-1], joined)  # the whole graph is sorted in the end
    for old, new in zip(outputs, joined.outputs, strict=True):
        take_place(old, new)
    graph.remove(reversed(nodes), safe=True)


def _shared(entries: Sequence[_Entry]) -> list[int]:
    """The inputs that all programs read, by place: constants, rates. They are given once."""
    columns = zip(*(e.inputs for e in entries), strict=True)
    return [i for i, column in enumerate(columns) if all(v is column[0] for v in column)]


def _without(shared: Sequence[int], entries: Sequence[_Entry]) -> Iterator[ir.Value | None]:
    """The inputs that each program has of its own."""
    for entry in entries:
        yield from (v for i, v in enumerate(entry.inputs) if i not in shared)


def _renumbered(entry: _Entry, shared: Sequence[int]) -> list[int]:
    """The program with the shared inputs behind the others."""
    own = [i for i in range(len(entry.inputs)) if i not in shared]
    place = {old: new for new, old in enumerate((*own, *shared))}
    code = list(entry.code)
    for first in range(0, len(code), 5):
        for k in range(first + 2, first + 5):
            if code[k] < 0:
                code[k] = -1 - place[-1 - code[k]]
    return code
