"""Which arguments of a block a session may write to: what the graph says, proved on the model.

And whether it is given their addresses alone: where it does nothing else than to write to them.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from dort_rewriter.capture.updates import updates_of
from dort_rewriter.kernels.loading import address_key
from dort_rewriter.optimize.addresses import give_addresses
from dort_rewriter.optimize.in_place import checks_of, written_in_place
from dort_rewriter.plan.recipe import ExportedBlock
from dort_rewriter.runtime.addressed_call import can_give_addresses
from dort_rewriter.signature import Addresses, Writes

__all__ = ["find_addresses", "find_mutated_inputs"]


def find_mutated_inputs(block: ExportedBlock) -> Writes:
    """The results that may be written to the memory of the arguments they are new values of.

    NOTE: to be asked when the session is built: its model may have got casts before.
    """
    updates = updates_of(block.graph_module.graph)
    if not updates or not isinstance(block.model, ir.Model):
        return Writes()
    wanted = _candidates(block, updates)
    signature, graph = block.signature, block.model.graph
    names = {o: str(signature.inputs[i].name) for o, i in wanted.items()}
    found = written_in_place(graph, names)
    return Writes(
        arguments={o: wanted[o] for o in signature.output_names if o in found},
        checks=checks_of(graph),
    )


def find_addresses(block: ExportedBlock) -> tuple[ir.Model, Addresses] | None:
    """The model of a block that is given addresses, if it can be; and what it is given.

    NOTE: it has no node but ours, so that no provider asks for casts in it.
    """
    signature, writes = block.signature, find_mutated_inputs(block)
    if not isinstance(block.model, ir.Model) or not writes.arguments:
        return None
    written = {o: str(signature.inputs[i].name) for o, i in writes.arguments.items()}
    found = give_addresses(block.model, written, address_key())
    if found is None:
        return None
    arguments = {slot.name: i for i, slot in enumerate(signature.inputs) if slot.name is not None}
    places = tuple(p if p in written else arguments[p] for p in found.places)
    addresses = Addresses(input=found.input, places=places, done=found.done)
    return (found.model, addresses) if can_give_addresses(signature, writes, addresses) else None


def _candidates(block: ExportedBlock, updates: dict[int, int]) -> dict[str, int]:
    """Outputs of the model that are the new value of an argument, and nothing else; and the
    argument, if that is not copied to another once the session has run."""
    signature = block.signature
    made = Counter(s.name for s in signature.outputs if s.source == "model")
    new = [signature.outputs[position] for position in updates]
    copied = {s.index for s in new if s.source == "input"}
    again = {s.index for s in signature.outputs if s.source == "output"}
    found = {}
    for position, index in updates.items():
        result, argument = signature.outputs[position], signature.inputs[index]
        if result.source != "model" or result.views or made[result.name] > 1:
            continue
        if index in copied or position in again or argument.kind != "tensor":
            continue
        if argument.name is not None and argument.order == block.computed[result.name].order:
            found[result.name] = index
    twice = Counter(found.values())
    return {name: index for name, index in found.items() if twice[index] == 1}
