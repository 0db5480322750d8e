"""Tensors of torch as values of onnxruntime and back, without a copy.

Who owns the memory:

- torch to onnxruntime, by address (every numpy type): **torch does**. The OrtValue keeps no
  reference; the tensor must stay alive until the run is over, then either may go first.
- torch to onnxruntime, by dlpack (bfloat16): **shared**. The OrtValue keeps torch's storage alive.
- a result written to an argument, by address: **torch does**, as above.
- onnxruntime to torch, by dlpack: **shared**. The tensor keeps the OrtValue's buffer alive, and
  the allocator behind it, after the vector and the session are gone. onnxruntime copies an output
  that is an input or a constant: a returned tensor never overlaps either.

NOTE: onnxruntime reads an address as contiguous data of the declared type, unchecked: every tensor
goes through :func:`is_ready` or :func:`dense` first.

How the arguments of a call reach a session follows from it: by address, in arrays of numbers, by
dlpack.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dort_rewriter.dtypes import CONVERTIBLE, to_numpy
from dort_rewriter.errors import ExecutionError
from dort_rewriter.ort_module import bindings
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.signature import GraphSignature, InputSlot

DLPACK_TYPES = frozenset({torch.bfloat16})
"""Types that numpy lacks: they cross by dlpack."""

to_capsule = torch._C._to_dlpack
"""Turn a tensor into a dlpack capsule, which holds its storage."""


def any_to_capsule(tensor: torch.Tensor) -> Any:
    """Turn a tensor that may be empty into a dlpack capsule.

    To torch it is contiguous then whatever its strides are, to onnxruntime 1.19 it is not.
    """
    return to_capsule(tensor if tensor.numel() else tensor.new_empty(tensor.shape))


capsule_to_tensor = torch._C._from_dlpack
"""Turn a dlpack capsule into a tensor. ``torch.from_dlpack`` adds checks that cost more."""


def capsule_to_any_tensor(capsule: Any) -> torch.Tensor:
    """Turn the dlpack capsule of a value that may be empty into a tensor.

    onnxruntime says of an empty one that all its strides are 0 (1.32).
    """
    tensor = capsule_to_tensor(capsule)
    return tensor if tensor.numel() else tensor.new_empty(tensor.shape)


# onnxruntime refuses a null address even for no element at all, which is what torch returns then.
_PLACEHOLDER = ctypes.create_string_buffer(64)
_PLACEHOLDER_ADDRESS = ctypes.addressof(_PLACEHOLDER)


def _check_transferable(dtype: torch.dtype, what: str) -> None:
    """Raise :class:`ExecutionError` if tensors of this type cannot enter or leave a session."""
    if dtype in DLPACK_TYPES:
        return
    if dtype not in CONVERTIBLE or to_numpy(dtype).type.__module__ != "numpy":
        raise ExecutionError(
            f"{what} is {dtype}, which onnxruntime's Python interface cannot exchange: cast "
            "inside the model, so that its inputs and outputs have another type."
        )


def element_type(dtype: torch.dtype) -> type[np.generic]:
    """The numpy scalar type that stands for a torch dtype in a batch."""
    return to_numpy(dtype).type


def _is_on(tensor: torch.Tensor, device: torch.device | None) -> bool:
    kind, index = ("cpu", 0) if device is None else (device.type, device.index or 0)
    return tensor.device.type == kind and (tensor.device.index or 0) == index


def is_ready(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device | None) -> bool:
    """Whether the memory of a tensor is what onnxruntime is going to read."""
    return (
        tensor.dtype is dtype
        and _is_on(tensor, device)
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def dense(
    tensor: Any, name: str, dtype: torch.dtype, device: torch.device | None = None
) -> torch.Tensor:
    """The tensor as onnxruntime must read it: contiguous, its lazy bits resolved.

    Raises :class:`ExecutionError` when it is not what the graph was compiled for.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ExecutionError(f"Input {name!r} is a {type(tensor).__name__}, not a tensor.")
    if tensor.dtype is not dtype or not _is_on(tensor, device):
        raise ExecutionError(
            f"Input {name!r} is {tensor.dtype} on {tensor.device}, the graph was compiled for "
            f"{dtype} on {device or 'cpu'}."
        )
    if tensor.layout is not torch.strided:
        raise ExecutionError(f"Input {name!r} has layout {tensor.layout}: only strided tensors.")
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def as_pairs(tensor: Any, name: str, dtype: torch.dtype) -> torch.Tensor:
    """Complex numbers as a session reads them: see :mod:`dort_rewriter.signature`."""
    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not dtype:
        got = tensor.dtype if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ExecutionError(f"Input {name!r} is {got}, the graph was compiled for {dtype}.")
    return torch.view_as_real(tensor.detach().resolve_conj())


def empty_address(tensor: torch.Tensor, name: str) -> int:
    """A valid address for a tensor without one, because it has no element."""
    if tensor.numel():
        raise ExecutionError(
            f"Input {name!r} has no memory ({type(tensor).__name__} of shape "
            f"{tuple(tensor.shape)}): its storage was freed or never allocated."
        )
    return _PLACEHOLDER_ADDRESS


@functools.cache
def takes_flag() -> bool:
    """Whether onnxruntime has to be told that a capsule holds truth values: 1.32 reads it there,
    and takes no such argument any more.
    """
    try:
        bindings().OrtValueVector().push_back(to_capsule(torch.zeros(1)), False)
    except TypeError:
        return False
    return True


def push(vector: Any, tensor: torch.Tensor) -> None:
    """Append a contiguous tensor, whatever its type, to an OrtValueVector."""
    if not takes_flag():
        vector.push_back(any_to_capsule(tensor))
        return
    is_bool = tensor.dtype is torch.bool  # of which dlpack knew nothing
    vector.push_back(any_to_capsule(tensor.view(torch.uint8) if is_bool else tensor), is_bool)


def to_ort(tensors: Sequence[torch.Tensor]) -> Any:
    """An OrtValueVector over the tensors, which must be ready and outlive its use."""
    vector = bindings().OrtValueVector()
    for position, tensor in enumerate(tensors):
        _check_transferable(tensor.dtype, f"Tensor {position}")
        if not is_ready(tensor, tensor.dtype, tensor.device):
            raise ExecutionError(f"Tensor {position} is not contiguous: pass it through dense().")
        if tensor.dtype in DLPACK_TYPES:
            push(vector, tensor)
            continue
        address = tensor.data_ptr() or empty_address(tensor, f"tensor {position}")
        device = ort_device(tensor.device)
        # NOTE: the first list only sets the number of values; an empty one makes an empty vector.
        vector.push_back_batch(
            [None], [address], [element_type(tensor.dtype)], [tensor.shape], [device]
        )
    return vector


def unmade_value(session: Any) -> Any:
    """A value without memory: among fetches it stands for what onnxruntime is to make."""
    binding = bindings().SessionIOBinding(session._sess)
    binding.bind_output(session.get_outputs()[0].name, ort_device(None))
    return binding.get_outputs()[0]


def from_ort(vector: Any, dtypes: Sequence[torch.dtype]) -> list[torch.Tensor]:
    """The values of an OrtValueVector as tensors that share their memory.

    ``dtypes`` restores bool, which dlpack carries as uint8.
    """
    tensors = vector.to_dlpacks(capsule_to_any_tensor)
    return [
        tensor.view(torch.bool) if dtype is torch.bool else tensor
        for tensor, dtype in zip(tensors, dtypes, strict=True)
    ]


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
        _check_transferable(slot.dtype.to_real(), f"Input {slot.name!r}")
        (capsules if slot.dtype in DLPACK_TYPES else batched).append(index)
    for out in signature.outputs:
        if out.source == "model" and out.made_dtype is not None:
            _check_transferable(out.made_dtype, f"Output {out.name!r}")
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


def tensor_to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The values as numpy, bfloat16 and float8 by ml_dtypes; shares memory where it can."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg()
    wanted = to_numpy(dense.dtype)
    if wanted.type.__module__ == "numpy":
        return np.asarray(dense.numpy())
    bits = torch.uint8 if wanted.itemsize == 1 else torch.int16
    return np.asarray(dense.contiguous().view(bits).numpy().view(wanted))


def array_to_tensor(array: Any) -> torch.Tensor:
    """A tensor of its own memory from a result of the evaluator."""
    # NOTE: np.ascontiguousarray turns rank 0 into rank 1.
    values = np.array(array, copy=True, order="C")
    if values.dtype.type.__module__ == "numpy":
        return torch.from_numpy(values)
    bits = np.uint8 if values.dtype.itemsize == 1 else np.int16
    dtype = getattr(torch, values.dtype.name)
    return torch.from_numpy(values.view(bits)).view(dtype)
