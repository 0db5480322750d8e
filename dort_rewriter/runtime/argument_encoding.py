"""Values of a signature in the words of Python: sizes, arguments of views, literals."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.signature import (
    FROM_PAIRS,
    GraphSignature,
    InputDim,
    InputSize,
    InputSlot,
    Size,
    SizeExpression,
    find_operator,
    places_in,
)

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}


def arguments_needed(signature: GraphSignature) -> Iterator[int]:
    """Yield the positions of the arguments that results are made of."""
    for slot in signature.outputs:
        if slot.source == "input":
            yield slot.index
        yield from (place.index for place in places_in((slot.size, slot.views)))


def keys_of_results(signature: GraphSignature) -> list[tuple[Any, ...]]:
    """What each result is made of and by which steps: what begins alike may be made once.

    Two results are two tensors. A list of views has each of them once, so that who takes the same
    one of an equal list has another list.
    """
    keys: list[tuple[Any, ...]] = []
    taken: Counter[tuple[Any, ...]] = Counter()
    for slot in signature.outputs:
        key: tuple[Any, ...] = (slot.source, slot.index, *slot.views)
        earlier = taken[key]
        taken[key] += 1
        if earlier and slot.views and slot.views[-1].op == "getitem":
            key = (*key[:-2], (key[-2], earlier), key[-1])
        keys.append(key)
    return keys


def spell_size(size: Size) -> str:
    """Write a size down, computed from the arguments."""
    match size:
        case InputSize(index):
            return f"a{index}"
        case InputDim(index, dim):
            return f"a{index}.shape[{dim}]"
        case SizeExpression(op, args):
            operands = [spell_size(a) for a in args]
            if op in _OPERATORS:
                return f"({f' {_OPERATORS[op]} '.join(operands)})"
            return f"{op}({', '.join(operands)})"
    return repr(size)


def spell_argument(value: object) -> str:
    """Write an argument of a view down."""
    if isinstance(value, (tuple, list)):
        return spell_tuple(spell_argument(v) for v in value)
    if isinstance(value, (InputSize, InputDim, SizeExpression)):
        return spell_size(value)
    return spell_literal(value)


def spell_literal(value: object) -> str:
    """Write a number down, or None."""
    if isinstance(value, float):
        return f"float({str(value)!r})"  # inf and nan have no literal
    if value is None or isinstance(value, (bool, int)):
        return repr(value)
    raise ExecutionError(f"A signature holds numbers, not {type(value).__name__}: {value!r}.")


def find_step(op: str) -> Callable[..., Any]:
    """What takes a step: the ATen overload named ``aten::view``, ``aten::slice.Tensor``."""
    if op in _STEPS:
        return _STEPS[op]
    if (found := find_operator(op)) is None:
        raise ExecutionError(f"{op!r} in a view step is no ATen overload.")
    return found


def _lay_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def _permute_in_place(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    permuted = tensor.permute(order)
    return tensor.as_strided_(permuted.shape, permuted.stride())


def _stride_in_place(
    tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    tensor.as_strided(size, stride, offset)  # which looks at the storage; in place torch does not
    return tensor.as_strided_(size, stride, offset)


STRIDED = "as_strided_"
"""``aten::as_strided_`` of unchecked arguments."""

_STEPS: dict[str, Callable[..., Any]] = {
    FROM_PAIRS: lambda x: torch.view_as_complex(x).detach(),  # no other view of the pairs exists
    STRIDED: _stride_in_place,
    "getitem": operator.getitem,
    "lay_out": _lay_out,
    "permute_": _permute_in_place,
}
"""The steps that are no overload."""


def spell_tuple(items: Iterable[str]) -> str:
    """Write a tuple of what is written down already."""
    listed = list(items)
    return f"({listed[0]},)" if len(listed) == 1 else f"({', '.join(listed)})"


def spell_device_tests(given: str, slot: InputSlot) -> Iterator[str]:
    """Yield what is asked of a tensor that is where the session reads it."""
    if slot.device is None or slot.device.type == "cpu":
        yield f"{given}.is_cpu"
    else:
        yield f"{given}.is_{slot.device.type}"
        yield f"{given}.get_device() == {slot.device.index or 0}"


def spell_unpacking(names: list[str], value: str) -> str:
    """Write the line that takes a sequence apart."""
    return f"    {spell_tuple(names)} = {value}"
