"""Calls of torch from inside a session: what the kernel ``TorchCall`` runs in Python.

A model names a call by a number that is drawn at random in this process. A call is kept by the
session that runs it, and by the graph that it was made of; here it is only known.

NOTE: inputs of torch's own operators are tensors of memory that belongs to ONNX Runtime, and that
is used again when the kernel returns: no operator of torch's keeps what it is given, nor does an
exception of theirs that leaves here. Operators of others get copies, and so do those of torch
whose arguments were traced with other strides. Results belong to torch until the kernel has copied
them.
"""

from __future__ import annotations

import ctypes
import functools
import re
import secrets
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from dort_rewriter.dtypes import to_torch
from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.loading import custom_ops_library
from dort_rewriter.signature import Given, TorchCall

_calls: dict[int, weakref.ref[TorchCall]] = {}
_failures: dict[int, BaseException] = {}
"""What calls raised, until who ran the session asks for it."""
_MOST_FAILURES = 16

_LENDS = frozenset({"aten", "prims"})
"""The namespaces whose operators are given the memory of ONNX Runtime."""

_FUNCTIONS = (
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyTuple_GetItem",
    "PyTuple_Size",
    "PyLong_FromLongLong",
    "PyLong_AsLongLong",
    "PyMemoryView_FromMemory",
    "PyObject_CallObject",
    "Py_DecRef",
    "PyErr_Fetch",
    "PyErr_NormalizeException",
    "PyException_SetTraceback",
    "PyDict_SetItem",
    "PyDict_Contains",
)
"""Of Python's stable C interface, in the order of ``kernels/cpp/python.h``."""


def register_call(call: TorchCall) -> int:
    """The number by which a model names a call, for as long as somebody keeps the call.

    Raises :class:`ExecutionError` where there is no library of kernels.
    """
    _let_kernels_call()
    number = secrets.randbits(62) | 1
    _calls[number] = weakref.ref(call, lambda _: _calls.pop(number, None))
    return number


def calls_of(numbers: Iterable[int]) -> tuple[TorchCall, ...]:
    """The calls of these numbers that there are, to be kept by a session."""
    found = (known() for n in numbers if (known := _calls.get(n)) is not None)
    return tuple(call for call in found if call is not None)


def take_failure(text: str) -> BaseException | None:
    """What a call raised that a session failed of, by the words of the session."""
    found = re.search(r"a call of torch raised exception (\d+)", text)
    return None if found is None else _failures.pop(int(found[1]), None)


@functools.cache
def _let_kernels_call() -> None:
    """Tell the library how Python is called."""
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, f), ctypes.c_void_p) for f in _FUNCTIONS]
    addresses += [ctypes.c_void_p(id(o)) for o in (_run, _calls, _failures)]
    given = (ctypes.c_void_p * len(addresses))(*(a.value for a in addresses))
    if not ctypes.CDLL(custom_ops_library()).call_python(given, ctypes.c_size_t(len(given))):
        raise ExecutionError("the library of kernels calls other functions of Python.")


def _run(number: int, memory: tuple[tuple[memoryview, int, tuple[int, ...]], ...]) -> Any:
    """Run a call: called by the kernel, with a description of each input.

    For each result: a tensor, its address, its bytes, its sizes.
    """
    while len(_failures) > _MOST_FAILURES:  # of sessions that never ask for them
        _failures.pop(next(iter(_failures)), None)
    known = _calls.get(number)
    call = None if known is None else known()
    if call is None:
        raise ExecutionError(
            "the session calls torch, and its TorchCall is gone: keep it while the session runs."
        )
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        with torch._C._DisableAutocast():
            return _call(call, memory)
    except BaseException as error:
        # Whatever it is: it goes on to the caller, as from eager mode.
        if call.where and hasattr(error, "add_note"):
            error.add_note(f"raised by {call.name}, at {call.where}")
        if _lends(call):
            error.__traceback__ = None  # its frames know the memory
        raise
    finally:
        torch._C._set_grad_enabled(before)


def _call(call: TorchCall, memory: tuple[tuple[memoryview, int, tuple[int, ...]], ...]) -> Any:
    lends = _lends(call)
    tensors = [_tensor(*described) for described in memory]
    args = [_filled(a, tensors, lends) for a in call.args]
    kwargs = {name: _filled(a, tensors, lends) for name, a in call.kwargs.items()}
    returned = call.target(*args, **kwargs)
    values = returned if isinstance(returned, list | tuple) else (returned,)
    if call.ordered:
        values = (torch.empty(0), *values)
    if len(values) != len(call.results):
        raise ExecutionError(
            f"{call.name} gave {len(values)} result(s) instead of {len(call.results)}."
        )
    pairs = zip(values, call.results, strict=True)
    return tuple([_result(call, v, r) for v, r in pairs if r is not None])


def _lends(call: TorchCall) -> bool:
    return call.target.namespace in _LENDS


def _tensor(memory: memoryview, dtype: int, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of memory that somebody else owns."""
    known = to_torch(dtype)
    if 0 in shape:
        return torch.empty(shape, dtype=known, device="cpu")
    return torch.frombuffer(memory, dtype=known).view(shape)


def _filled(argument: Any, tensors: list[torch.Tensor], lends: bool) -> Any:
    """An argument with the inputs that it is made of."""
    if isinstance(argument, Given):
        tensor = tensors[argument.index]
        if argument.kind == "complex":
            tensor = torch.view_as_complex(tensor)
        elif argument.kind != "tensor":
            return tensor.item()
        is_as_traced = argument.order is None and not argument.has_gaps
        return tensor if lends and is_as_traced else _copy(tensor, argument)
    if isinstance(argument, list):
        return [_filled(a, tensors, lends) for a in argument]
    return argument


def _copy(tensor: torch.Tensor, traced: Given) -> torch.Tensor:
    """A copy with the strides that were traced: what is computed may depend on them.

    ``linalg.det`` factors a matrix or its transpose, whichever is contiguous, and its gradient was
    traced for one of the two.
    """
    order = traced.order or tuple(range(tensor.ndim))
    back = sorted(range(len(order)), key=order.__getitem__)
    ordered = tensor.permute(order)
    if traced.has_gaps and tensor.ndim:
        wide = ordered.new_empty((*ordered.shape[:-1], 2 * ordered.shape[-1]))
        return wide[..., ::2].copy_(ordered).permute(back)
    return ordered.clone(memory_format=torch.contiguous_format).permute(back)


def _result(call: TorchCall, value: Any, expected: Any) -> tuple[torch.Tensor, int, int, Any]:
    """What the kernel needs of a result that is what the graph says."""
    if not isinstance(value, torch.Tensor) or value.dtype is not expected.dtype:
        got = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise ExecutionError(f"{call.name} gave {got} instead of {expected.dtype}.")
    shape = tuple(value.shape)
    if shape != expected.shape and not _is_like(shape, expected.shape):
        raise ExecutionError(
            f"{call.name} gave the sizes {list(shape)} instead of {list(expected.shape)}."
        )
    if value._is_zerotensor():  # which has no memory
        value = torch.zeros(shape, dtype=value.dtype, device="cpu")
    dense = (value.resolve_neg() if value.is_neg() else value).contiguous()
    if dense.is_complex():
        dense, shape = torch.view_as_real(dense.resolve_conj()), (*shape, 2)
    return dense, dense.data_ptr(), dense.nbytes, shape


def _is_like(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether sizes are the expected ones, where these are known."""
    return len(shape) == len(expected) and all(
        e is None or e == size for e, size in zip(expected, shape, strict=True)
    )
