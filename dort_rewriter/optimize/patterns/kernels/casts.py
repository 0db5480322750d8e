"""Casts that kernels of ours do while they read and write: they compute 16-bit numbers in float32,
and round them once, as torch's kernels do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from dort_rewriter.kernels.operators import OPERATORS, OWN_DOMAIN, own_roots
from dort_rewriter.optimize.patterns.base import Match, Refusal, Rule
from dort_rewriter.optimize.patterns.recognize.operands import (
    after_cast,
    before_cast,
    reads_or_makes_narrow,
)
from dort_rewriter.optimize.view import GraphView

_MIXED = [o.name for o in OPERATORS.values() if o.mixed_types]
"""Kernels whose inputs and outputs have a type each."""


class KernelCasts(Rule):
    """``Cast(K(Cast(x), ...)) -> K(x, ...)``   for a kernel K of norms, softmax, sums or
    gradients, casts from and to 16-bit types, and any of its inputs and results."""

    roots = own_roots(_MIXED)
    lowers = "casts that kernels read"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        read = [before_cast(v, graph) for v in node.inputs]
        made = [after_cast(v, graph) for v in node.outputs]
        if all(a is b for a, b in zip((*read, *made), (*node.inputs, *node.outputs), strict=True)):
            return None
        how = {name: a.value for name, a in node.attributes.items()}
        if not graph.runs(node.op_type, read, outputs=made, domain=OWN_DOMAIN, **how):
            return Refusal("no kernel", [v.dtype for v in (*read, *made) if v is not None])
        return Match(made, lambda op: op.again(node, *read, outputs=len(made)))


class NarrowNorms(Rule):
    """``LayerNormalization(Cast(x), w, b) -> LayerNorm(x, w, b)`` from 16-bit types, or where the
    result is cast to one; ``SimplifiedLayerNormalization`` along the last axis -> ``RmsNorm``."""

    roots = ("LayerNormalization", "SimplifiedLayerNormalization")
    lowers = "norms of onnxruntime"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, *parameters = node.inputs
        axes = _axes(node, graph)
        if x is None or axes is None or not reads_or_makes_narrow(node, graph):
            return None
        full = node.op_type == "LayerNormalization"
        expected = 2 if full else 1
        if len(parameters) != expected or None in parameters or not (full or axes == 1):
            return Refusal("a norm without a weight or a bias, or of several axes", node.name)
        name, how = "RmsNorm", {"epsilon": graph.attribute(node, "epsilon", 1e-5)}
        if full:
            name, how = "LayerNorm", {**how, "axes": axes}
        made = list(node.outputs)
        types = made if not full else [*made, *[made[0]] * (3 - len(made))]
        if not graph.runs(name, node.inputs, outputs=types, domain=OWN_DOMAIN, **how):
            return Refusal("no kernel", x.dtype)

        def build(op: Any) -> Any:
            results = op.call(name, *node.inputs, outputs=len(types), domain=OWN_DOMAIN, **how)
            if not full:
                return results
            for unused in results[len(made) :]:
                unused.type = made[0].type
            return results[: len(made)]

        return Match(made, build)


_SOFTMAXES: Mapping[str, int] = {"Softmax": 0, "LogSoftmax": 1}


class NarrowSoftmax(Rule):
    """``Softmax(Cast(x)) -> Softmax(x)`` of our own along the last axis, from 16-bit types, or
    where the result is cast to one; ``LogSoftmax`` likewise."""

    roots = tuple(_SOFTMAXES)
    lowers = "softmaxes of onnxruntime"

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        rank, made = graph.rank(node.inputs[0]), list(node.outputs)
        if not rank or not reads_or_makes_narrow(node, graph):
            return None
        if (axis := graph.attribute(node, "axis", -1)) % rank != rank - 1:
            return Refusal("not along the last axis", axis)
        how: dict[str, Any] = {"domain": OWN_DOMAIN, "log": _SOFTMAXES[node.op_type]}
        if not graph.runs("Softmax", node.inputs, outputs=made, **how):
            return Refusal("no kernel", made[0].dtype)
        return Match(made, lambda op: op.call("Softmax", *node.inputs, **how))


def _axes(node: ir.Node, graph: GraphView) -> int | None:
    """How many of the last axes a norm is over."""
    rank = graph.rank(node.inputs[0])
    return None if rank is None else rank - graph.attribute(node, "axis", -1) % rank
