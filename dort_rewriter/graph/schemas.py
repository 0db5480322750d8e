"""What ONNX says of its operators, looked up once per operator and opset."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dort_rewriter.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnx_ir.schemas

__all__ = [
    "CONVOLUTION_LIMITS",
    "MKL_PRODUCT",
    "OWN_DOMAIN",
    "OWN_MOST_AXES",
    "TORCH_ATTENTION",
    "TORCH_CALL",
    "TORCH_CONVOLUTIONS",
    "TORCH_FLASH",
    "TORCH_KERNELS",
    "TORCH_PRODUCTS",
    "UNLISTED",
    "OpInfo",
    "Slot",
    "op_info",
    "qualified",
]

OWN_DOMAIN = "dort_rewriter"
"""The domain of the operators with kernels of our own."""

TORCH_PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
"""Operators of that domain that torch's kernels compute: they read transposed inputs as they
lie."""

TORCH_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
TORCH_ATTENTION = frozenset({TORCH_FLASH, f"{TORCH_FLASH}_backward"})
"""The same for attention, where the last axis stays the last; results too have any order."""

TORCH_CONVOLUTIONS = frozenset({"convolution", "convolution_backward"})
"""The same for convolutions, whose inputs and results have any order."""

CONVOLUTION_LIMITS = {"stride": 1024, "padding": 8192, "dilation": 8192, "output_padding": 1024}
"""The largest numbers that these take: ``kMostStride`` and ``kMostReach`` of
``runtime/kernels_cpp/torch_convolution.h``."""

TORCH_KERNELS = TORCH_PRODUCTS | TORCH_ATTENTION | TORCH_CONVOLUTIONS

MKL_PRODUCT = "MklProduct"
"""The operator of that domain that multiplies by MKL, which comes with torch."""

MKL_ATTENTION_GRAD = "MklAttentionGrad"
"""The gradient of attention by those products: it reads and gives what torch's kernel does."""

TORCH_CALL = "TorchCall"
"""The operator of that domain that calls any operator of torch, through Python."""

OWN_MOST_AXES = 12
"""The axes that these kernels take: ``kMostAxes`` of ``runtime/kernels_cpp/tensors.h``."""

UNLISTED = frozenset({"SimplifiedLayerNormalization"})
"""Operators that onnxruntime adds to ONNX's own domain: ONNX has no schema for them."""


@dataclass(frozen=True)
class Slot:
    """A formal input or output: its type variable, and the only type it allows if there is one."""

    name: str
    variable: str
    only: ir.DataType | None
    is_sequence: bool


@dataclass(frozen=True)
class OpInfo:
    """The part of an operator's schema that recording needs."""

    version: int
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    is_variadic: bool
    attributes: frozenset[str]

    def input_slot(self, index: int) -> Slot | None:
        """The formal input for an actual position (the last one repeats when variadic)."""
        if index < len(self.inputs):
            return self.inputs[index]
        return self.inputs[-1] if self.is_variadic and self.inputs else None


def _slot(parameter: onnx_ir.schemas.Parameter) -> Slot:
    import onnx_ir as ir

    types = list(parameter.type_constraint.allowed_types)
    only = types[0].dtype if len(types) == 1 and isinstance(types[0], ir.TensorType) else None
    is_sequence = all(isinstance(t, ir.SequenceType) for t in types)
    return Slot(parameter.name, parameter.type_constraint.name, only, is_sequence)


def qualified(domain: str, name: str) -> str:
    """The name of an operator or a function as ONNX writes it: ``com.microsoft.FusedMatMul``."""
    return f"{domain}.{name}" if domain else name


@functools.cache
def op_info(name: str, opset: int, domain: str = "") -> OpInfo:
    """The schema of an operator as it stands in an opset."""
    import onnx.defs
    import onnx_ir.schemas

    try:
        schema = onnx.defs.get_schema(name, opset, domain)
    except onnx.defs.SchemaError as e:
        raise ExportError(f"Operator {qualified(domain, name)} is not in opset {opset}.") from e
    signature = onnx_ir.schemas.OpSignature.from_op_schema(schema)
    inputs = tuple(_slot(p) for p in signature.inputs)
    return OpInfo(
        version=schema.since_version,
        inputs=inputs,
        outputs=tuple(_slot(p) for p in signature.outputs),
        is_variadic=bool(signature.inputs) and signature.inputs[-1].variadic,
        attributes=frozenset(schema.attributes),
    )
