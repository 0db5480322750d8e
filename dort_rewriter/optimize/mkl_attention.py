"""Gradients of attention for the kernel that calls MKL, in place of torch's kernel.

Done last, as for products: rules know torch's operators.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.kernels.operators import MKL_ATTENTION_GRAD, OWN_DOMAIN, TORCH_FLASH

__all__ = ["differentiate_by_mkl"]


def differentiate_by_mkl(model: ir.Model, *, of_bfloat16: bool) -> int:
    """Change a model in place, and return how many gradients of attention MKL computes now.

    ``of_bfloat16`` says whether it multiplies bfloat16 by instructions for that: factors are
    widened to floats elsewhere, as those of float16 are.
    """
    done = 0
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if (node.domain, node.op_type) != (OWN_DOMAIN, f"{TORCH_FLASH}_backward"):
            continue
        node.op_type = MKL_ATTENTION_GRAD
        query = node.inputs[1]
        if of_bfloat16 and query is not None and query.dtype is ir.DataType.BFLOAT16:
            node.attributes["of_bfloat16"] = ir.AttrInt64("of_bfloat16", 1)
        done += 1
    return done
