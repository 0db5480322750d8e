"""The call of a model that is given addresses of arguments and results, not tensors.

Parameters stay where they are: the numbers of the call before are given again, in one tensor.

NOTE: kernels read and write what is at an address, unchecked: the sizes of all arguments are
looked at here, unless they are like those of a call that was right.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime.argument_encoding import spell_tuple
from dort_rewriter.runtime.ort_values import CallPlan, element_type, empty_address, plan_call
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.runtime.straightline import CallLines
from dort_rewriter.runtime.writing import Kept
from dort_rewriter.signature import Addresses, GraphSignature, InputSlot, Writes


def can_give_addresses(signature: GraphSignature, writes: Writes, addresses: Addresses) -> bool:
    """Whether a call can be written: all arguments are tensors, all results are arguments
    that were written to, and what has an address is floats of fixed sizes, as they come."""
    plan = plan_call(signature)
    if len(plan.batched) < len(signature.inputs) or _places_of_results(signature, writes) is None:
        return False
    results = {p for p in addresses.places if isinstance(p, str)}
    if not results == {*signature.output_names} == {*writes.arguments}:
        return False
    known = {*(p for p in addresses.places if isinstance(p, int)), *writes.arguments.values()}
    return all(_is_plain(signature.inputs[i]) for i in known)


def _is_plain(slot: InputSlot) -> bool:
    fixed = all(isinstance(d, int) for d in slot.shape)
    on_cpu = slot.device is None or slot.device.type == "cpu"
    return slot.dtype is torch.float32 and slot.order is None and fixed and on_cpu


def addressed_constants(
    signature: GraphSignature, plan: CallPlan, writes: Writes, addresses: Addresses
) -> dict[str, Any]:
    """What the generated code refers to, in the place of what other calls refer to."""
    given = [signature.inputs[i] for i in _given(plan, addresses)]
    types = [element_type(s.read_dtype) for s in given if s.read_dtype is not None]
    return {
        "DEVICES": [ort_device(None)] * (1 + len(given)),
        "FED": Kept(),
        "FEEDS": [addresses.input, *(s.name for s in given)],
        "FETCHES": list(addresses.done),
        "FETCH_DEVICES": [ort_device(None)] * len(addresses.done),
        "LENGTH": (len(addresses.places),),
        "NONES": (None,) * (1 + len(given)),
        "TYPES": (np.int64, *types),
        "fit": _fit(signature, plan, addresses),
        "make": _make([signature.inputs[i].shape for i in writes.arguments.values()]),
        "where": _where,
    }


def _given(plan: CallPlan, addresses: Addresses) -> list[int]:
    """The arguments that the session is given as they are."""
    return [i for i in plan.batched if i not in addresses.places]


class AddressedLines(CallLines):
    """Lines of the function ``call`` for a model that is given addresses."""

    def __init__(
        self,
        signature: GraphSignature,
        plan: CallPlan,
        writes: Writes,
        addresses: Addresses,
        pause: bool,
    ) -> None:
        super().__init__(signature, plan, (), writes, pause)
        self.addresses = addresses
        self.picked = _places_of_results(signature, writes)

    def _unpack_and_feed(self, names: list[str]) -> None:
        """Ask first whether all is as in the call before: that takes no step for each argument."""
        self._line("check, shapes = KNOWN.latest")
        self._line("kept = None")
        self._line("if check(*arguments):")
        self._line("    places = array('q', map(data_ptr, arguments))")
        self._line("    kept = FED.take(places, shapes)")
        self._line("quick = writes = kept is not None")
        self._line("if not quick:")
        start = len(self.lines)
        super()._unpack_and_feed(names)
        self.lines[start:] = [f"    {line}" for line in self.lines[start:]]
        self._line("feeds = kept[0]")

    def _feed(self) -> None:
        self._recognize()
        places = spell_tuple(f"p{i}" for i in self.plan.batched)
        self._line(f"places = array('q', {places})")  # compared faster than a tuple
        self._line("writes = as_given and APART(places, shapes)")
        self._line("kept = FED.take(places, shapes) if writes else None")
        self._line("if kept is None:")
        self._line("    fit(shapes)")
        targets = spell_tuple(f"p{i}" for i in self.written.values())
        self._line("    made = None if writes else make()")
        self._line(f"    targets = {targets} if writes else where(made)")
        number = {name: k for k, name in enumerate(self.written)}
        places = spell_tuple(
            f"targets[{number[p]}]" if isinstance(p, str) else f"p{p}"
            for p in self.addresses.places
        )
        self._line(f"    numbers = array('q', {places})")
        given = _given(self.plan, self.addresses)
        fed = {index: k for k, index in enumerate(self.plan.batched)}
        at = spell_tuple(["numbers.buffer_info()[0]", *(f"p{i}" for i in given)])
        shapes = spell_tuple(["LENGTH", *(f"shapes[{fed[i]}]" for i in given)])
        self._line("    feeds = OrtValueVector()")
        self._line(f"    feeds.push_back_batch(NONES, {at}, TYPES, {shapes}, DEVICES)")
        self._line("    kept = feeds, numbers")

    def _write_to_arguments(self) -> None:
        self._line("fetches = OrtValueVector()")

    def _keep(self) -> None:
        self._line("if writes:")
        self._line("    FED.keep(places, shapes, kept)")
        self._line("if quick:")
        self._line("    results = picked(arguments)")
        self._line("    arguments.clear()")
        self._line("    return results")
        self.constants["picked"] = _pick(self.picked or ())
        self.constants["data_ptr"] = torch.Tensor.data_ptr

    def _produced(self) -> None:
        position = {name: i for i, name in enumerate(self.signature.output_names)}
        self._line("if writes:")
        for name, index in self.written.items():
            self._line(f"    y{position[name]} = a{index}")
        self._line("else:")
        self._line(f"    {spell_tuple(f'y{position[n]}' for n in self.written)} = made")


def _places_of_results(signature: GraphSignature, writes: Writes) -> tuple[int, ...] | None:
    """Where the results are among the arguments, if each is one that was written to."""
    slots = signature.outputs
    if any(s.source != "model" or s.views or s.kind != "tensor" for s in slots):
        return None
    return tuple(writes.arguments[s.name] for s in slots)


def _pick(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    if len(places) > 1:
        return operator.itemgetter(*places)
    return lambda arguments: tuple([arguments[i] for i in places])


def _fit(
    signature: GraphSignature, plan: CallPlan, addresses: Addresses
) -> Callable[[Sequence[Sequence[int]]], None]:
    """What refuses arguments of other sizes than those of the graph."""
    slots = [(k, signature.inputs[i]) for k, i in enumerate(plan.batched) if i in addresses.places]
    expected = [(k, slot.name, slot.read_shape) for k, slot in slots]

    def fit(shapes: Sequence[Sequence[int]]) -> None:
        for k, name, shape in expected:
            if tuple(shapes[k]) != shape:
                raise ExecutionError(
                    f"Input {name!r} has the sizes {tuple(shapes[k])}, the graph was compiled for "
                    f"{shape}."
                )

    return fit


def _make(shapes: Sequence[Sequence[Any]]) -> Callable[[], tuple[torch.Tensor, ...]]:
    """What makes tensors for results that cannot be written to arguments."""
    # NOTE: the kernel writes floats, whatever the defaults of torch are.
    empty = functools.partial(torch.empty, dtype=torch.float32, device="cpu")
    return lambda: tuple([empty(shape) for shape in shapes])


def _where(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return tuple([t.data_ptr() or empty_address(t, "a result") for t in tensors])
