"""Functions as modules, since torch traces modules; and the tensors of a module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch


class FunctionModule(torch.nn.Module):
    """A module that calls a function, and has the modules that the function reads as parts.

    Their parameters are those of the model then, under the names that the function has for them.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = function if _has_signature(function) else _passing_on(function)
        for name, module in _modules_of(function):
            while hasattr(self, name):
                name += "_"
            self.add_module(name, module)

    def _get_name(self) -> str:
        return str(getattr(self.forward, "__name__", type(self.forward).__name__))


def named_tensors(
    module: torch.nn.Module, *, recurse: bool = True
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers under each of their names."""
    yield from module.named_parameters(recurse=recurse, remove_duplicate=False)
    yield from module.named_buffers(recurse=recurse, remove_duplicate=False)


def _has_signature(function: Callable[..., Any]) -> bool:
    """Whether Python knows the arguments of a function, which torch.export asks for."""
    try:
        inspect.signature(function)
    except ValueError:  # one of torch's own, in C++
        return False
    return True


def _passing_on(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


def _modules_of(function: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield each module that a function reads: bound to it, closed over or global, also through
    the functions beside it that it calls."""
    function = inspect.unwrap(function)
    home = getattr(function, "__module__", None)
    seen: set[int] = set()
    waiting = [("function", function)]
    while waiting:
        name, value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            yield name, value
        elif isinstance(value, functools.partial):
            waiting += [(name, value.func), *((name, v) for v in value.args)]
            waiting += value.keywords.items()
        elif inspect.ismethod(value):
            waiting += [("module", value.__self__), (name, value.__func__)]
        elif inspect.isfunction(value) and value.__module__ == home:
            read = inspect.getclosurevars(value)
            waiting += [*read.nonlocals.items(), *read.globals.items()]
