"""Models of lists of programs are given addresses, where all that they give is written in place.

A step of an optimizer reads and writes hundreds of arguments. ONNX Runtime takes up to a
microsecond to pass each on, as long as the work on a small one; their addresses are one tensor.

NOTE: what reads and writes by address is not in the graph any more. It is right because each
argument has one node that reads it, which is the one that writes it, if any does. Such a model is
for the session of this process alone: its nodes name a key that no other process knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.signature import Addresses

_INPUT = "addresses"

_KINDS = ("sizes", "at", "single", "to")
"""What the kernel has to know of what it is given."""


@dataclass(frozen=True)
class _List:
    """A list of programs: what may have an address in all of them."""

    node: ir.Node
    sizes: tuple[int, ...]
    columns: tuple[tuple[ir.Value, ...], ...]
    """Its inputs by their place in a program."""
    results: tuple[tuple[ir.Value, ...], ...]
    """Its outputs by their place in a program."""
    at: tuple[int, ...]
    single: tuple[int, ...]
    to: tuple[int, ...]

    @property
    def addressed(self) -> Iterator[ir.Value]:
        """What has an address, in the order of the addresses."""
        for k in range(len(self.sizes)):
            yield from (self.columns[i][k] for i in self.at)
            yield from (self.results[i][k] for i in self.to)


def give_addresses(
    model: ir.Model, written: Mapping[str, str], arguments: Mapping[str, int], key: int
) -> tuple[ir.Model, Addresses] | None:
    """A copy of a model of lists that are given addresses, and what it is given; None where
    something speaks against it.

    ``written`` says where each output is written to: as
    :func:`~dort_rewriter.optimize.in_place.written_in_place` found. ``arguments`` has the position
    of each, by the input that it feeds.
    """
    graph = model.graph
    if not written or {v.name for v in graph.outputs} != set(written):
        return None
    if any(v.name == _INPUT for v in graph.inputs) or not all(map(_is_list, graph)):
        return None
    return _rewrite(ir.from_proto(ir.to_proto(model)), arguments, key)


def _is_list(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (OWN_DOMAIN, "ElementwiseList")


def _rewrite(
    model: ir.Model, arguments: Mapping[str, int], key: int
) -> tuple[ir.Model, Addresses] | None:
    graph = model.graph
    lists = [found for node in graph if (found := _describe(node)) is not None]
    addressed = [v for found in lists for v in found.addressed]
    outputs = {v for v in addressed if v.is_graph_output()}
    if outputs != set(graph.outputs) or len(outputs) != len(graph.outputs):
        return None
    addresses = ir.Value(
        name=_INPUT, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([len(addressed)])
    )
    done = []
    first = 0
    for number, found in enumerate(lists):
        values = list(found.addressed)
        done.append(_replace(graph, found, addresses, key, first, f"done_{number}"))
        first += len(values)
    graph.outputs[:] = done
    gone = set(addressed)
    graph.inputs[:] = [addresses, *(v for v in graph.inputs if v not in gone)]
    places = tuple(arguments.get(str(v.name), str(v.name)) for v in addressed)
    given = Addresses(input=_INPUT, places=places, done=tuple(str(v.name) for v in done))
    return model, given


def _describe(node: ir.Node) -> _List | None:
    """What of a list may have addresses; None if it stays as it is."""
    count = node.attributes["count"].as_int()
    shared = node.attributes.get_int("shared", 0)
    values = [*node.inputs]
    alone = len(values) - shared
    if not all(v is not None and _is_known(v) for v in (*values, *node.outputs)):
        return None
    known = [v for v in values if v is not None]
    if any(_elements(v) != 1 for v in known[alone:]):
        return None
    columns = _columns(known[:alone], count)
    results = _columns(node.outputs, count)
    sizes = tuple(_elements(v) for v in results[0])
    if any(tuple(map(_elements, column)) != sizes for column in results):
        return None
    single = [i for i, column in enumerate(columns) if all(_elements(v) == 1 for v in column)]
    for i, column in enumerate(columns):
        if i not in single and tuple(map(_elements, column)) != sizes:
            return None  # some are numbers, others are not, or they are repeated
    at = [i for i, column in enumerate(columns) if all(map(_is_argument, column))]
    to = [i for i, column in enumerate(results) if all(map(_is_result, column))]
    stay = [v for i, column in enumerate(results) if i not in to for v in column]
    if any(v.is_graph_output() or v.shape is None or len(v.shape) for v in stay) or not (at or to):
        return None
    return _List(node, sizes, columns, results, tuple(at), tuple(single), tuple(to))


def _columns(values: Sequence[ir.Value], count: int) -> tuple[tuple[ir.Value, ...], ...]:
    width = len(values) // count
    return tuple(tuple(values[i::width]) for i in range(width))


def _is_known(value: ir.Value) -> bool:
    sizes = value.shape
    fixed = sizes is not None and all(isinstance(d, int) for d in sizes)
    return fixed and value.dtype == ir.DataType.FLOAT


def _elements(value: ir.Value) -> int:
    return math.prod(d for d in value.shape or () if isinstance(d, int))


def _is_argument(value: ir.Value) -> bool:
    """Whether a value is fed, and read by nothing else."""
    return value.is_graph_input() and len(value.uses()) == 1 and not value.is_graph_output()


def _is_result(value: ir.Value) -> bool:
    """Whether a value is returned, and read by nothing."""
    return value.is_graph_output() and not value.uses()


def _replace(
    graph: ir.Graph, found: _List, addresses: ir.Value, key: int, first: int, name: str
) -> ir.Value:
    """Put the node in the place of a list that takes addresses; what it gives when it is done."""
    node, count = found.node, len(found.sizes)
    shared = node.attributes.get_int("shared", 0)
    width = len(found.columns)
    # NOTE: another list may have got the place of the one that makes an input.
    alone = enumerate(node.inputs[: count * width])
    given = [v for i, v in alone if i % width not in found.at]
    made = [
        found.results[i][k]
        for k in range(count)
        for i in range(len(found.results))
        if i not in found.to
    ]
    new = ir.node(
        "ElementwiseListAt",
        [addresses, *given, *node.inputs[len(node.inputs) - shared :]],
        {
            **{name: node.attributes[name] for name in ("program", "results", "count")},
            **{name: ir.AttrInt64s(name, list(getattr(found, name))) for name in _KINDS},
            "shared": shared,
            "own": width,
            "first": first,
            "key": key,
        },
        domain=OWN_DOMAIN,
        num_outputs=len(made) + 1,
        name=node.name,
        metadata_props=dict(node.metadata_props),
    )
    graph.insert_before(node, new)
    for old, value in zip(made, new.outputs, strict=False):
        value.type, value.shape, value.name = old.type, old.shape, f"{old.name}_given"
        old.replace_all_uses_with(value)
    done = new.outputs[-1]
    done.name, done.type, done.shape = name, ir.TensorType(ir.DataType.FLOAT), ir.Shape([])
    graph.outputs[:] = [v for v in graph.outputs if v.producer() is not node]
    graph.remove(node, safe=True)
    return done
