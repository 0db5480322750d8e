"""GraphView: the questions rules ask about a graph. It answers, and changes nothing.

Beside it, what nodes have inside, an order of them, and a value in the place of another.

Of integers that are computed from shapes it knows the sizes that they stand for: ``Shape(x)[1:2]``
of a tensor ``[N, M]`` holds ``M``, though its number is not known yet.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from dort_rewriter.graph.shapes import UNKNOWN, Dim, same
from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES

KernelQuery = Callable[..., bool]
"""``(op_type, domain, version, input dtypes, attributes=, outputs=) -> bool``: whether the chosen
provider runs such a node."""

Array = np.ndarray[Any, Any]
Node = TypeVar("Node")


def _no_kernels(*args: Any, **kwargs: Any) -> bool:
    return False


class GraphView:
    """A model under optimization."""

    def __init__(self, model: ir.Model, *, has_kernel: KernelQuery = _no_kernels) -> None:
        self.model = model
        self.graph = model.graph
        self.opset = model.graph.opset_imports.get("", 18)
        self._has_kernel = has_kernel
        self._sizes = _Sizes()

    # -- structure -----------------------------------------------------------------------------

    @staticmethod
    def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
        """The node that computes a value, if it is one of these operators (or any)."""
        if value is None or (node := value.producer()) is None:
            return None
        return node if not op_types or operator(node) in op_types else None

    @staticmethod
    def consumers(value: ir.Value) -> list[ir.Node]:
        """The nodes that read a value, one entry for each use."""
        return [node for node, _ in value.uses()]

    @staticmethod
    def reader(value: ir.Value, *op_types: str) -> ir.Node | None:
        """The node that alone reads a value, once, if it is of one of these operators."""
        if not GraphView.used_once(value):
            return None
        ((node, _),) = value.uses()
        return node if operator(node) in op_types else None

    @staticmethod
    def used_once(value: ir.Value) -> bool:
        """Whether one node reads the value, once, and the model does not return it."""
        return len(value.uses()) == 1 and not value.is_graph_output()

    # -- constants -----------------------------------------------------------------------------

    @staticmethod
    def constant(value: ir.Value | None, most: int | None = None) -> Array | None:
        """The constant a value holds; None when it is not one, or of more than ``most`` elements.

        An initializer that is an input of the model too may be overridden: it is no constant.
        """
        if value is None or (tensor := value.const_value) is None or value.is_graph_input():
            return None
        return None if most is not None and tensor.size > most else tensor.numpy()

    def scalar(self, value: ir.Value | None) -> Any:
        """The number of a constant of one element; None when it is not one."""
        if value is None or (tensor := value.const_value) is None or tensor.size != 1:
            return None
        array = self.constant(value)
        return None if array is None else array.ravel()[0].item()

    @staticmethod
    def integers(value: ir.Value | None) -> list[int] | None:
        """A constant as a list of integers."""
        array = GraphView.constant(value)
        return None if array is None else [int(i) for i in array.ravel()]

    # -- types and shapes ----------------------------------------------------------------------

    @staticmethod
    def dims(value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The sizes of a value, symbols included; None when the rank is unknown."""
        return None if value is None or value.shape is None else tuple(value.shape)

    @staticmethod
    def static(value: ir.Value | None) -> tuple[int, ...] | None:
        """The sizes of a value when all are numbers."""
        if value is None or value.shape is None:
            return None
        dims = tuple(value.shape)
        return None if any(not isinstance(d, int) for d in dims) else dims  # type: ignore[return-value]

    @staticmethod
    def rank(value: ir.Value | None) -> int | None:
        """The number of dimensions, when known."""
        return None if value is None or value.shape is None else len(value.shape)

    @staticmethod
    def same_shape(a: ir.Value | None, b: ir.Value | None) -> bool:
        """Whether two values are known to have the same shape."""
        return a is not None and b is not None and same_sizes(a.shape, b.shape)

    def sizes(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The integers a value of rank 0 or 1 holds, symbols for those known at run time:
        ``(4, N)`` for ``Shape(x)`` of a tensor ``[4, N]``."""
        return self._sizes.of(value)

    # -- nodes ---------------------------------------------------------------------------------

    @staticmethod
    def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
        """An attribute as a Python value."""
        attribute = node.attributes.get(name)
        return default if attribute is None else attribute.value

    @staticmethod
    def order(node: ir.Node) -> list[int] | None:
        """The order in which a Transpose gives the axes; None when it is not known."""
        rank = GraphView.rank(node.inputs[0])
        order = GraphView.attribute(node, "perm", None if rank is None else range(rank)[::-1])
        return None if order is None else list(order)

    @staticmethod
    def axes(node: ir.Node, rank: int | None = None) -> list[int] | None:
        """The axes of a reduction, Squeeze or Unsqueeze (input or attribute), normalized
        when the rank is given; [] stands for axes left out; None for axes computed at run time."""
        if "axes" in node.attributes:
            found = [int(a) for a in GraphView.attribute(node, "axes")]
        elif len(node.inputs) < 2 or node.inputs[1] is None:
            found = []
        elif (integers := GraphView.integers(node.inputs[1])) is None:
            return None
        else:
            found = integers
        return found if rank is None else [a % rank for a in found]

    def runs(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        *,
        domain: str = "com.microsoft",
        outputs: int | Sequence[ir.Value] = 1,
        shapes: Sequence[Sequence[int] | None] | None = None,
        **attributes: Any,
    ) -> bool:
        """Whether the provider has a kernel for a node with inputs of these types; with
        ``shapes``, whether that kernel accepts inputs like these (small examples). ``outputs`` is
        how many there are, or the values they stand for, whose types they must have."""
        results = outputs if isinstance(outputs, int) else [v.dtype for v in outputs]
        types = [None if v is None else v.dtype for v in inputs]
        if any(v is not None and t is None for v, t in zip(inputs, types, strict=True)):
            return False
        if domain == OWN_DOMAIN and any((self.rank(v) or 0) > OWN_MOST_AXES for v in inputs):
            return False
        version = 1 if domain else self.opset
        return self._has_kernel(
            op_type,
            domain,
            version,
            types,
            attributes=attributes,
            outputs=results,
            shapes=shapes,
        )


def same_sizes(a: Iterable[Dim] | None, b: Iterable[Dim] | None) -> bool:
    """Whether two shapes are known to be the same."""
    if a is None or b is None:
        return False
    x, y = tuple(a), tuple(b)
    return len(x) == len(y) and all(map(same, x, y))


def operator(node: ir.Node) -> str:
    """What rules call the operator of a node: the domain goes before it if there is one."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes of the subgraphs of a node, and of those inside of them."""
    for graph in _bodies(node):
        for inner in graph:
            yield inner
            yield from nodes_inside(inner)


def values_read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what a node reads, in its subgraphs too."""
    yield from (v for v in node.inputs if v is not None)
    for graph in _bodies(node):
        for inner in graph:
            yield from values_read(inner)
        yield from graph.outputs


def waits_of(nodes: Collection[ir.Node]) -> dict[ir.Node, set[ir.Node]]:
    """Of each of some nodes, those among them that it reads, in its subgraphs too."""
    known = set(nodes)
    return {n: {p for v in values_read(n) if (p := v.producer()) in known} for n in nodes}


def in_turn(waits: Mapping[Node, Iterable[Node]], rank: Callable[[Node], Any]) -> list[Node]:
    """Nodes in an order in which each stands behind those that it waits for, of several that may
    come next the one of the lowest rank; no two have the same."""
    sorter = TopologicalSorter(waits)
    sorter.prepare()
    ready: list[tuple[Any, Node]] = []
    order = []
    while sorter.is_active():
        for node in sorter.get_ready():
            heapq.heappush(ready, (rank(node), node))
        order.append(heapq.heappop(ready)[1])
        sorter.done(order[-1])
    return order


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def take_place(old: ir.Value, new: ir.Value) -> None:
    """Let all who read a value read another, which is like it; outputs of the model too."""
    new.type, new.shape = old.type, old.shape
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    take_name(old, new)


def take_name(old: ir.Value, new: ir.Value) -> None:
    """Let a value be known by the name of the one in whose place it is."""
    old.name, new.name = f"{old.name}_replaced", old.name


_LIMIT = 64
"""Elements above which a constant is no shape."""


class _Sizes:
    """Remembers the sizes that the integers of one graph hold."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, tuple[Dim, ...] | None] = {}

    def of(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The elements of an int64 value of rank 0 or 1; None when nothing is known."""
        if value is None or value.dtype != ir.DataType.INT64:
            return None
        waiting = [value]
        while waiting:  # NOTE: no recursion: sums of sizes may be as long as a program
            last = waiting[-1]
            inner = [] if last in self._known else self._unknown_before(last)
            waiting += inner
            if not inner:
                waiting.pop()
                if last not in self._known:
                    self._known[last] = self._find(last)
        return self._known[value]

    def _unknown_before(self, value: ir.Value) -> list[ir.Value]:
        """What has to be known before a value is."""
        node = value.producer()
        if node is None or node.domain or node.op_type not in _RULES or node.op_type == "Shape":
            return []
        return [
            v
            for v in node.inputs
            if v is not None and v.dtype == ir.DataType.INT64 and v not in self._known
        ]

    def _find(self, value: ir.Value) -> tuple[Dim, ...] | None:
        if value.const_value is not None and not value.is_graph_input():
            tensor = value.const_value
            if tensor.size > _LIMIT or len(tensor.shape) > 1:
                return None
            return tuple(int(i) for i in tensor.numpy().ravel())
        if (symbol := value.meta.get("size")) is not None:
            return (symbol if isinstance(symbol, int) else ir.SymbolicDim(symbol),)
        if value.shape is None or len(value.shape) > 1 or (node := value.producer()) is None:
            return None
        rule = None if node.domain else _RULES.get(node.op_type)
        return None if rule is None else rule(node, self)


_Rule = Callable[[ir.Node, _Sizes], "tuple[Dim, ...] | None"]


def _shape(node: ir.Node, sizes: _Sizes) -> tuple[Dim, ...] | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    return tuple(x.shape)[slice(start.value if start else 0, end.value if end else None)]


def _concat(node: ir.Node, sizes: _Sizes) -> tuple[Dim, ...] | None:
    result: list[Dim] = []
    for part in map(sizes.of, node.inputs):
        if part is None:
            return None
        result += part
    return tuple(result)


def _same(node: ir.Node, sizes: _Sizes) -> tuple[Dim, ...] | None:
    return sizes.of(node.inputs[0])


def _gather(node: ir.Node, sizes: _Sizes) -> tuple[Dim, ...] | None:
    data, index = map(sizes.of, node.inputs)
    if data is None or index is None:
        return None
    chosen = [i for i in index if isinstance(i, int) and -len(data) <= i < len(data)]
    return tuple(data[i] for i in chosen) if len(chosen) == len(index) else None


def _slice(node: ir.Node, sizes: _Sizes) -> tuple[Dim, ...] | None:
    data, *bounds = map(sizes.of, node.inputs)
    if data is None or any(b is None or len(b) != 1 for b in bounds):
        return None
    numbers = [b[0] for b in bounds if b is not None and isinstance(b[0], int)]
    if len(numbers) < len(bounds):
        return None
    start, end, step = numbers[0], numbers[1], numbers[3] if len(numbers) > 3 else 1
    return data[slice(start, end, step)] if step > 0 else None


def _elementwise(combine: Callable[[Dim, Dim], Dim]) -> _Rule:
    def compute(node: ir.Node, sizes: _Sizes) -> tuple[Dim, ...] | None:
        a, b = map(sizes.of, node.inputs)
        if a is None or b is None or not a or not b:
            return None
        if len(a) != len(b) and min(len(a), len(b)) != 1:
            return None
        length = max(len(a), len(b))
        pairs = zip(_stretch(a, length), _stretch(b, length), strict=True)
        return tuple(combine(x, y) for x, y in pairs)

    return compute


def _stretch(dims: Sequence[Dim], length: int) -> Sequence[Dim]:
    return dims if len(dims) == length else tuple(dims) * length


def _add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return b if a == 0 else a if b == 0 else UNKNOWN


def _subtract(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return 0 if same(a, b) else a if b == 0 else UNKNOWN


def _multiply(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return 0 if 0 in (a, b) else b if a == 1 else a if b == 1 else UNKNOWN


def _divide(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int) and b != 0 and a % b == 0:
        return a // b
    return a if b == 1 else UNKNOWN


_RULES: dict[str, _Rule] = {
    "Shape": _shape,
    "Concat": _concat,
    **dict.fromkeys(("Identity", "Reshape", "Squeeze", "Unsqueeze", "Cast"), _same),
    "Gather": _gather,
    "Slice": _slice,
    "Add": _elementwise(_add),
    "Sub": _elementwise(_subtract),
    "Mul": _elementwise(_multiply),
    "Div": _elementwise(_divide),
}
