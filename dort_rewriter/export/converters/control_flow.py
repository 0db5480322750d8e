"""Control flow: the higher-order operators whose bodies are graphs of their own.

A body becomes a subgraph of its ONNX node. What it reads of the graph around it is read by name;
only what changes from one iteration to the next is an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Refused, converter
from dort_rewriter.export.subgraphs import as_value, call_as, loop, subgraph
from dort_rewriter.graph.values import Value

Body = torch.fx.GraphModule


@converter("higher_order::cond")
def cond(
    op: Recorder, pred: Any, true_fn: Body, false_fn: Body, operands: Sequence[Any] = ()
) -> Sequence[Value]:
    """cond(pred, true_fn, false_fn, operands) -> results of a branch"""

    def branch(body: Body) -> ir.Graph:
        return subgraph(op, (), lambda inner, _: inner.inline(body, operands))

    return _results(op, "If", pred, then_branch=branch(true_fn), else_branch=branch(false_fn))


@converter("higher_order::while_loop")
def while_loop(
    op: Recorder,
    cond_fn: Body,
    body_fn: Body,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Sequence[Value]:
    """while_loop(cond_fn, body_fn, carried_inputs, additional_inputs) -> what is carried"""
    carried = [as_value(op, value) for value in carried_inputs]

    def goes_on(recorder: Recorder, state: Sequence[Any]) -> Value:
        (answer,) = recorder.inline(cond_fn, [*state, *additional_inputs])
        return recorder.Reshape(as_value(recorder, answer), [])

    def step(inner: Recorder, given: Sequence[Value]) -> Sequence[Any]:
        state = inner.inline(body_fn, [*given, *additional_inputs])
        return [goes_on(inner, state), *state]

    return loop(op, goes_on(op, carried), carried, op.result, step)


@converter("higher_order::scan")
def scan(
    op: Recorder,
    combine_fn: Body,
    init: Sequence[Any],
    xs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
) -> Sequence[Value]:
    """scan(combine_fn, init, xs, additional_inputs) -> the last carried, then stacked results"""
    placeholders = [n for n in combine_fn.graph.nodes if n.op == "placeholder"]
    formals = [n.meta["val"] for n in placeholders[: len(init) + len(xs)]]

    def step(inner: Recorder, given: Sequence[Value]) -> Sequence[Any]:
        return inner.inline(combine_fn, [*given, *additional_inputs])

    body = subgraph(op, formals, step)
    given = [*(as_value(op, value) for value in init), *xs]
    return _results(op, "Scan", *given, body=body, num_scan_inputs=len(xs))


@converter("higher_order::map_impl")
def map_impl(
    op: Recorder, f: Body, xs: Sequence[Any], pos_args: Sequence[Any] = ()
) -> Sequence[Value]:
    """map_impl(f, xs, pos_args) -> stacked results"""
    return scan(op, f, (), xs, pos_args)


@converter("higher_order::invoke_subgraph")
def invoke_subgraph(
    op: Recorder, subgraph: Body, identifier: str, *operands: Any
) -> Sequence[Any]:
    """invoke_subgraph(subgraph, identifier, *operands) -> results of the subgraph"""
    flat = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    return op.inline(subgraph, flat)


def _results(op: Recorder, name: str, *inputs: Any, **attributes: Any) -> Sequence[Value]:
    """Record a node with as many results as the FX node has, of the types that torch found."""
    if any(m is None for m in op.result):
        raise Refused("a result is None")
    return call_as(op, op.result, name, *inputs, **attributes)
