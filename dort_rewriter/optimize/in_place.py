"""Which results of a model may be written where an argument is, proved on its graph.

ONNX Runtime is given the memory of the argument for the result. That is right when

- the node that computes the result is one of ours, and may stand where it reads: ``Elementwise``
  reads each element before it writes it, ``WriteRows`` reads no row that it writes. NOTE: of the
  other operators nothing is known: ONNX Runtime fuses them, in an order of its own. It leaves
  ours alone;
- the old value is not read later: what depends on the argument is needed to compute the result,
  or made of the result. So nothing that is fused or moved afterwards can change that;
- no node can fail once something is written: whatever may is needed for all that is written, or
  looks up rows at places that what is written was written at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from dort_rewriter.kernels.operators import OPERATORS, OWN_DOMAIN
from dort_rewriter.optimize.view import nodes_inside, same_sizes, values_read

_PROGRAMS = frozenset({"Elementwise", "ElementwiseList"})

_NEVER_FAIL = frozenset(
    (
        "Abs Add And Cast CastLike Ceil Clip Concat ConstantOfShape Cos Div Equal Erf Exp Expand "
        "Flatten Floor Gelu Gemm Greater GreaterOrEqual Identity IsInf IsNaN "
        "LayerNormalization Less LessOrEqual Log MatMul Max Mean Min Mul Neg Not Or Pow "
        "Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare Relu Reshape Round Shape Sigmoid Sign Sin Slice Softmax Softplus Split "
        "SimplifiedLayerNormalization Sqrt Squeeze Sub Sum Tan Tanh Tile Transpose Trilu "
        "Unsqueeze Where Xor"
    ).split()
)
"""Standard operators that run on all values of inputs whose types and shapes fit."""

_ORT_NEVER_FAIL = frozenset(
    "BiasGelu FastGelu FusedMatMul Gelu MatMulNBits MultiHeadAttention QuickGelu "
    "SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization".split()
)
"""Likewise, of onnxruntime's domain; those of ours say so themselves."""


def written_in_place(graph: ir.Graph, wanted: Mapping[str, str]) -> dict[str, str]:
    """Which of the wanted pairs, of an output and the input that it may stand in, are right."""
    if not wanted:
        return {}
    inputs = {v.name: v for v in graph.inputs}
    results = {v.name: v for v in graph.outputs}
    order = _Order(graph)
    found: dict[str, str] = {}
    for output, argument in wanted.items():
        old, new = inputs.get(argument), results.get(output)
        if old is not None and new is not None and _may_stand(old, new, order):
            found[output] = argument
    writers = {node for o in found if (node := results[o].producer()) is not None}
    return found if _fail_before(graph, writers, order) else {}


def checks_of(graph: ir.Graph) -> frozenset[str]:
    """The nodes that may fail, by name: none does once something is written in place."""
    return frozenset(str(n.name) for n in graph if not _never_fails(n) and n.name)


class _Order:
    """What runs before what, whatever the order of the rest."""

    def __init__(self, graph: ir.Graph) -> None:
        self._place: dict[ir.Node, ir.Node] = {}
        """The node of the graph itself that each node is, or is inside of."""
        for node in graph:
            for inner in (node, *nodes_inside(node)):
                self._place[inner] = node
        self._before: dict[ir.Node, set[ir.Node]] = {}

    def readers(self, value: ir.Value) -> set[ir.Node]:
        """The nodes of the graph that read a value, in their subgraphs too."""
        return {self._place[node] for node, _ in value.uses()}

    def before(self, node: ir.Node) -> set[ir.Node]:
        """All that a node needs."""
        if node not in self._before:
            found: set[ir.Node] = set()
            waiting = [node]
            while waiting:
                for producer in self._producers(waiting.pop()):
                    if producer not in found:
                        found.add(producer)
                        waiting.append(producer)
            self._before[node] = found
        return self._before[node]

    def _producers(self, node: ir.Node) -> Iterator[ir.Node]:
        for value in values_read(node):
            producer = value.producer()
            if producer is not None and (place := self._place[producer]) is not node:
                yield place

    def after(self, values: Iterable[ir.Value], until: ir.Node) -> Iterator[ir.Node]:
        """All that reads values, or what is made of them, on the ways that do not pass a node."""
        seen: set[ir.Node] = {until}
        waiting = list(values)
        while waiting:
            for node in self.readers(waiting.pop()) - seen:
                seen.add(node)
                waiting += node.outputs
                yield node


def _may_stand(old: ir.Value, new: ir.Value, order: _Order) -> bool:
    """Whether a result may be written where an argument is, but for what may fail."""
    node = new.producer()
    if node is None or node.domain != OWN_DOMAIN or old.is_graph_output():
        return False
    if not _is_alike(old, new) or not _reads_before_it_writes(node, old, new):
        return False
    others = list(order.after([old], node))
    return not others or order.before(node).issuperset(others)


def _is_alike(old: ir.Value, new: ir.Value) -> bool:
    """Whether two values have one type and one shape, all of it known."""
    return old.dtype is not None and old.dtype == new.dtype and same_sizes(old.shape, new.shape)


def _reads_before_it_writes(node: ir.Node, old: ir.Value, new: ir.Value) -> bool:
    """Whether a node of ours may write a result where it reads an argument.

    NOTE: of a program all results have the shape of the argument, so that it is read element by
    element; what is smaller is not written to. The programs of a list run in any order.
    """
    if node.op_type == "WriteRows":
        return node.inputs[1] is old and len(old.uses()) == 1
    if node.op_type == "ElementwiseList":
        if {n for n, _ in old.uses()} != {node}:
            return False
        own = node.outputs.index(new) // (len(node.outputs) // _count(node))
        shared = node.attributes.get_int("shared", 0)  # the last inputs, which all of them read
        alone = len(node.inputs) - shared
        if old in node.inputs[alone:]:
            return False
        width = alone // _count(node)
        return all(i // width == own for i, v in enumerate(node.inputs[:alone]) if v is old)
    return node.op_type in _PROGRAMS


def _count(node: ir.Node) -> int:
    return int(node.attributes["count"].as_int())


def _fail_before(graph: ir.Graph, writers: Iterable[ir.Node], order: _Order) -> bool:
    """Whether all that may fail has run before anything is written.

    NOTE: what writes rows may fail after others have written theirs if it needs them, as in eager
    mode; those that write at the same places fail together.
    """
    written = list(writers)
    rows = [n for n in written if n.op_type == "WriteRows"]
    risky = {n for n in graph if not _never_fails(n)}.difference(rows)
    for writer in written:
        known = [r for r in rows if r is writer or r in order.before(writer)]
        later = risky - order.before(writer)
        if not all(any(_is_inside(node, r) for r in known) for node in later):
            return False
    return all(_fail_together(w, r, order) for r in rows for w in written)


def _fail_together(writer: ir.Node, rows: ir.Node, order: _Order) -> bool:
    """Whether a node has written nothing that eager mode would not, when one that writes
    rows fails."""
    if rows in order.before(writer) or writer in order.before(rows):
        return writer.op_type == "WriteRows" or rows in order.before(writer)
    return writer.op_type == "WriteRows" and _rows_written(writer) == _rows_written(rows)


def _is_inside(node: ir.Node, rows: ir.Node) -> bool:
    """Whether a node looks up rows at the places that another writes rows at, in no fewer:
    the tables of rotary positions beside a cache. It cannot fail where the other does not."""
    if (node.domain, node.op_type) != ("", "Gather") or node.inputs[1] is not rows.inputs[0]:
        return False
    table, data = node.inputs[0], rows.inputs[1]
    axis = node.attributes.get_int("axis", 0)
    sizes = [_size(table, axis), _size(data, rows.attributes["axis"].as_int())]
    return sizes[0] is not None and sizes[1] is not None and sizes[0] >= sizes[1]


def _size(value: ir.Value | None, axis: int) -> int | None:
    """A size of a value, None where it is not a known number."""
    shape = None if value is None else value.shape
    size = None if shape is None else shape[axis]
    return size if isinstance(size, int) else None


def _rows_written(node: ir.Node) -> tuple[object, ...]:
    """What decides whether a node that writes rows fails."""
    index, data = node.inputs[:2]
    axis = node.attributes["axis"].as_int()
    shape = None if data is None else data.shape
    size = None if shape is None else shape[axis]
    return index, size if isinstance(size, int) else getattr(size, "value", node)


def _never_fails(node: ir.Node) -> bool:
    """Whether a node, and what is inside of it, runs on all values."""
    if any(True for _ in nodes_inside(node)):
        return False
    if node.domain == OWN_DOMAIN:
        return node.op_type in OPERATORS and OPERATORS[node.op_type].never_fails
    if node.domain == "com.microsoft":
        if node.op_type == "RotaryEmbedding":  # the places of its angles are looked up
            return node.inputs[1] is not None and node.inputs[1].const_value is not None
        return node.op_type in _ORT_NEVER_FAIL
    if node.op_type == "Range":
        step = None if node.inputs[2] is None else node.inputs[2].const_value
        return step is not None and bool(step.numpy().all())
    return node.op_type in _NEVER_FAIL
