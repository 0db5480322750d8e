"""Gradients of attention for the kernel that calls MKL, in place of torch's kernel.

Done last, as for products: rules know torch's operators.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.schemas import MKL_ATTENTION_GRAD, OWN_DOMAIN, TORCH_FLASH
from dort_rewriter.optimize.replacing import take_place

__all__ = ["differentiate_by_mkl"]


def differentiate_by_mkl(model: ir.Model, *, of_bfloat16: bool) -> int:
    """Change a model in place, and return how many gradients of attention MKL computes now.

    ``of_bfloat16`` says whether it multiplies bfloat16 by instructions for that: factors are
    widened to floats elsewhere, as those of float16 are.
    """
    done = 0
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if (node.domain, node.op_type) != (OWN_DOMAIN, f"{TORCH_FLASH}_backward"):
            continue
        settings: dict[str, Any] = {n: a.value for n, a in node.attributes.items()}
        query = node.inputs[1]
        if of_bfloat16 and query is not None and query.dtype is ir.DataType.BFLOAT16:
            settings["of_bfloat16"] = 1
        made = ir.node(
            MKL_ATTENTION_GRAD,
            node.inputs,
            domain=OWN_DOMAIN,
            attributes=settings,
            num_outputs=len(node.outputs),
            metadata_props=dict(node.metadata_props),
            name=node.name,
        )
        assert node.graph is not None
        node.graph.insert_before(node, made)
        for old, new in zip(node.outputs, made.outputs, strict=True):
            take_place(old, new)
        node.graph.remove(node, safe=True)
        done += 1
    return done
