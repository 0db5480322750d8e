"""Programs of the operator ``Elementwise``: several nodes as instructions of one kernel.

NOTE: the numbers are those of ``runtime/kernels_cpp/elementwise.h``, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

__all__ = ["Program", "is_instruction", "operands", "write_program"]

_CODES: Mapping[str, int] = {
    name: code
    for code, name in enumerate(
        "Add Sub Mul Div Max Min Neg Abs Sqrt Reciprocal Relu Sigmoid Exp Equal Less LessOrEqual "
        "Greater GreaterOrEqual Where Erf Tanh Log".split()
    )
}
_COMPARISONS = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
_OPERANDS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Max", "Min"), 2),
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "Reciprocal", "Relu", "Sigmoid", "Exp"), 1),
    **dict.fromkeys(("Erf", "Tanh", "Log"), 1),
    "Where": 3,
}
_TYPES = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


@dataclass(frozen=True)
class Program:
    """What a node of ``Elementwise`` needs."""

    code: list[int]
    """Five numbers an instruction: operator, register, three operands (input i is -1 - i)."""
    results: list[int]
    """The register of each result."""
    inputs: list[ir.Value]


def is_instruction(node: ir.Node) -> bool:
    """Tell whether a node can be part of a program: one of its operators, on one type."""
    if node.domain or _OPERANDS.get(node.op_type) != len(node.inputs) or len(node.outputs) != 1:
        return False
    dtype = node.outputs[0].dtype
    if dtype not in _TYPES or None in node.inputs:
        return False
    read = operands(node)
    return read is not None and all(v.dtype == dtype and v.shape is not None for v in read)


def operands(node: ir.Node) -> list[ir.Value] | None:
    """Return what a node computes with; a Where compares by itself."""
    inputs = [v for v in node.inputs if v is not None]
    if node.op_type != "Where":
        return inputs
    comparison = inputs[0].producer()
    if comparison is None or comparison.domain or comparison.op_type not in _COMPARISONS:
        return None
    return [*(v for v in comparison.inputs if v is not None), *inputs[1:]]


class _Writer:
    """Instructions, and which registers hold what is still needed."""

    def __init__(self, reads_left: dict[ir.Value, int]) -> None:
        self.code: list[int] = []
        self.inputs: dict[ir.Value, int] = {}
        self.registers: dict[ir.Value, int] = {}
        self.free: list[int] = []
        self.used = 0
        self.reads_left = reads_left

    def operand(self, value: ir.Value) -> int:
        if (register := self.registers.get(value)) is not None:
            return register
        return -1 - self.inputs.setdefault(value, len(self.inputs))

    def take(self) -> int:
        if self.free:
            return self.free.pop()
        self.used += 1
        return self.used - 1

    def release(self, values: Sequence[ir.Value]) -> None:
        for value in values:
            if value in self.registers:
                self.reads_left[value] -= 1
                if not self.reads_left[value]:
                    self.free.append(self.registers[value])

    def write(self, operator: str, register: int, read: Sequence[int]) -> None:
        padded = [*read, *[0] * (3 - len(read))]
        self.code += [_CODES[operator], register, *padded]


def write_program(members: Sequence[ir.Node], results: Sequence[ir.Value]) -> Program:
    """Return the program of nodes in the order they are to run; results are kept to the end."""
    reads: dict[ir.Value, int] = {}
    for node in members:
        for value in operands(node) or ():
            reads[value] = reads.get(value, 0) + 1
    for value in results:
        reads[value] = reads.get(value, 0) + 1
    writer = _Writer(reads)
    for node in members:
        read = operands(node) or []
        found = [writer.operand(v) for v in read]
        if node.op_type == "Where":
            register = _write_where(writer, node, read, found)
        else:
            writer.release(read)
            register = writer.take()
            writer.write(node.op_type, register, found)
        writer.registers[node.outputs[0]] = register
    return Program(writer.code, [writer.registers[v] for v in results], list(writer.inputs))


def _write_where(
    writer: _Writer, node: ir.Node, read: Sequence[ir.Value], found: Sequence[int]
) -> int:
    """Write a comparison and a choice, and return the register of the result.

    NOTE: the comparison gets its register while those of what is chosen from are taken.
    """
    assert node.inputs[0] is not None
    comparison = node.inputs[0].producer()
    assert comparison is not None
    condition = writer.take()
    writer.write(comparison.op_type, condition, found[:2])
    writer.release(read)
    writer.free.append(condition)
    register = writer.take()
    writer.write("Where", register, [condition, *found[2:]])
    return register
