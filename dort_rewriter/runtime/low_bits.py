"""Whether the installed onnxruntime multiplies by weights of 8 or 4 bits."""

from __future__ import annotations

import functools

import onnx
from onnx import TensorProto, helper

from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.ort_module import describe
from dort_rewriter.runtime.session import try_session

__all__ = ["BITS", "has_low_bit_products", "require_low_bit_products"]

BITS = {"int8": 8, "int4": 4}
"""The bits of what the option ``weights`` may be."""

_IR_VERSION = 8
"""One that every supported onnxruntime reads."""


@functools.cache
def has_low_bit_products(bits: int) -> bool:
    """Whether a session takes a product by a weight of so many bits; it is tried."""
    inner, outer, block = 32, 16, 32
    attributes = {"K": inner, "N": outer, "bits": bits, "block_size": block, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "b", "s"], ["y"], domain="com.microsoft")
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())
    packed = bytes(outer * block * bits // 8)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, inner])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, outer])],
        [
            helper.make_tensor(
                "b", TensorProto.UINT8, [outer, 1, block * bits // 8], packed, raw=True
            ),
            helper.make_tensor("s", TensorProto.FLOAT, [outer], [1.0] * outer),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
    try:
        try_session(model, "CPUExecutionProvider")
    except ExecutionError:
        return False
    return True


def require_low_bit_products(weights: str) -> None:
    """Raise :class:`OptionError` when products by such weights have no kernel."""
    if has_low_bit_products(BITS[weights]):
        return
    others = [name for name, bits in BITS.items() if has_low_bit_products(bits)]
    advice = f"weights={others[0]!r} has one." if others else "leave the option weights out."
    raise OptionError(
        f"{describe()} has no kernel for products by weights of {BITS[weights]} bits "
        f"(MatMulNBits), which weights={weights!r} asks for; {advice}"
    )
