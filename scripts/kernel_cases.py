"""Nodes for the operators of our own, drawn at random, as exporters write them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

FLOAT, INT64, BOOL, HALF, DOUBLE, BFLOAT = 1, 7, 9, 10, 11, 16
FLOATING = (FLOAT, HALF, BFLOAT)
FLOATS = (*FLOATING, DOUBLE)
TYPES = (*FLOATS, INT64, BOOL, 6, 0)
EDGES = (-(2**63), -(2**31), -21, -2, -1, 0, 1, 2, 3, 13, 2**24, 2**31, 2**40, 2**62, 2**63 - 1)
"""Integers at which arithmetic goes wrong."""

OPERATIONS = {1: (6, 7, 8, 9, 10, 11, 12, 19, 20, 21, 22, 24, 25, 26), 3: (18,)}
"""The operations of a program by their number of operands, where it is not two."""
OPERATIONS[2] = tuple(i for i in range(27) if i not in OPERATIONS[1] + OPERATIONS[3])

STEPS = (
    ("2 0 -1 -3 0  0 0 -2 0 0", [0], [2]),
    ("2 0 -1 -4 0  0 0 0 -2 0  2 1 0 -5 0  0 1 -3 1 0", [0, 1], [3, 4]),
)
"""Programs of optimizers that are run as one loop, their results, and which inputs are numbers."""


@dataclass
class Tensor:
    """An input: its type, its sizes, and its content where that matters."""

    type: int
    dims: list[int]
    content: list[Any] = field(default_factory=list)


@dataclass
class Case:
    """A node with its inputs; an attribute is an integer, a list of them, or a float."""

    op: str
    attributes: dict[str, int | float | list[int]]
    inputs: list[Tensor]
    results: list[int]
    """The types of the results; 0 for one that nobody reads."""

    def line(self, seed: int) -> str:
        """What the program reads."""
        words: list[object] = [self.op, seed, len(self.attributes)]
        for name, value in self.attributes.items():
            kind = "I" if isinstance(value, list) else "f" if isinstance(value, float) else "i"
            single = round(1024 * value) if isinstance(value, float) else value
            numbers = single if isinstance(single, list) else [single]
            words += [name, kind, len(numbers), *numbers]
        words.append(len(self.inputs))
        for x in self.inputs:
            words += [x.type, len(x.dims), *x.dims, len(x.content), *x.content]
        return " ".join(map(str, [*words, len(self.results), *self.results]))


def _dims(r: random.Random, least: int = 0, most: int = 4) -> list[int]:
    """Sizes: some are one, some make vectors, few are zero."""
    return [
        r.choice((1, 1, 2, 3, 4, 5, 8, 9, 17, 33, 0 if r.random() < 0.1 else 7))
        for _ in range(r.randint(least, most))
    ]


def _integers(values: Sequence[int]) -> Tensor:
    return Tensor(INT64, [len(values)], list(values))


def _part(r: random.Random, dims: Sequence[int]) -> list[int]:
    """Sizes that broadcast to others."""
    kept = [1 if r.random() < 0.3 else d for d in dims]
    return kept[r.randint(0, len(kept)) :] if r.random() < 0.4 else kept


def _floats(r: random.Random, *shapes: list[int]) -> list[Tensor]:
    """Tensors of types that are computed in float, each its own or all alike."""
    types = FLOATING if r.random() < 0.5 else (r.choice(FLOATING),)
    return [Tensor(r.choice(types), dims) for dims in shapes]


def _made(r: random.Random, count: int) -> list[int]:
    return [r.choice(FLOATING) for _ in range(count)]


def _elementwise(r: random.Random, op: str) -> Case:
    if op == "Elementwise" and r.random() < 0.2:
        return _optimizer_step(r)
    dims = _dims(r, int(op.startswith("Transposed")))
    types = FLOATING if r.random() < 0.8 else (DOUBLE,)
    inputs = [Tensor(r.choice((BOOL, *types)), _part(r, dims)) for _ in range(r.randint(1, 5))]
    inputs.append(Tensor(r.choice(types), dims))
    program: list[int] = []
    written: list[int] = []
    for i in range(r.randint(1, 8)):
        arity = r.choice((1, 2, 3))
        read = [
            r.choice(written) if written and r.random() < 0.5 else -r.randint(1, len(inputs))
            for _ in range(arity)
        ]
        register = r.choice([*written, i])
        program += [r.choice(OPERATIONS[arity]), register, *read, *[0] * (3 - arity)]
        written.append(register)
    results = [r.choice(written) for _ in range(r.randint(1, 3))]
    attributes: dict[str, int | float | list[int]] = {"program": program, "results": results}
    if op.startswith("Transposed"):
        attributes["perm"] = r.sample(range(len(dims)), len(dims))
    return Case(op, attributes, inputs, [r.choice(types) for _ in results])


def _optimizer_step(r: random.Random) -> Case:
    """A program of an optimizer, in which not everything has to be as the loop wants it."""
    words, results, numbers = r.choice(STEPS)
    program, dims = [int(word) for word in words.split()], _dims(r)
    shapes = [
        _part(r, dims) if r.random() < 0.1 else [] if place in numbers else dims
        for place in range(-min(program))
    ]
    types = FLOATING if r.random() < 0.2 else (FLOAT,)
    inputs = [Tensor(r.choice(types), shape) for shape in shapes]
    attributes: dict[str, int | float | list[int]] = {"program": program, "results": [*results]}
    return Case("Elementwise", attributes, inputs, [r.choice(types) for _ in results])


def _elementwise_list(r: random.Random, op: str) -> Case:
    one = _optimizer_step(r) if r.random() < 0.3 else _elementwise(r, "Elementwise")
    count, inputs = r.randint(1, 4), list(one.inputs)
    shared = [Tensor(x.type, []) for x in inputs[r.randint(1, len(inputs)) :]]
    own = inputs = inputs[: len(inputs) - len(shared)]
    for _ in range(count - 1):
        dims = _dims(r)
        inputs = [*inputs, *(Tensor(x.type, _part(r, dims)) for x in own[:-1])]
        inputs.append(Tensor(own[-1].type, dims))
    how = {**one.attributes, "count": count, "shared": len(shared)}
    return Case(op, how, [*inputs, *shared], one.results * count)


def _elementwise_list_at(r: random.Random, op: str) -> Case:
    """A list that is given addresses: what stands for them are the numbers of elements that are
    there, or, as -1 - k, the place of an address that is used twice."""
    if r.random() < 0.5:
        words, results, numbers = r.choice(STEPS)
        program = [int(word) for word in words.split()]
        results, width = [*results], -min(program)
    else:
        one = _elementwise(r, "Elementwise")
        while "program" not in one.attributes or any(x.type == BOOL for x in one.inputs):
            one = _elementwise(r, "Elementwise")
        program, results = ([*one.attributes[name]] for name in ("program", "results"))  # type: ignore[misc]
        width = len(one.inputs)
        numbers = [i for i in range(width) if r.random() < 0.3]
    own = width - r.randint(0, 1) if width - 1 in numbers else width
    single = [i for i in numbers if i < own]
    at = [i for i in range(own) if r.random() < 0.7]
    to = [i for i in range(len(results)) if r.random() < 0.7]
    made = len(results) - len(to)
    sizes = [1 if made else r.choice((0, 1, 5, 16, 700, 40_000)) for _ in range(r.randint(1, 4))]
    first, content, given = r.randint(0, 2), [], []
    content += [1] * first
    for size in sizes:
        whole = []
        for i in range(own):
            elements = 1 if i in single else size
            if i in at:
                whole += [len(content)] if elements == size else []
                content.append(elements)
            else:
                given.append(Tensor(FLOAT, [elements] if r.random() < 0.5 else [1, elements]))
        for _ in to:
            again = whole and r.random() < 0.7
            content.append(-1 - whole.pop(r.randrange(len(whole))) if again else size)
    shared = [Tensor(FLOAT, [1] * r.randint(0, 1)) for _ in range(width - own)]
    how = {"program": program, "results": results, "count": len(sizes), "shared": width - own}
    how |= {"own": own, "sizes": sizes, "at": at, "single": single, "to": to}
    inputs = [Tensor(INT64, [len(content)], content), *given, *shared]
    return Case(op, {**how, "first": first, "key": 1}, inputs, [FLOAT] * (made * len(sizes) + 1))


def _write_rows(r: random.Random, op: str) -> Case:
    dims, dtype = _dims(r, 1), r.choice(FLOATS)
    axis, count = r.randrange(len(dims)), r.randint(0, 5)
    wrap = r.randint(0, 1)
    size = max(dims[axis], 1)
    index = [r.randint(-size * wrap, size - 1) for _ in range(count)]
    rows = [*dims[:axis], count, *dims[axis + 1 :]]
    inputs = [Tensor(INT64, [count], index), Tensor(dtype, dims), Tensor(dtype, rows)]
    return Case(op, {"axis": axis, "wrap": wrap}, inputs, [dtype])


def _rotary(r: random.Random, op: str) -> Case:
    dims = [*_dims(r), 2 * r.randint(1, 9)]
    others = [[*_part(r, dims[:-1]), dims[-1]] for _ in range(2)]
    inputs, made = _floats(r, dims, *others), _made(r, 1)
    attributes: dict[str, int | float | list[int]] = {"gradient": r.randint(0, 1)}
    if r.random() < 0.2:
        inputs, made = [Tensor(DOUBLE, x.dims) for x in inputs], [DOUBLE]
    elif r.random() < 0.5:
        attributes["rounding"] = r.choice(FLOATING)
    return Case(op, attributes, inputs, made)


def _scatter(r: random.Random, op: str) -> Case:
    shape, dtype = _dims(r, 1), r.choice(FLOATS)
    depth, places = r.randint(0, len(shape)), r.randint(0, 9)
    index = [r.randint(-d, d - 1) if d else 0 for _ in range(places) for d in shape[:depth]]
    updates = Tensor(dtype, [places, *shape[depth:]])
    inputs = [_integers(shape), Tensor(INT64, [places, depth], index), updates]
    return Case(op, {"add": r.randint(0, 1)}, inputs, [dtype])


def _windows(r: random.Random) -> list[int]:
    numbers = []
    for _ in range(2):
        kernel, dilation = r.randint(1, 4), r.randint(1, 3)
        padding = r.randint(0, (dilation * (kernel - 1) + 1) // 2)
        numbers += [kernel, r.randint(1, 3), padding, dilation, r.randint(0, 1)]
    return numbers


def _count(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: int) -> int:
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    windows = (room + (stride - 1 if ceil else 0)) // stride + 1
    return max(0, windows - int(bool(ceil) and (windows - 1) * stride >= size + padding))


def _pooled(r: random.Random, op: str) -> Case:
    dims = [*_dims(r, 0, 2), r.randint(8, 40), r.randint(8, 40)]
    windows = _windows(r)
    counted = [_count(d, *windows[i : i + 5]) for d, i in zip(dims[-2:], (0, 5), strict=True)]
    shape = [*dims[:-2], *counted]
    if op == "MaxPool":
        made = [*_made(r, 1), INT64][: r.choice((1, 2))]
        return Case(op, {"windows": windows}, _floats(r, dims), made)
    places = [r.randint(-1, 70) for _ in range(math.prod(shape))]
    inputs = [Tensor(FLOAT, shape), Tensor(INT64, shape, places), _integers(dims)]
    return Case(op, {}, inputs, [FLOAT])


def _columns(r: random.Random, op: str) -> Case:
    dims = [r.randint(0, 3), r.randint(1, 3), r.randint(8, 20), r.randint(8, 20)]
    windows = _windows(r)
    windows[4] = windows[9] = 0
    if op == "Columns":
        return Case(op, {"windows": windows}, [Tensor(FLOAT, dims)], [FLOAT])
    area = _count(dims[2], *windows[:5]) * _count(dims[3], *windows[5:])
    given = Tensor(FLOAT, [dims[1] * windows[0] * windows[5], dims[0] * area])
    return Case(op, {"windows": windows}, [given, _integers(dims)], [FLOAT])


def _depthwise(r: random.Random, op: str) -> Case:
    channels, windows = r.randint(1, 5), _windows(r)
    windows[4] = windows[9] = 0
    dims = [r.randint(0, 3), channels, r.randint(8, 40), r.randint(8, 40)]
    filters = [channels, 1, windows[0], windows[5]]
    inputs = [Tensor(FLOAT, shape) for shape in (dims, filters, [channels])]
    return Case(op, {"windows": windows}, inputs, [FLOAT])


def _direct(r: random.Random, op: str) -> Case:
    images, read, made = r.randint(0, 20), r.randint(1, 20), r.randint(1, 20)
    sizes, windows, how = [r.randint(1, 40), r.randint(1, 40)], _windows(r), {}
    for name in ("gradient", "channels_last", "relu", "rounded"):
        how[name] = r.randint(0, 1)
    for i in (0, 5):
        windows[i + 2] = r.randint(0, 6)
        windows[i + 4] = 0
        if how["gradient"]:
            windows[i + 1] = 1
    kernel = [windows[0], windows[5]]
    if r.random() < 0.3:
        windows[:5], kernel, sizes = [1, 1, 0, 1, 0], kernel[1:], sizes[1:]
    first = [read, made] if how["gradient"] else [made, read]
    filters = [first[0], *kernel, first[1]] if how["channels_last"] else [*first, *kernel]
    shapes = [[images, read, *sizes], filters, [made]]
    if r.random() < 0.4:
        shapes += [[made]] * 4
        how["epsilon"] = 0.5
    if r.random() < 0.4:
        axes = [windows[i : i + 5] for i in (0, 5)][-len(sizes) :]
        places = [_places(size, *axis) for size, axis in zip(sizes, axes, strict=True)]
        shapes.append([images, made, *places])
    return Case(op, {"windows": windows, **how}, _floats(r, *shapes), _made(r, 1))


def _places(size: int, kernel: int, stride: int, padding: int, dilation: int, _: int) -> int:
    """The windows along an axis; something where there are none."""
    return max(0, size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def _batch_norm(r: random.Random, op: str) -> Case:
    dims = _dims(r, 2)
    each = dims[1:2]
    if op == "BatchNorm":
        more = [dims] * r.randint(0, 1)
        how = {"epsilon": 0.5, "relu": r.randint(0, 1)}
        return Case(op, how, _floats(r, dims, each, each, *more), _made(r, 4))
    if op == "BatchNormInference":
        more = [dims] * r.randint(0, 1)
        how = {"epsilon": 0.5, "relu": r.randint(0, 1)}
        return Case(op, how, _floats(r, dims, each, each, each, each, *more), _made(r, 1))
    more = [dims] * r.randint(0, 1)
    inputs, made = _floats(r, dims, dims, each, each, each, *more), _made(r, r.choice((2, 3)))
    return Case(op, {"training": r.randint(0, 1)}, inputs, made)


def _layer_norm(r: random.Random, op: str) -> Case:
    dims = _dims(r, 1)
    axes = r.randint(1, len(dims))
    inner, rows = dims[-axes:], [*dims[:-axes], *[1] * axes]
    if op == "LayerNorm":
        how = {"axes": axes, "epsilon": 0.5}
        return Case(op, how, _floats(r, dims, inner, inner), _made(r, 3))
    made = _made(r, r.choice((2, 3)))
    return Case(op, {"axes": axes}, _floats(r, dims, dims, rows, rows, inner), made)


def _variance(r: random.Random, op: str) -> Case:
    dims = _dims(r, 1)
    flags = {name: r.randint(0, 1) for name in ("root", "float_mean")}
    how = {"axes": r.randint(1, len(dims)), "correction": r.choice((0.0, 1.0, 2.5)), **flags}
    return Case(op, how, _floats(r, dims), _made(r, r.choice((1, 2))))


def _sum(r: random.Random, op: str) -> Case:
    dims = _dims(r)
    leading = r.randint(0, len(dims))
    trailing = r.randint(0, len(dims) - leading)
    flags = {name: r.randint(0, 1) for name in ("keepdims", "mean", "square")}
    attributes = {"leading": leading, "trailing": trailing, **flags}
    if r.random() < 0.3:
        before = r.randint(0, len(dims))
        attributes |= {"before": before, "leading": r.randint(0, len(dims) - before)}
        attributes["trailing"] = 0
    return Case(op, {**attributes}, _floats(r, dims), _made(r, 1))


def _order(r: random.Random, op: str) -> Case:
    dims = _dims(r, 1)  # long rows too: few of many are chosen in another way
    long = Tensor(r.choice((FLOAT, DOUBLE, INT64)), [*dims[:2], dims[-1] * r.choice((1, 9))])
    flags = {name: r.randint(0, 1) for name in ("largest", "select", "sorted")}
    return Case(op, {**flags}, [long, _integers([r.randint(0, dims[-1])])], [INT64])


def _rows(r: random.Random, op: str) -> Case:
    dims = _dims(r, 1)
    if op == "RmsNorm":
        made = _made(r, r.choice((1, 2)))
        return Case(op, {"epsilon": 0.5}, _floats(r, dims, dims[-1:]), made)
    if op == "RmsNormGrad":
        return Case(op, {}, _floats(r, dims, dims, dims[:-1], dims[-1:]), _made(r, 1))
    if op == "CrossEntropyGrad":
        most = max(dims[-1], 1)
        places = [r.randint(-most, most - 1) for _ in range(math.prod(dims[:-1]))]
        x, slopes = _floats(r, dims, dims[:-1])
        return Case(op, {}, [x, Tensor(INT64, dims[:-1], places), slopes], _made(r, 1))
    flag = {"tanh" if op == "GeluGrad" else "log": r.randint(0, 1)}
    shapes = [dims] if op == "Softmax" else [dims, dims]
    return Case(op, {**flag}, _floats(r, *shapes), _made(r, 1))


def _transpose(r: random.Random, op: str) -> Case:
    dims = _dims(r, 1)
    given, made = FLOAT, HALF if op == "TransposeToFloat16" else BFLOAT
    if op == "TransposeToFloat":
        given, made = r.choice((HALF, BFLOAT)), FLOAT
    perm = r.sample(range(len(dims)), len(dims))
    return Case(op, {"perm": perm}, [Tensor(given, dims)], [made])


def _permuted(r: random.Random, rank: int) -> list[int]:
    return r.sample(range(rank), rank)


def _inverse(order: Sequence[int], dims: list[int]) -> list[int]:
    """The sizes of what an order makes others of."""
    found = [0] * len(order)
    for place, size in zip(order, dims, strict=True):
        found[place] = size
    return found


def turned(r: random.Random, case: Case, last_stays: bool = False) -> Case:
    """Inputs that the kernel reads in another order."""
    for i, x in enumerate(case.inputs):
        if x.dims and r.random() < 0.3:
            rank = len(x.dims)
            order = [*_permuted(r, rank - 1), rank - 1] if last_stays else _permuted(r, rank)
            case.attributes[f"perm{i}"] = order
            x.dims = _inverse(order, x.dims)
    return case


def _attention(r: random.Random, op: str) -> Case:
    kind, gradient = r.choice((FLOAT, *FLOATING)), op.endswith(("Grad", "_backward"))
    if op.startswith("Mkl"):
        kind = BFLOAT
    groups, batch, queries, keys, width = (r.choice((1, 1, 2, 3, 5, 8, 17, 33)) for _ in range(5))
    if r.random() < 0.2:  # several blocks
        queries, keys, batch = r.choice((64, 65, 130)), r.choice((384, 400, 401, 790)), 1
    heads = groups * r.choice((1, 1, 1, 2, 8))
    query, key = [batch, heads, queries, width], [batch, groups, keys, width]
    inputs = [Tensor(kind, list(d)) for d in (query, key, key)]
    if gradient:
        inputs.insert(0, Tensor(kind, list(query)))
        inputs += [Tensor(kind, list(query)), Tensor(FLOAT, query[:3])]
    if r.random() < 0.4:
        mask = [r.choice((1, n)) for n in (batch, heads, queries, keys)]
        inputs.append(Tensor(r.choice((kind, FLOAT)), mask[r.choice((0, 2)) :]))
    results = [kind] * 3 if gradient else [kind, FLOAT]
    attributes: dict[str, Any] = {"is_causal": r.randint(0, 1), "scale": 0.25}
    for i in range(len(results)):
        if r.random() < 0.3:
            attributes[f"order{i}"] = _permuted(r, 3 if not gradient and i == 1 else 4)
    return turned(r, Case(op, attributes, inputs, results), last_stays=True)


MAKERS: dict[str, Callable[[random.Random, str], Case]] = {
    "Elementwise": _elementwise,
    "ElementwiseList": _elementwise_list,
    "ElementwiseListAt": _elementwise_list_at,
    "WriteRows": _write_rows,
    "Rotary": _rotary,
    "ScatterZeros": _scatter,
    **dict.fromkeys(("MaxPool", "MaxPoolGrad"), _pooled),
    **dict.fromkeys(("Columns", "ColumnsGrad"), _columns),
    "DepthwiseConv": _depthwise,
    "DirectConv": _direct,
    **dict.fromkeys(("BatchNorm", "BatchNormInference", "BatchNormGrad"), _batch_norm),
    **dict.fromkeys(("LayerNorm", "LayerNormGrad"), _layer_norm),
    "Variance": _variance,
    "Sum": _sum,
    **dict.fromkeys(("Softmax", "SoftmaxGrad", "GeluGrad", "CrossEntropyGrad"), _rows),
    **dict.fromkeys(("RmsNorm", "RmsNormGrad"), _rows),
    **dict.fromkeys(("TransposeToFloat", "TransposeToFloat16"), _transpose),
    "TransposeToBfloat16": _transpose,
    "Order": _order,
    **dict.fromkeys(("Attention", "AttentionGrad"), _attention),
}
