"""Compile a model for the sizes it is going to be called with, before it is."""

from __future__ import annotations

import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from dort_rewriter.backends.instances import count_runs
from dort_rewriter.backends.seen_calls import SeenCall, TensorLike, latest_call
from dort_rewriter.deployment.compiled import WHAT_IS_SKIPPED, Compiled, take_apart
from dort_rewriter.deployment.examples import Maker, aliases_of, mark_dims
from dort_rewriter.deployment.restoring import left_as_it_was
from dort_rewriter.errors import OptionError
from dort_rewriter.forks import SafeLock

__all__ = ["warm_up"]

logger = logging.getLogger(__name__)

_warming = SafeLock()
"""One at a time: each puts back what the calls of a model change."""


def warm_up(
    compiled: Callable[..., Any],
    shapes: Sequence[Sequence[Any] | Mapping[str, Any]],
) -> None:
    """Compile a model for calls in inference, and build its sessions, before they come.

    Each entry of ``shapes`` is one call: its arguments in order, or by name. A tuple of whole
    numbers stands for a tensor of that shape, of the type that this argument had when the model
    was compiled last, or of torch's default type; anything else is passed as it is. Sizes that
    differ between the entries are compiled for any number: further ones compile nothing.

    ``warm_up(compiled, [((1, 16),), ((8, 16),)])``, ``warm_up(compiled, [{"x": tensor}])``.

    It runs under what it is called under, as do the calls to come: ``torch.inference_mode()``,
    autocast; without gradients unless they are off already. Under another mode Dynamo compiles
    again.

    Several threads may warm a model up, and call it meanwhile. The calls see what those before
    them wrote. Then what they wrote to is as it was: tensors, lists, dictionaries and attributes
    of objects, in any depth of the arguments and of the model, and random numbers. So a model
    that writes to buffers or attributes is warmed up before it serves. Not set back are
    parameters, what functions reach by globals and closures, and objects of torch (optimizers)
    and of Python's library (iterators, files).

    A warning says when nothing was compiled, as of a model that Dynamo skips.
    """
    found = take_apart(compiled)
    if not shapes:
        raise OptionError("shapes is a list of calls: [(tensor,), ...] or [((1, 16),), ...].")
    calls = [_example(found, entry) for entry in shapes]
    _mark_differences(calls)
    # Dynamo makes a graph of its own for sizes of one: the general one is the first.
    calls.sort(key=_elements, reverse=True)
    start, graphs, runs = time.perf_counter(), _count_graphs(), _count_runs(found)
    with _warming, contextlib.ExitStack() as stack:
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        stack.enter_context(left_as_it_was(found.target, shapes))
        for args, kwargs in calls:
            compiled(*args, **kwargs)
    key = found.target if found.module is None else found.module
    if (_count_graphs(), _count_runs(found)) != (graphs, runs):
        _warmed[key] = True
    elif key not in _warmed and latest_call(found.target) is None:
        logger.warning(
            "Nothing was compiled for %s calls, and nothing ran in ONNX Runtime: all of the model "
            "runs in eager mode. %s",
            len(calls),
            WHAT_IS_SKIPPED,
        )
        return
    logger.info("Warmed up for %s calls in %.1f s.", len(calls), time.perf_counter() - start)


# NOTE: by identity, as modules may compare as they like.
_warmed: Any = WeakIdKeyDictionary()
"""Models of which something was compiled: a graph without a session leaves no other trace."""


def _count_graphs() -> int:
    """How many graphs Dynamo has given to backends, in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _count_runs(found: Compiled) -> int:
    """How often sessions were run that may be those of a model."""
    own = 0 if found.backend is None else int(found.backend.execution_count)
    return own + count_runs()


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _example(found: Compiled, entry: Sequence[Any] | Mapping[str, Any]) -> Call:
    """The arguments of a call, tensors in place of shapes."""
    if isinstance(entry, Mapping):
        values: Mapping[Any, Any] = entry
    elif isinstance(entry, list | tuple):
        values = dict(enumerate(entry))
    else:
        raise OptionError(
            f"Each entry of shapes is a tuple of arguments, or a dictionary, not {entry!r}."
        )
    seen, maker = latest_call(found.target), Maker()
    names = _parameter_names(found.target)
    made = {
        key: maker.make(_like(value, _seen_argument(seen, names, key)))
        if _is_shape(value)
        else _copied(value)
        for key, value in values.items()
    }
    if isinstance(entry, Mapping):
        return aliases_of((), made)
    return aliases_of(list(made.values()), {})


def _is_shape(value: Any) -> bool:
    if isinstance(value, torch.Size):
        return True
    return type(value) is tuple and bool(value) and all(type(size) is int for size in value)


def _copied(value: Any) -> Any:
    """The argument as it is; a tensor as a copy, which the call may write to."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _like(shape: Sequence[int], seen: Any) -> TensorLike:
    """A tensor of a shape, otherwise as one that was seen."""
    sizes = tuple(shape)
    strides = tuple(torch.empty(sizes, device="meta").stride())
    if not isinstance(seen, TensorLike):
        return TensorLike(sizes, strides, torch.get_default_dtype(), torch.device("cpu"))
    return TensorLike(sizes, strides, seen.dtype, seen.device, seen.dynamic)


def _parameter_names(target: Callable[..., Any]) -> list[str]:
    called = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        return list(inspect.signature(called).parameters)
    except ValueError:  # of a function in C, nothing is known
        return []


def _seen_argument(seen: SeenCall | None, names: Sequence[str], key: int | str) -> Any:
    """What an argument was when the model was compiled last, None if that is not known."""
    if seen is None:
        return None
    place = key if isinstance(key, int) else names.index(key) if key in names else len(names)
    if isinstance(key, int) and key < len(names) and names[key] in seen.kwargs:
        return seen.kwargs[names[key]]
    if key in seen.kwargs:
        return seen.kwargs[str(key)]
    return seen.args[place] if place < len(seen.args) else None


def _mark_differences(calls: Sequence[Call]) -> None:
    """Let the sizes vary that differ between calls."""
    places: dict[Any, list[torch.Tensor]] = {}
    for args, kwargs in calls:
        for key, value in (*enumerate(args), *kwargs.items()):
            if isinstance(value, torch.Tensor):
                places.setdefault((key, value.dim()), []).append(value)
    for (_, rank), tensors in places.items():
        dims = [d for d in range(rank) if len({t.shape[d] for t in tensors}) > 1]
        for tensor in tensors:
            mark_dims(tensor, dims)


def _elements(call: Call) -> int:
    values = (*call[0], *call[1].values())
    return sum(v.numel() for v in values if isinstance(v, torch.Tensor))
