"""What ONNX says of its operators, looked up once per operator and opset."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dort_rewriter.errors import ExportError

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnx_ir.schemas

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

    def input_slots(self, count: int) -> Sequence[Slot | None]:
        """The formal inputs of so many actual ones (the last one repeats when variadic)."""
        rest = self.inputs[-1] if self.is_variadic and self.inputs else None
        return [*self.inputs[:count], *[rest] * (count - len(self.inputs))]


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
def op_info(name: str, opset: int) -> OpInfo:
    """The schema of a standard operator as it stands in an opset."""
    import onnx.defs
    import onnx_ir.schemas

    try:
        schema = onnx.defs.get_schema(name, opset)
    except onnx.defs.SchemaError as e:
        raise ExportError(f"Operator {name} is not in opset {opset}.") from e
    signature = onnx_ir.schemas.OpSignature.from_op_schema(schema)
    inputs = tuple(_slot(p) for p in signature.inputs)
    return OpInfo(
        version=schema.since_version,
        inputs=inputs,
        outputs=tuple(_slot(p) for p in signature.outputs),
        is_variadic=bool(signature.inputs) and signature.inputs[-1].variadic,
        attributes=frozenset(schema.attributes),
    )


def in_standard(
    op_type: str, domain: str, version: int, types: Sequence[ir.DataType | None], **kwargs: Any
) -> bool:
    """Whether ONNX itself defines an operator for inputs of these types."""
    import onnx.defs

    if domain or not onnx.defs.has(op_type, version):
        return False
    formals = onnx.defs.get_schema(op_type, version).inputs
    return all(
        t is None or f"tensor({t.name.lower()})" in formals[min(i, len(formals) - 1)].types
        for i, t in enumerate(types)
    )


@functools.cache
def ir_version_of(opset: int) -> int:
    """The oldest version of ONNX's format whose models may have an opset."""
    import onnx.helper

    return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
