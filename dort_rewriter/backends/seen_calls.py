"""What a model was compiled for: the latest call of each, with descriptions in place of tensors.

Who saves a compiled model, or asks for it at other sizes, needs arguments like those it was called
with. Dynamo has them while it compiles; nothing is kept of them but sizes, types and plain values.
"""

from __future__ import annotations

import enum
import functools
import inspect
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

_RESUMED = "torch_dynamo_resume_in_"
"""How the names of functions begin that Dynamo makes behind a graph break."""


@dataclass(frozen=True)
class TensorLike:
    """What a tensor among the arguments was."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    dynamic: frozenset[int] = frozenset()
    """The dimensions that were compiled for any size."""
    requires_grad: bool = False


@dataclass(frozen=True)
class SeenCall:
    """The arguments of a call, without the module; one description for one tensor."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class _NoDescription(Exception):
    """A tensor is of another class, and more than sizes and a type; or an object may hold some."""


_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, enum.Enum, type, slice, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)


# NOTE: by identity: a module may compare as it likes, or not at all.
_by_module: Any = WeakIdKeyDictionary()
_by_code: weakref.WeakKeyDictionary[CodeType, SeenCall] = weakref.WeakKeyDictionary()


def latest_call(target: Callable[..., Any]) -> SeenCall | None:
    """The call that a module or a function was compiled for last, if it was."""
    if isinstance(target, torch.nn.Module):
        return _by_module.get(target)
    code = getattr(inspect.unwrap(target), "__code__", None)
    owner = getattr(target, "__self__", None)
    if isinstance(owner, torch.nn.Module):  # a compiled method, as of ``model.forward``
        return _by_module.get(owner)
    return None if code is None else _by_code.get(code)


_watchers: weakref.WeakKeyDictionary[CodeType, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def watch_code(code: CodeType, compiles: Callable[[Any], None]) -> None:
    """Have a function called with the first argument whenever a call of this code is compiled."""
    _watchers[code] = compiles


def note_call(graph_module: torch.fx.GraphModule, given: Sequence[Any]) -> None:
    """Keep what the call under compilation looks like; nothing when Dynamo compiles none."""
    translator = _translator()
    if translator is None or translator.f_code.co_name.startswith(_RESUMED):
        return
    found = _arguments_of(translator)
    if found is None:
        return
    args, kwargs = found
    if (compiles := _watchers.get(translator.f_code)) is not None:
        compiles(args[0])
    owner: Any = _owner(translator, args)
    if args and args[0] is owner:
        args = args[1:]
    dynamic = _dynamic_dims(graph_module, given)
    seen: dict[int, TensorLike] = {}

    def described(tensor: torch.Tensor) -> TensorLike:
        return seen.setdefault(id(tensor), _describe(tensor, dynamic))

    try:
        call = SeenCall(
            tuple(map_values(a, described, others=_plain) for a in args),
            {k: map_values(v, described, others=_plain) for k, v in kwargs.items()},
        )
    except _NoDescription:
        return
    if owner is not None:
        _by_module[owner] = call
    else:
        _by_code[translator.f_code] = call


def map_values(
    value: Any,
    change: Callable[[Any], Any],
    kind: type[torch.Tensor | TensorLike] = torch.Tensor,
    others: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """A nested value with its tensors, or descriptions of them, changed; lists, tuples and
    dictionaries are copied, and ``others`` is given what is in them besides."""
    change_all = functools.partial(map_values, change=change, kind=kind, others=others)
    if isinstance(value, kind):
        return change(value)
    if type(value) in (list, tuple):
        return type(value)(map(change_all, value))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named: Any = type(value)
        return named._make(map(change_all, value))
    if type(value) in (dict, OrderedDict):
        return type(value)((k, change_all(v)) for k, v in value.items())
    return others(value)


def _plain(value: Any) -> Any:
    """A value that holds no tensor: a cache of keys and values would stay alive here."""
    if not isinstance(value, _PLAIN):
        raise _NoDescription
    return value


def _translator() -> Any:
    """What of Dynamo reads the outermost frame under compilation, None if nothing does."""
    if torch._guards.TracingContext.try_get() is None:
        return None
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return InstructionTranslator.current_tx().output.root_tx
    except AttributeError:  # none was ever read in this thread
        return None


def _arguments_of(translator: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a frame, by its code and its variables."""
    code, variables = translator.f_code, translator.output.local_scope
    names, more, more_named = inspect.getargs(code)
    if not all(name in variables for name in names):
        return None
    args = tuple(variables[name] for name in names[: code.co_argcount])
    args += tuple(variables.get(more, ()))
    kwargs = {name: variables[name] for name in names[code.co_argcount :]}
    return args, {**kwargs, **variables.get(more_named, {})}


def _owner(translator: Any, args: Sequence[Any]) -> torch.nn.Module | None:
    """The module whose call a frame is: its first argument, or what a wrapper of torch calls."""
    if args and isinstance(args[0], torch.nn.Module):
        return args[0]
    is_wrapper = translator.f_code.co_freevars == ("fn",)
    wrapped = translator.output.local_scope.get("fn") if is_wrapper else None
    return wrapped if isinstance(wrapped, torch.nn.Module) else None


def _dynamic_dims(
    graph_module: torch.fx.GraphModule, given: Sequence[Any]
) -> dict[int, frozenset[int]]:
    """The symbolic dimensions of the arguments of a graph, by their identity."""
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    found = {}
    for node, argument in zip(placeholders, given, strict=False):
        fake = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(argument, torch.Tensor) and isinstance(fake, torch.Tensor):
            sizes: Sequence[Any] = fake.shape
            dims = (i for i, d in enumerate(sizes) if isinstance(d, torch.SymInt))
            found[id(argument)] = frozenset(dims)
    return found


def _describe(tensor: torch.Tensor, dynamic: Mapping[int, frozenset[int]]) -> TensorLike:
    plain = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if type(tensor) not in plain or tensor.layout != torch.strided:
        raise _NoDescription
    return TensorLike(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        tensor.device,
        dynamic.get(id(tensor), frozenset()),
        tensor.requires_grad,
    )
