"""Groups of elementwise nodes become one node of a kernel of ours, which reads and writes once.

Chains of nodes on one tensor, and the same expression on lists of tensors, as optimizers have it.

NOTE: what a training step spends on such nodes is memory traffic and the start of kernels; a rule
for each pair of operators would fuse pairs, and write what is between the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import GraphPass
from dort_rewriter.optimize.patterns.kernels.programs import (
    computed_in,
    conditions,
    has_kernel,
    is_instruction,
    is_narrow,
    operands,
    widens,
    write_program,
)
from dort_rewriter.optimize.patterns.recognize.operands import before_cast
from dort_rewriter.optimize.view import (
    GraphView,
    in_turn,
    nodes_inside,
    take_place,
    waits_of,
)

_NODES, _TENSORS, _INPUTS, _RESULTS = 48, 14, 20, 6
"""Limits of a group: its registers have to stay in the fastest cache, which single numbers need
none of. The kernel has wider ones, but for ``kMost`` inputs."""

_OWN_FUSIONS = frozenset({"Conv", "FusedConv", "ConvTranspose", "BatchNormalization"})
"""Operators into which onnxruntime takes an activation or a sum that follows."""

Key = tuple[ir.DataType | None, tuple[int | str | None, ...]]


@dataclass(eq=False)
class _Group:
    """Nodes of one shape, computed in one type, in an order in which they can run."""

    key: Key
    members: dict[ir.Node, None] = field(default_factory=dict)


class ElementwiseChains(GraphPass):
    """Elementwise nodes of one shape that read each other, or the same -> ``Elementwise``;
    one alone if it is of 16-bit numbers, or rounds to bfloat16.

    Masks and Casts are part of it. Sums, products, quotients and roots keep their bits;
    exponentials differ by rounding.
    """

    late = True

    def run(self, graph: GraphView) -> int:
        """Fuse what can be fused, and return how many groups there were."""
        chosen = [n for n in filter(is_instruction, graph.graph) if _is_eligible(n, graph)]
        found = _find_groups(graph.graph, set(chosen))
        groups = [g for g in found if _is_worth(g) and _is_small(set(g.members))]
        alone = [g for g in groups if all(map(widens, g.members))]
        made = [_replace(graph.graph, g) for g in groups if g not in alone and _is_read(g)]
        for node in made:
            _read_before_casts(node, graph)
        left = [g for g in alone if all(m.graph is not None for m in g.members) and _is_read(g)]
        made += [_replace(graph.graph, group) for group in left]
        if made:
            graph.graph.opset_imports.setdefault(OWN_DOMAIN, 1)
            graph.graph.sort()
        return len(made)


def _is_worth(group: _Group) -> bool:
    """Whether a group stands for two nodes or more, a Where counting with its comparisons and
    one of 16-bit numbers with the casts it would get, and reads numbers, not masks alone.

    A sigmoid is worth it by itself: onnxruntime's of float32 is 0 below -18, and off by its own
    size before that.
    """
    compared = sum(bool(conditions(m)) for m in group.members if m.op_type == "Where")
    read = (v for m in group.members for v in operands(m) if v.producer() not in group.members)
    is_fed = any(v.dtype != ir.DataType.BOOL for v in read)
    counted = compared + sum(is_narrow(m) or m.op_type == "Sigmoid" for m in group.members)
    count = len(group.members) + counted
    return is_fed and count > 1


def _is_eligible(node: ir.Node, graph: GraphView) -> bool:
    if None in _key(node)[1]:
        return False
    if any(graph.producer(v, *_OWN_FUSIONS) for v in node.inputs) and _may_be_taken(node, graph):
        return False
    return has_kernel(node.outputs[0], graph)


def _may_be_taken(node: ir.Node, graph: GraphView) -> bool:
    """Whether onnxruntime may take a node into a convolution before it: no choice, and no
    product with what is not constant."""
    if node.op_type == "Mul":
        return any(graph.constant(v) is not None for v in node.inputs)
    return node.op_type != "Where"


def _key(node: ir.Node) -> Key:
    value = node.outputs[0]
    dims = () if value.shape is None else value.shape
    sizes = tuple(d if isinstance(d, int) else d.value for d in dims)
    return computed_in(value), sizes if value.shape is not None else (None,)


def _find_groups(graph: ir.Graph, chosen: set[ir.Node]) -> list[_Group]:
    """Let each node join the groups of what it reads, and of what reads the same.

    A group runs where its last member stands: no other node may read it before that. This keeps
    the graph free of cycles, with a look at neighbours only.
    """
    order = _elementwise_first(graph, chosen)
    place = {inner: i for i, node in enumerate(order) for inner in (node, *nodes_inside(node))}
    group_of: dict[ir.Node, _Group] = {}
    reading: dict[ir.Value, _Group] = {}
    for node in order:
        if node not in chosen:
            continue
        own = _Group(_key(node), {node: None})
        read = operands(node)
        found = [group_of.get(p) for v in read if (p := v.producer()) is not None]
        found += [reading.get(v) for v in read if v.const_value is None and not _is_number(v)]
        candidates = dict.fromkeys(g for g in found if g is not None and g.key == own.key)
        for group in _joinable(candidates, node, place):
            own.members.update(group.members)
            group.members = {}
        own.members = dict.fromkeys(sorted(own.members, key=place.__getitem__))
        for member in own.members:
            group_of[member] = own
        for value in read:
            reading[value] = own
    return list(dict.fromkeys(group_of.values()))


def _is_number(value: ir.Value) -> bool:
    """Whether a value has no axes: to read it again costs nothing."""
    return value.shape is not None and len(value.shape) == 0


def _elementwise_first(graph: ir.Graph, chosen: set[ir.Node]) -> list[ir.Node]:
    """The nodes in an order that keeps those to be fused together."""
    index = {node: i for i, node in enumerate(graph)}

    def rank(node: ir.Node) -> tuple[bool, bool, int]:
        """Numbers before tensors, which would not let them stay together."""
        return node not in chosen, not _is_number(node.outputs[0]), index[node]

    return in_turn(waits_of(list(index)), rank)


def _joinable(
    candidates: Iterable[_Group], node: ir.Node, place: dict[ir.Node, int]
) -> list[_Group]:
    """The groups that can wait for a node."""
    joining = list(candidates)
    while True:
        inside = {node, *(m for g in joining for m in g.members)}
        waiting = [g for g in joining if _can_wait(g, inside, place[node], place)]
        if len(waiting) == len(joining):
            break
        joining = waiting
    kept: list[_Group] = []
    for group in joining:
        members = {node, *group.members, *(m for g in kept for m in g.members)}
        if _is_small(members):
            kept.append(group)
    if len(kept) < len(joining):  # those left out may read what is between
        return _joinable(kept, node, place) if kept else []
    return kept


def _can_wait(group: _Group, inside: set[ir.Node], until: int, place: dict[ir.Node, int]) -> bool:
    readers = (n for m in group.members for n, _ in m.outputs[0].uses())
    return all(n in inside or place[n] > until for n in readers)


def _is_small(members: set[ir.Node]) -> bool:
    results = {m.outputs[0] for m in members}
    read = {v for m in members for v in operands(m)} - results
    kept = [v for v in results if _is_result(v, members)]
    if len(read) > _INPUTS or len(kept) > _RESULTS or len(members) > _NODES:
        return False
    return len(read) <= _TENSORS or sum(not _is_number(v) for v in read) <= _TENSORS


def _is_read(group: _Group) -> bool:
    """Whether the results of a group are used: dead nodes are not removed yet."""
    return any(_is_result(m.outputs[0], group.members) for m in group.members)


def _is_result(value: ir.Value, members: Iterable[ir.Node]) -> bool:
    return value.is_graph_output() or any(n not in members for n, _ in value.uses())


def _replace(graph: ir.Graph, group: _Group) -> ir.Node:
    """Put one node in the place of a group, and return it."""
    members = list(group.members)
    inside = set(members)
    kept = [m.outputs[0] for m in members if _is_result(m.outputs[0], inside)]
    program = write_program(members, kept)
    node = ir.node(
        "Elementwise",
        program.inputs,
        {"program": program.code, "results": program.results},
        domain=OWN_DOMAIN,
        num_outputs=len(kept),
        metadata_props={**members[-1].metadata_props, "rule": ElementwiseChains.__name__},
    )
    graph.insert_after(members[-1], node)  # the whole graph is sorted in the end
    for old, new in zip(kept, node.outputs, strict=True):
        take_place(old, new)
    _remove(graph, members)
    return node


def _read_before_casts(node: ir.Node, graph: GraphView) -> None:
    """Let a program read 16-bit numbers where it reads them as float32: those of other shapes."""
    for i, value in enumerate(node.inputs):
        source = before_cast(value, graph)
        if source is value or value is None:
            continue
        node.replace_input_with(i, source)
        cast = value.producer()
        if cast is not None and not value.uses() and not value.is_graph_output():
            graph.graph.remove(cast, safe=True)


def _remove(graph: ir.Graph, members: Sequence[ir.Node]) -> None:
    """Remove the members, and the conditions that only they read."""
    found = [n for m in members if m.op_type == "Where" for n in conditions(m)]
    graph.remove(reversed(members), safe=True)
    for node in dict.fromkeys(found):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)


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
    for node, before in waits_of(list(graph)).items():
        depths[node] = 1 + max((depths[p] for p in before), default=0)
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
    return fed and all(_has_few(v) for v in node.outputs)


def _has_few(value: ir.Value) -> bool:
    sizes = [d for d in value.shape or () if isinstance(d, int)]
    return value.shape is not None and len(sizes) == len(value.shape) and math.prod(sizes) <= _FEW


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
