"""Subgraphs: what the attributes of If, Loop and Scan are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.annotations import annotate
from dort_rewriter.export.recorder import Recorder, scalar_type
from dort_rewriter.graph.values import Value

Write = Callable[[Recorder, Sequence[Value]], Sequence[Any]]
"""Records the nodes of a subgraph: takes its recorder and its inputs, returns its results."""


def subgraph(op: Recorder, formals: Sequence[Any], write: Write) -> ir.Graph:
    """A subgraph for a node that is to be recorded.

    `formals` are (fake) tensors or numbers like its inputs. What else its nodes read are results
    of the graphs around it.
    """
    name = f"body_{next(op.serial)}"
    graph = ir.Graph([], [], nodes=[], opset_imports=dict(op.graph.opset_imports), name=name)
    inner = Recorder(graph, op.opset, own_kernels=op.own_kernels)
    inner.walk, inner.serial, inner.prefix = op.walk, op.serial, f"{name}."
    inner.fx_node, inner.provenance = op.fx_node, op.provenance
    for i, meta in enumerate(formals):
        value = Value(inner, name=f"{name}.input_{i}")
        annotate(value, meta)
        graph.inputs.append(value)
    inputs = [v for v in graph.inputs if isinstance(v, Value)]
    for result in write(inner, inputs):
        graph.outputs.append(_as_output(inner, result))
    for node in graph:
        node.name = f"{inner.prefix}{node.name}"
        for output in node.outputs:
            if (output.name or "").startswith("val_"):  # onnx_ir counts from zero in each graph
                output.name = f"{inner.prefix}{output.name}"
    for constant in [c for c in graph.initializers.values() if not c.uses()]:
        del graph.initializers[str(constant.name)]
    for domain, version in graph.opset_imports.items():
        op.graph.opset_imports.setdefault(domain, version)
    return graph


def loop(
    op: Recorder, goes_on: Any, state: Sequence[Any], metas: Sequence[Any], write: Write
) -> tuple[Value, ...]:
    """Record a Loop with no other end than its condition, and return the last state.

    `metas` are (fake) tensors like the state; `write` takes it, and returns the next condition and
    the next state.
    """
    body = subgraph(op, [0, True, *metas], lambda inner, given: write(inner, given[2:]))
    return call_as(op, metas, "Loop", None, goes_on, *state, body=body)


def call_as(
    op: Recorder, metas: Sequence[Any], name: str, *inputs: Any, **attributes: Any
) -> tuple[Value, ...]:
    """Record a node with results like (fake) tensors.

    NOTE: the results of one ONNX node may differ in type, which the recorder does not know.
    """
    found = op.call(name, *inputs, outputs=len(metas), **attributes)
    results: tuple[Value, ...] = found if isinstance(found, tuple) else (found,)
    for result, meta in zip(results, metas, strict=True):
        annotate(result, meta)
    return results


def _as_output(op: Recorder, result: Any) -> ir.Value:
    """A result that a node of the subgraph computes, for this output alone."""
    value = as_value(op, result)
    producer = value.producer()
    if producer is not None and producer.graph is op.graph and not value.is_graph_output():
        return value
    copied = op.copy(value)
    copied.type, copied.shape = value.type, value.shape
    return copied


def as_value(op: Recorder, result: Any) -> Value:
    """A result as it is, a Python number as a constant."""
    return result if isinstance(result, Value) else op.constant(result, scalar_type(result))
