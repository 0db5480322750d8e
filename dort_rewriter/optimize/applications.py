"""Each application of a rule as two small models: what it removes, and what stands there instead.

NOTE: for people who look at a rule on a real graph, and for bug reports: both models read and
return values of the same names, and can be run against each other.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx_ir as ir

from dort_rewriter.errors import OptimizeError
from dort_rewriter.optimize.rewriting import Application

logger = logging.getLogger(__name__)

_EMBEDDED = 1 << 16
"""Bytes up to which a constant is part of the small models; a larger one is an input."""


class ApplicationWriter:
    """Writes ``<folder>/0000_<rule>_before.onnx`` and ``..._after.onnx``, and goes on counting
    from what is there."""

    def __init__(self, model: ir.Model, folder: str) -> None:
        self.model = model
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptimizeError(f"dump_applied_patterns={folder!r}: {error}.") from error
        files = self.folder.glob("*.onnx")
        numbers = [re.match(r"(\d+)_\w+_(?:before|after)\.onnx$", p.name) for p in files]
        self._next = 1 + max((int(m[1]) for m in numbers if m), default=-1)

    def __call__(self, application: Application) -> None:
        """Write one application."""
        stem = f"{self._next:04d}_{application.rule.name}"
        old = [old for old, _ in application.results]
        names = [v.name or f"result_{i}" for i, v in enumerate(old)]
        producers = (p for v in old if (p := v.producer()) is not None)
        before = _extract({*application.removed, *producers}, old, names)
        after = _extract(set(application.added), [new for _, new in application.results], names)
        if before is None or after is None:
            logger.info("%s is not written: a type is unknown, or it has subgraphs.", stem)
            return
        self._next += 1
        for kind, graph in (("before", before), ("after", after)):
            graph.opset_imports.update(self.model.graph.opset_imports)
            called = {node.op_identifier() for node in graph}
            functions = [f for f in self.model.functions.values() if f.identifier() in called]
            small = ir.Model(graph, ir_version=self.model.ir_version, functions=functions)
            ir.save(small, self.folder / f"{stem}_{kind}.onnx")


def _extract(
    nodes: set[ir.Node], results: Sequence[ir.Value], names: Sequence[str]
) -> ir.Graph | None:
    """Copies of these nodes as a graph that returns the results under these names; None
    when ONNX could not read it."""
    chosen = _needed(nodes, results)
    if any(isinstance(a.value, ir.Graph) for node in chosen for a in node.attributes.values()):
        return None
    graph = ir.Graph([], [], nodes=[], opset_imports={}, name="application")
    computed = {id(v) for node in chosen for v in node.outputs}
    wanted = {id(r): name for r, name in zip(results, names, strict=True) if id(r) in computed}
    copies: dict[int, ir.Value] = {}

    def copy(value: ir.Value) -> ir.Value:
        if (found := copies.get(id(value))) is None:
            name = wanted.get(id(value)) or value.name or f"new_{len(copies)}"
            found = ir.Value(name=name, type=value.type, shape=value.shape)
            copies[id(value)] = found
            if id(value) not in computed:
                _give(graph, value, found)
        return found

    for node in chosen:
        graph.append(_copy_node(node, copy))
    for result, name in zip(results, names, strict=True):
        returned = copy(result)
        if returned.name != name:  # what is there already, or a result that stands for several
            identity = ir.node("Identity", [returned])
            graph.append(identity)
            (same,) = identity.outputs
            same.name, same.type, same.shape = name, returned.type, returned.shape
            returned = same
        graph.outputs.append(returned)
    known = all(v.type is not None for v in (*graph.inputs, *graph.outputs))
    return graph if known else None


def _needed(nodes: set[ir.Node], results: Sequence[ir.Value]) -> list[ir.Node]:
    """The nodes that the results need, inputs before readers."""
    ordered: dict[ir.Node, None] = {}
    waiting = [(r.producer(), False) for r in reversed(results)]
    while waiting:
        node, ready = waiting.pop()
        if node is None or node not in nodes or node in ordered:
            continue
        if ready:
            ordered[node] = None
            continue
        waiting.append((node, True))
        waiting += [(v.producer(), False) for v in reversed(node.inputs) if v is not None]
    return list(ordered)


def _copy_node(node: ir.Node, copy: Callable[[ir.Value], ir.Value]) -> ir.Node:
    return ir.Node(
        node.domain,
        node.op_type,
        [None if v is None else copy(v) for v in node.inputs],
        list(node.attributes.values()),
        overload=node.overload,
        outputs=[copy(v) for v in node.outputs],
        metadata_props=dict(node.metadata_props),
    )


def _give(graph: ir.Graph, value: ir.Value, copied: ir.Value) -> None:
    """Make what the nodes read a constant of the graph, or an input."""
    tensor = None if value.is_graph_input() else value.const_value
    if tensor is None or tensor.nbytes > _EMBEDDED:
        graph.inputs.append(copied)
        return
    copied.const_value = tensor
    graph.register_initializer(copied)
