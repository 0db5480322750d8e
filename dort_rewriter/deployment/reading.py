"""What the description of a saved model says, as records; its tensors, of files or modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from dort_rewriter.deployment.folder import StoredTensor, map_tensors
from dort_rewriter.deployment.interface import Interface, Parameter, Relation, TensorSpec
from dort_rewriter.deployment.notation import read_dtype, read_signature, read_size
from dort_rewriter.deployment.steps import StepPlan
from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.signature import GraphSignature

__all__ = ["read_interface", "read_plan", "state_of", "tensors_by_name"]


def read_interface(content: Mapping[str, Any], inputs: int) -> Interface:
    """The way to call a graph with so many inputs, out of a description."""
    data = content["arguments"]
    tensors = []
    for t in data["tensors"]:
        strides = t["strides"]
        spec = TensorSpec(
            name=str(t["name"]),
            dtype=read_dtype(t["dtype"]),
            device=torch.device(str(t["device"])),
            shape=tuple(None if d is None else int(d) for d in t["shape"]),
            dense=bool(t["dense"]),
            strides=None if strides is None else tuple(read_size(s, inputs) for s in strides),
            shared=bool(t["shared"]),
        )
        tensors.append(spec)
    return Interface(
        parameters=tuple(Parameter(str(n), str(k), d) for n, k, d in data["parameters"]),
        trees={str(name): tree for name, tree in data["trees"]},
        tensors=tuple(tensors),
        inputs=tuple(
            (str(k), read_size(v, inputs) if k == "size" else int(v)) for k, v in data["inputs"]
        ),
        relations=tuple(
            Relation(str(op), read_size(a, inputs), read_size(b, inputs))
            for op, a, b in data["relations"]
        ),
        same=tuple((int(a), int(b)) for a, b in data["same"]),
        apart=tuple(map(int, data["apart"])),
    )


def read_plan(backward: Mapping[str, Any] | None, forward: GraphSignature) -> StepPlan | None:
    """How the graph of the gradients belongs to a forward graph, None where there is none.

    Raises :class:`ValueError` when it does not.
    """
    if backward is None:
        return None
    data, signature = backward["plan"], read_signature(backward["signature"])
    plan = StepPlan(
        updates=tuple(map(int, data["updates"])),
        results=int(data["results"]),
        numbers=int(data["numbers"]),
        derived=tuple(map(int, data["derived"])),
        orders=tuple(tuple(map(int, order)) for order in data["orders"]),
        wanted=tuple(map(int, data["wanted"])),
    )
    needed = len(forward.outputs) - len(plan.updates) - plan.results
    given = range(len(forward.inputs))
    fits = (
        0 <= plan.numbers <= needed
        and plan.results >= 0
        and all(i in given for i in (*plan.updates, *plan.wanted))
        and all(i in range(plan.results) for i in plan.derived)
        and len(plan.orders) == len(plan.derived)
        and all(sorted(order) == list(range(len(order))) for order in plan.orders)
        and len(signature.inputs) == needed + len(plan.derived)
        and len(signature.outputs) == len(given)
    )
    if not fits:
        raise ValueError("its two graphs do not belong together")
    return plan


def tensors_by_name(content: Mapping[str, Any], model: Any, folder: Path) -> dict[str, Any]:
    """The tensors of a module by name, where a saved model refers to them."""
    if content.get("weights") != "reference":
        if model is not None:
            raise OptionError(f"{folder} has its own weights: call load(path) without a model.")
        return {}
    if model is None:
        raise OptionError(
            f'{folder} was saved with weights="reference": give the module, load(path, model).'
        )
    if not isinstance(model, torch.nn.Module):
        return dict(model)
    model = getattr(model, "_orig_mod", model)
    if model.training != content["training"]:
        mode = "train()" if content["training"] else "eval()"
        raise ExecutionError(f"The model was saved in another mode: call model.{mode} first.")
    named = dict(model.named_parameters(remove_duplicate=False))
    return {**named, **dict(model.named_buffers(remove_duplicate=False))}


def state_of(
    folder: Path,
    content: Mapping[str, Any],
    stored: Sequence[StoredTensor],
    named: Mapping[str, Any],
    *,
    check: bool,
) -> list[torch.Tensor]:
    """The tensors that a graph takes besides its arguments: out of the file, or of a module."""
    inside = [t for t in stored if t.offset is not None]
    mapped: list[torch.Tensor] = []
    if any(t.bytes for t in inside):
        mapped = map_tensors(folder, content["files"]["tensors"], inside, check=check)
    elif inside:
        mapped = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in inside]
    from_file = iter(mapped)
    return [next(from_file) if t.offset is not None else _referred(t, named) for t in stored]


def _referred(wanted: StoredTensor, named: Mapping[str, Any]) -> torch.Tensor:
    tensor = named.get(wanted.name)
    if not isinstance(tensor, torch.Tensor):
        raise ExecutionError(f"The model has no {wanted.kind} {wanted.name!r}, which was saved.")
    given = (tensor.dtype, tuple(tensor.shape), tensor.device)
    expected = (wanted.dtype, wanted.shape, wanted.device)
    if given != expected:
        raise ExecutionError(
            f"{wanted.name!r} of the model is {_spell_tensor(*given)}; it was "
            f"{_spell_tensor(*expected)} when it was saved."
        )
    return tensor


def _spell_tensor(dtype: torch.dtype, shape: tuple[int, ...], device: torch.device) -> str:
    return f"{str(dtype).removeprefix('torch.')} of {shape} on {device}"
