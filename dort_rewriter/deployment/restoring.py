"""Calls of a model that leave nothing behind: what they write to is set back."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dort_rewriter.deployment.reachable import Names, Reachable, slots_of


@contextlib.contextmanager
def left_as_it_was(model: Callable[..., Any] | None, inputs: Any) -> Iterator[None]:
    """Set back what the block writes to and can be reached from a model and from arguments.

    That is: tensors and arrays, buffers, attributes of modules and of other objects, what is in
    lists, dictionaries and sets, in any depth; and the random state. Each object is the one that
    it was. Left alone are parameters of modules, which would have to be copied; sparse tensors
    and those made of others (subclasses of torch's); objects of torch, as optimizers, and of
    Python's library, as iterators; what is reached by globals and closures of functions, or
    behind :data:`~dort_rewriter.deployment.reachable.MAX_OBJECTS` others.

    What was not written to is not touched: a model that holds a buffer as a constant would notice.
    """
    found = Reachable(inputs, model)
    undo = [
        *map(_undo_names, found.names),
        *map(_undo_slots, found.slotted),
        *map(_undo_container, found.containers),
        *(_undo_tensor(t) for t in found.tensors if _has_bytes(t)),
        *(_undo_array(a) for a in found.arrays if a.flags.writeable),
        *map(_undo_generator, found.generators),
    ]
    with contextlib.ExitStack() as stack:
        for put_back in undo:
            stack.callback(put_back)
        with torch.random.fork_rng():
            yield


Undo = Callable[[], None]
"""Puts back what is not what it was when this was made."""


def _undo_names(names: Names) -> Undo:
    before = names.read()

    def put_back() -> None:
        values, now = names.values, names.read()
        kind: Any = OrderedDict if isinstance(values, OrderedDict) else dict
        for name in now.keys() - before.keys():
            kind.__delitem__(values, name)
        for name, value in before.items():
            if name not in now or now[name] is not value:
                kind.__setitem__(values, name, value)
        if list(names.read()) != list(before):  # what was deleted came last
            for name, value in before.items():
                kind.__delitem__(values, name)
                kind.__setitem__(values, name, value)

    return put_back


def _undo_slots(owner: Any) -> Undo:
    before = slots_of(owner)

    def put_back() -> None:
        now = slots_of(owner)
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
