"""Calls of a model that leave nothing behind: what they write to is set back.

What can be reached from arguments and a model is found first: containers, objects and modules are
walked through, the nearest first, each once.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import logging
import sys
import types
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

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


@contextlib.contextmanager
def left_as_it_was(model: Callable[..., Any] | None, inputs: Any) -> Iterator[None]:
    """Set back what the block writes to and can be reached from a model and from arguments.

    That is: tensors and arrays, buffers, attributes of modules and of other objects, what is in
    lists, dictionaries and sets, in any depth; and the random state. Each object is the one that
    it was. Left alone are parameters of modules, which would have to be copied; sparse tensors
    and those made of others (subclasses of torch's); objects of torch, as optimizers, and of
    Python's library, as iterators; what is reached by globals and closures of functions, or
    behind :data:`MAX_OBJECTS` others.

    What was not written to is not touched: a model that holds a buffer as a constant would notice.
    """
    found = Reachable(inputs, model)
    with contextlib.ExitStack() as stack:
        for put_back in (*found.undo, *(_undo_tensor(t) for t in found.tensors if _has_bytes(t))):
            stack.callback(put_back)
        with torch.random.fork_rng():
            yield


# -- what can be reached --------------------------------------------------------------------------

Undo = Callable[[], None]
"""Puts back what is not what it was when this was made."""


class Reachable:
    """What was found, every object once, and how it is put back."""

    def __init__(self, inputs: Any, model: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        """Without the parameters of modules, unless they are arguments."""
        self.undo: list[Undo] = []
        """Of all else."""
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
            if value.flags.writeable:
                self.undo.append(_undo_array(value))
        elif isinstance(value, torch.Generator):
            self.undo.append(_undo_generator(value))
        elif isinstance(value, types.MethodType):
            yield value.__self__
        elif isinstance(value, torch.nn.Module):
            yield from self._visit_module(value)
        else:
            yield from self._visit_object(value)

    def _visit_module(self, module: torch.nn.Module) -> Iterator[Any]:
        self._weights.update(map(id, module._parameters.values()))
        yield from self._visit_names(module._buffers)
        # NOTE: not the names of parameters: fully_shard puts others there, and knows which.
        yield from self._visit_names(module._modules)
        if _attributes_are_state(module):
            self.undo.append(_undo_container(module._non_persistent_buffers_set))
            yield from self._visit_names(vars(module), _MACHINERY)

    def _visit_object(self, value: Any) -> Iterator[Any]:
        if isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, dict):
            yield from self._visit_names(value)
        elif isinstance(value, list | set | deque):
            self.undo.append(_undo_container(value))
            yield from list(value)
        elif isinstance(value, tuple | frozenset):
            yield from value
        if isinstance(names := getattr(value, "__dict__", None), dict):
            yield from self._visit_names(names)
        if slots := _slots_of(value):
            self.undo.append(_undo_slots(value))
            yield from (v for _, v in slots.values())

    def _visit_names(
        self, values: dict[str, Any], ignored: frozenset[str] = frozenset()
    ) -> Iterator[Any]:
        """Keep what stands under names, of which some may not be looked at."""
        self.undo.append(_undo_names(values, ignored))
        yield from _read(values, ignored).values()


def _slots_of(value: Any) -> dict[str, tuple[Any, Any]]:
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


# -- how it is set back ---------------------------------------------------------------------------


def _read(values: Mapping[str, Any], ignored: frozenset[str]) -> dict[str, Any]:
    return {k: v for k, v in dict(values).items() if k not in ignored}


def _undo_names(values: dict[str, Any], ignored: frozenset[str]) -> Undo:
    before = _read(values, ignored)

    def put_back() -> None:
        now = _read(values, ignored)
        kind: Any = OrderedDict if isinstance(values, OrderedDict) else dict
        for name in now.keys() - before.keys():
            kind.__delitem__(values, name)
        for name, value in before.items():
            if name not in now or now[name] is not value:
                kind.__setitem__(values, name, value)
        if list(_read(values, ignored)) != list(before):  # what was deleted came last
            for name, value in before.items():
                kind.__delitem__(values, name)
                kind.__setitem__(values, name, value)

    return put_back


def _undo_slots(owner: Any) -> Undo:
    before = _slots_of(owner)

    def put_back() -> None:
        now = _slots_of(owner)
        for name in now.keys() - before.keys():
            now[name][0].__delete__(owner)
        for name, (slot, value) in before.items():
            if name not in now or now[name][1] is not value:
                slot.__set__(owner, value)

    return put_back


def _undo_container(values: list[Any] | set[Any] | deque[Any]) -> Undo:
    before = list(values)

    def put_back() -> None:
        now = list(values)
        if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
            return
        # NOTE: those of the class itself: a subclass may count, or refuse.
        if isinstance(values, list):
            list.__setitem__(values, slice(None), before)
        elif isinstance(values, set):
            set.clear(values)
            set.update(values, before)
        else:
            deque.clear(values)
            deque.extend(values, before)

    return put_back


def _undo_tensor(tensor: torch.Tensor) -> Undo:
    place = tensor.detach()
    elements = _each_once(place)
    before = elements.clone()

    def put_back() -> None:
        with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
            if not _same_place(tensor, place):
                tensor.data = place
            # NOTE: the version of a tensor does not tell: batch norm writes without moving it;
            # neither do equal numbers: NaN is equal to nothing.
            if not torch.equal(_bytes(elements), _bytes(before)):
                _each_once(tensor).copy_(before)

    return put_back


def _undo_array(array: np.ndarray[Any, Any]) -> Undo:
    before = array.copy()

    def put_back() -> None:
        if array.tobytes() != before.tobytes():
            array[...] = before

    return put_back


def _undo_generator(generator: torch.Generator) -> Undo:
    before = generator.get_state()

    def put_back() -> None:
        if not torch.equal(generator.get_state(), before):
            generator.set_state(before)

    return put_back


def _has_bytes(tensor: torch.Tensor) -> bool:
    made_of_others = bool(is_traceable_wrapper_subclass(tensor))
    if made_of_others or is_lazy(tensor):
        return False
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    return plain and tensor.device.type != "meta"


def _same_place(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        tensor.untyped_storage()._cdata == other.untyped_storage()._cdata
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
        and tensor.storage_offset() == other.storage_offset()
    )


def _each_once(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of an expanded tensor, each once: more of it cannot be written to."""
    view = tensor.detach()
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            view = view.narrow(dim, 0, 1)
    return view


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)
