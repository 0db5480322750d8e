"""Results of kernels that nobody reads: they get no name, and are not computed."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.kernels.operators import OWN_DOMAIN

__all__ = ["drop_unused_results"]

_OPTIONAL = frozenset({"convolution_backward"})
"""Operators of ours all of whose results are optional."""


def drop_unused_results(model: ir.Model) -> int:
    """Change a model in place, and return how many results are left out.

    NOTE: done last: rules expect that each result has a name.
    """
    done = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.domain != OWN_DOMAIN or node.op_type not in _OPTIONAL:
            continue
        for result in node.outputs:
            if result.name and not result.uses() and not result.is_graph_output():
                result.name = ""
                done += 1
    return done
