"""What is known about integers computed from shapes: the sizes they stand for.

``Shape(x)[1:2]`` of a tensor ``[N, M]`` holds ``M``, though nobody knows its number yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from dort_rewriter.graph.shapes import UNKNOWN, Dim, same

__all__ = ["Sizes"]

_LIMIT = 64
"""Elements above which a constant is no shape."""


class Sizes:
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


Rule = Callable[[ir.Node, Sizes], "tuple[Dim, ...] | None"]


def _shape(node: ir.Node, sizes: Sizes) -> tuple[Dim, ...] | None:
    x = node.inputs[0]
    if x is None or x.shape is None:
        return None
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    return tuple(x.shape)[slice(start.value if start else 0, end.value if end else None)]


def _concat(node: ir.Node, sizes: Sizes) -> tuple[Dim, ...] | None:
    result: list[Dim] = []
    for part in map(sizes.of, node.inputs):
        if part is None:
            return None
        result += part
    return tuple(result)


def _same(node: ir.Node, sizes: Sizes) -> tuple[Dim, ...] | None:
    return sizes.of(node.inputs[0])


def _gather(node: ir.Node, sizes: Sizes) -> tuple[Dim, ...] | None:
    data, index = map(sizes.of, node.inputs)
    if data is None or index is None:
        return None
    chosen = [i for i in index if isinstance(i, int) and -len(data) <= i < len(data)]
    return tuple(data[i] for i in chosen) if len(chosen) == len(index) else None


def _slice(node: ir.Node, sizes: Sizes) -> tuple[Dim, ...] | None:
    data, *bounds = map(sizes.of, node.inputs)
    if data is None or any(b is None or len(b) != 1 for b in bounds):
        return None
    numbers = [b[0] for b in bounds if b is not None and isinstance(b[0], int)]
    if len(numbers) < len(bounds):
        return None
    start, end, step = numbers[0], numbers[1], numbers[3] if len(numbers) > 3 else 1
    return data[slice(start, end, step)] if step > 0 else None


def _elementwise(combine: Callable[[Dim, Dim], Dim]) -> Rule:
    def compute(node: ir.Node, sizes: Sizes) -> tuple[Dim, ...] | None:
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


_RULES: dict[str, Rule] = {
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
