"""What can be reached from arguments and a model, and be written to by a call.

Containers, objects and modules are walked through, the nearest first, each once.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import types
from collections import UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn.modules.lazy import LazyModuleMixin

logger = logging.getLogger(__name__)

MAX_OBJECTS = 100_000
"""How many objects are walked through: one attribute may lead to a whole program."""

_MACHINERY = frozenset(vars(torch.nn.Module())) - {"training"}
"""What torch keeps in each module: it is not the state of a model, or reached otherwise."""
_PLAIN = ("torch.nn.modules.", "torch.nn.utils.", "torch.ao.")
"""Where torch has modules whose attributes are their state. Those of others belong together with
what C++ or Dynamo remembers: ``DistributedDataParallel``, what ``fully_shard`` makes, and
compiled modules."""
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
_CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, Enum)
_WALKED = (
    *(torch.Tensor, torch.Generator, torch.nn.Module, np.ndarray, types.MethodType),
    *(list, tuple, dict, set, frozenset, deque, UserDict, UserList),
    *(functools.partial, types.SimpleNamespace, argparse.Namespace),
)
_FOREIGN = sys.stdlib_module_names | {"torch", "numpy"}
"""Whose objects are left alone, those in ``_WALKED`` excepted: locks, files, optimizers."""

Container = list[Any] | set[Any] | deque[Any]


class Names:
    """A dictionary, or the names of an object; some of them may not be looked at."""

    def __init__(self, values: dict[str, Any], ignored: frozenset[str] = frozenset()) -> None:
        self.values = values
        self.ignored = ignored

    def read(self) -> dict[str, Any]:
        """What stands under each name now."""
        return {k: v for k, v in dict(self.values).items() if k not in self.ignored}


class Reachable:
    """What was found: of each kind, every object once."""

    def __init__(self, inputs: Any, model: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        """Without the parameters of modules, unless they are arguments."""
        self.arrays: list[np.ndarray[Any, Any]] = []
        self.generators: list[torch.Generator] = []
        self.names: list[Names] = []
        self.slotted: list[Any] = []
        self.containers: list[Container] = []
        self._weights: set[int] = set()
        self._seen: dict[int, Any] = {}
        given = torch.utils._pytree.tree_leaves(inputs)
        self._walk([inputs, model, *given])
        weights = self._weights.difference(map(id, given))
        self.tensors = [t for t in self.tensors if id(t) not in weights]

    def _walk(self, roots: Iterable[Any]) -> None:
        waiting = deque(roots)
        while waiting:
            value = waiting.popleft()
            if id(value) in self._seen or _is_foreign(value):
                continue
            if len(self._seen) == MAX_OBJECTS:
                logger.info(
                    "More than %s objects can be reached from the arguments and the model: what "
                    "a call changes in the farthest is not set back.",
                    MAX_OBJECTS,
                )
                return
            self._seen[id(value)] = value
            waiting.extend(self._visit(value))

    def _visit(self, value: Any) -> Iterator[Any]:
        """Keep an object, and yield what it holds."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
        elif isinstance(value, np.ndarray):
            self.arrays.append(value)
        elif isinstance(value, torch.Generator):
            self.generators.append(value)
        elif isinstance(value, types.MethodType):
            yield value.__self__
        elif isinstance(value, torch.nn.Module):
            yield from self._visit_module(value)
        else:
            yield from self._visit_object(value)

    def _visit_module(self, module: torch.nn.Module) -> Iterator[Any]:
        self._weights.update(map(id, module._parameters.values()))
        yield from self._visit_names(Names(module._buffers))
        # NOTE: not the names of parameters: fully_shard puts others there, and knows which.
        yield from self._visit_names(Names(module._modules))
        if _attributes_are_state(module):
            self.containers.append(module._non_persistent_buffers_set)
            yield from self._visit_names(Names(vars(module), _MACHINERY))

    def _visit_object(self, value: Any) -> Iterator[Any]:
        if isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, dict):
            yield from self._visit_names(Names(value))
        elif isinstance(value, list | set | deque):
            self.containers.append(value)
            yield from list(value)
        elif isinstance(value, tuple | frozenset):
            yield from value
        if isinstance(names := getattr(value, "__dict__", None), dict):
            yield from self._visit_names(Names(names))
        if slots := slots_of(value):
            self.slotted.append(value)
            yield from (v for _, v in slots.values())

    def _visit_names(self, names: Names) -> Iterator[Any]:
        self.names.append(names)
        yield from names.read().values()


def slots_of(value: Any) -> dict[str, tuple[Any, Any]]:
    """For each of the ``__slots__`` of an object that is set, its descriptor and what is there."""
    found = {}
    for kind in type(value).__mro__:
        if "__slots__" not in vars(kind):
            continue
        for name, slot in list(vars(kind).items()):
            if isinstance(slot, types.MemberDescriptorType):
                try:
                    found[f"{kind.__qualname__}.{name}"] = slot, slot.__get__(value)
                except AttributeError:  # nothing is there
                    continue
    return found


def _attributes_are_state(module: torch.nn.Module) -> bool:
    if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
        return False  # the first call makes another module of it
    kind = f"{type(module).__module__}."
    return not kind.startswith("torch.") or kind.startswith(_PLAIN)


def _is_foreign(value: Any) -> bool:
    kind = type(value)  # NOTE: isinstance asks a proxy for its class, which may raise
    if kind in _ATOMS or issubclass(kind, _CODE):
        return True
    root = str(kind.__module__).partition(".")[0]
    return root in _FOREIGN and not issubclass(kind, _WALKED)
