"""Arguments to compile for: like those of an earlier call, or a user's own under other names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.backends.seen_calls import SeenCall, TensorLike, latest_call, map_values
from dort_rewriter.deployment.compiled import Compiled, signature_of
from dort_rewriter.errors import OptionError

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call, by place and by name."""


def map_call(
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    change: Callable[[Any], Any],
    kind: type = torch.Tensor,
) -> Call:
    """A call with other tensors, or others of a kind."""
    named = {name: map_values(value, change, kind) for name, value in kwargs.items()}
    return tuple(map_values(a, change, kind) for a in args), named


def aliases_of(args: Sequence[Any], kwargs: Mapping[str, Any], *, gradients: bool = False) -> Call:
    """The same arguments in tensors of their own: those of a user keep no mark of ours.

    With ``gradients`` they get gradients where those did.
    """
    aliases: dict[int, torch.Tensor] = {}

    def alias(tensor: torch.Tensor) -> torch.Tensor:
        wanted = gradients and tensor.requires_grad
        return aliases.setdefault(id(tensor), tensor.detach().requires_grad_(wanted))

    return map_call(args, kwargs, alias)


def mark_as_seen(seen: SeenCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Mark the dimensions of arguments that an earlier call was compiled for any size of."""
    pairs = [*zip(seen.args, args, strict=False)]
    pairs += [(value, kwargs[name]) for name, value in seen.kwargs.items() if name in kwargs]
    while pairs:
        known, given = pairs.pop()
        if isinstance(known, TensorLike):
            if isinstance(given, torch.Tensor) and given.dim() == len(known.shape):
                mark_dims(given, known.dynamic)
        elif isinstance(known, list | tuple) and isinstance(given, list | tuple):
            pairs += zip(known, given, strict=False)
        elif isinstance(known, dict) and isinstance(given, dict):
            pairs += [(known[key], given[key]) for key in known if key in given]


def mark_dims(tensor: torch.Tensor, dims: Iterable[int]) -> None:
    """Let dimensions vary; those of one element do not, in torch."""
    for dim in dims:
        if tensor.shape[dim] > 1:
            torch._dynamo.maybe_mark_dynamic(tensor, dim)


class Maker:
    """Makes tensors of descriptions: a description met twice is one tensor."""

    def __init__(self, *, gradients: bool = False) -> None:
        self.gradients = gradients
        """Whether they get gradients where those did that were described."""
        self.generator = torch.Generator().manual_seed(0)
        self.made: dict[int, tuple[TensorLike, torch.Tensor]] = {}
        """By identity; a description stays, so that no other gets its identity."""

    def call(self, seen: SeenCall) -> Call:
        """Arguments like those of a call."""
        return map_call(seen.args, seen.kwargs, self.make, TensorLike)

    def make(self, wanted: TensorLike) -> torch.Tensor:
        """The tensor of a description."""
        if id(wanted) not in self.made:
            self.made[id(wanted)] = (wanted, self._tensor(wanted))
        return self.made[id(wanted)][1]

    def _tensor(self, wanted: TensorLike) -> torch.Tensor:
        # NOTE: zeros and ones: whole numbers may be indices, and have to be small.
        last = [(n - 1) * s for n, s in zip(wanted.shape, wanted.stride, strict=True)]
        count = 0 if 0 in wanted.shape else 1 + sum(last)
        values = torch.randint(0, 2, (count,), generator=self.generator)
        memory = values.to(wanted.device, wanted.dtype)
        made = memory.as_strided(wanted.shape, wanted.stride)  # parts may be one: an expanded one
        mark_dims(made, wanted.dynamic)
        return made.requires_grad_(self.gradients and wanted.requires_grad)


# -- the calls that entries stand for -----------------------------------------------------------


def calls_of(
    found: Compiled,
    entries: Sequence[Sequence[Any] | Mapping[str, Any]],
    *,
    gradients: bool = False,
) -> list[Call]:
    """The calls that entries of shapes or arguments stand for, those of the largest tensors first.

    Sizes that differ between them are marked to vary. With ``gradients`` tensors get gradients
    where those did that they stand for. Raises :class:`OptionError` for what is no entry.
    """
    names = _positional_names(found)
    calls = [_example(found, entry, names, gradients=gradients) for entry in entries]
    _mark_differences([_by_name(call, names) for call in calls])
    # Dynamo makes a graph of its own for sizes of one: the general one is the first.
    return sorted(calls, key=_elements, reverse=True)


def _example(
    found: Compiled,
    entry: Sequence[Any] | Mapping[str, Any],
    names: Mapping[Any, str],
    *,
    gradients: bool,
) -> Call:
    """The arguments of a call, tensors in place of shapes."""
    if isinstance(entry, Mapping):
        values: Mapping[Any, Any] = entry
    elif isinstance(entry, list | tuple):
        values = dict(enumerate(entry))
    else:
        raise OptionError(
            "Each entry is a tuple of the arguments of a call, such as (tensor,), or a dictionary "
            f"of them, not {type(entry).__name__}."
        )
    if _is_shape(entry):
        raise OptionError(
            f"{entry!r} is one shape. An entry has a place for each argument: ({entry!r},). A "
            f"call with numbers is a list: {[*entry]!r}."
        )
    maker, latest = Maker(gradients=gradients), latest_call(found.target)
    seen = {} if latest is None else _by_name((latest.args, latest.kwargs), names)
    made = {
        key: maker.make(_like(value, seen.get(names.get(key, key))))
        if _is_shape(value)
        else _copied(value, gradients=gradients)
        for key, value in values.items()
    }
    if isinstance(entry, Mapping):
        return aliases_of((), made, gradients=gradients)
    return aliases_of(list(made.values()), {}, gradients=gradients)


def _is_shape(value: Any) -> bool:
    if isinstance(value, torch.Size):
        return True
    return type(value) is tuple and bool(value) and all(type(size) is int for size in value)


def _copied(value: Any, *, gradients: bool) -> Any:
    """The argument as it is; a tensor as a copy, which the call may write to."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(gradients and value.requires_grad)


def _like(shape: Sequence[int], seen: Any) -> TensorLike:
    """A tensor of a shape, otherwise as one that was seen."""
    sizes = tuple(shape)
    strides = tuple(torch.empty(sizes, device="meta").stride())
    if not isinstance(seen, TensorLike):
        return TensorLike(sizes, strides, torch.get_default_dtype(), torch.device("cpu"))
    return TensorLike(sizes, strides, seen.dtype, seen.device, seen.dynamic, seen.requires_grad)


def _positional_names(found: Compiled) -> dict[Any, str]:
    """The names of the arguments that may be given by place."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature_of(found.target).parameters.values()
    return dict(enumerate(p.name for p in parameters if p.kind in kinds))


def _by_name(
    call: tuple[Sequence[Any], Mapping[str, Any]], names: Mapping[Any, str]
) -> dict[Any, Any]:
    """The arguments of a call by the names that they have in another one, too."""
    args, kwargs = call
    return {names.get(i, i): value for i, value in enumerate(args)} | dict(kwargs)


def _mark_differences(calls: Sequence[Mapping[Any, Any]]) -> None:
    """Let the sizes vary that differ between calls, and their equals in what one call has alone.

    A mask of one call varies as the tokens do that other calls have without it.
    """
    places: dict[Any, list[tuple[int, torch.Tensor]]] = {}
    for number, call in enumerate(calls):
        for way, tensor in _tensors_of(call):
            places.setdefault((way, tensor.dim()), []).append((number, tensor))
    varying: dict[int, set[int]] = {}
    for (_, rank), found in places.items():
        dims = [d for d in range(rank) if len({t.shape[d] for _, t in found}) > 1]
        for number, tensor in found:
            mark_dims(tensor, dims)
            varying.setdefault(number, set()).update(tensor.shape[d] for d in dims)
    for found in places.values():
        if len(found) == 1:
            ((number, tensor),) = found
            mark_dims(tensor, [d for d, n in enumerate(tensor.shape) if n in varying[number]])


def _elements(call: Call) -> int:
    return sum(tensor.numel() for _, tensor in _tensors_of(call))


def _tensors_of(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield the tensors of a nested value, and the way to each."""
    if isinstance(value, torch.Tensor):
        yield way, value
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _tensors_of(part, (*way, i))
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _tensors_of(part, (*way, key))
