"""How the arguments of a call reach a session: by address, in arrays of numbers, by dlpack."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime.ort_values import DLPACK_TYPES, check_transferable
from dort_rewriter.signature import GraphSignature, InputSlot

__all__ = ["TYPECODES", "CallPlan", "plan_call"]

TYPECODES = {
    torch.int64: "q",
    torch.int32: "i",
    torch.float64: "d",
    torch.float32: "f",
    torch.bool: "B",
}
"""How :mod:`array` stores each scalar type."""


@dataclass(frozen=True)
class CallPlan:
    """The arguments of a call by the way they reach the session."""

    batched: tuple[int, ...]
    """Tensors that go by address."""
    scalars: dict[torch.dtype, tuple[int, ...]]
    """Python numbers: one small array for each type."""
    capsules: tuple[int, ...]
    """Tensors that go by dlpack, after all the others."""
    feed_order: tuple[int, ...]
    """The arguments in the order of the vector."""


def plan_call(signature: GraphSignature) -> CallPlan:
    """Sort the arguments by how they travel; refuse the types that cannot."""
    batched: list[int] = []
    capsules: list[int] = []
    scalars: dict[torch.dtype, list[int]] = {}
    for index, slot in enumerate(signature.inputs):
        if slot.name is None or slot.kind == "none":
            continue
        if slot.dtype is None:
            raise ExecutionError(f"Input {slot.name!r} of the signature has no dtype.")
        if slot.kind != "tensor":
            _check_scalar(slot)
            scalars.setdefault(slot.dtype, []).append(index)
            continue
        check_transferable(slot.dtype.to_real(), f"Input {slot.name!r}")
        (capsules if slot.dtype in DLPACK_TYPES else batched).append(index)
    for out in signature.outputs:
        if out.source == "model" and out.made_dtype is not None:
            check_transferable(out.made_dtype, f"Output {out.name!r}")
    order = [*batched, *(i for group in scalars.values() for i in group), *capsules]
    return CallPlan(
        batched=tuple(batched),
        scalars={dtype: tuple(group) for dtype, group in scalars.items()},
        capsules=tuple(capsules),
        feed_order=tuple(order),
    )


def _check_scalar(slot: InputSlot) -> None:
    if slot.dtype not in TYPECODES:
        raise ExecutionError(
            f"Input {slot.name!r} is a Python {slot.kind} and cannot be given as {slot.dtype}."
        )
