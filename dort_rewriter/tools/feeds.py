"""The inputs of a model, and the same inputs for another model of the same computation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
import torch

from dort_rewriter.errors import OptionError
from dort_rewriter.runtime.ort_values import array_to_tensor, tensor_to_array
from dort_rewriter.tools.models import AnyModel, load_model

Shape = tuple[int | str | None, ...]


class ModelInput(NamedTuple):
    """What a model reads: given at each call (INPUT), or part of it (INIT)."""

    kind: str
    name: str
    type: ir.DataType | None
    """The ONNX element type; None if the model does not say."""
    shape: Shape | None
    """Sizes, and names of sizes; None if the rank is not known."""

    def __str__(self) -> str:
        kind = "?" if self.type is None else self.type.name
        return f"{self.kind} {self.name}: {kind}{'' if self.shape is None else list(self.shape)}"


def inputs_from_onnx_model(model: AnyModel, init: bool = False) -> list[ModelInput]:
    """The inputs of a model in their order; with ``init``, its initializers after them.

    An initializer that is listed among the inputs is an initializer.
    """
    graph = load_model(model).graph
    inputs = [_describe("INPUT", v) for v in graph.inputs if v.name not in graph.initializers]
    return inputs + [_describe("INIT", v) for v in graph.initializers.values() if init]


def _describe(kind: str, value: ir.Value) -> ModelInput:
    tensor = value.const_value
    shape = value.shape if tensor is None else tensor.shape
    dims: Shape | None = None
    if shape is not None:
        dims = tuple(dim if isinstance(dim, int) else dim.value for dim in shape)
    return ModelInput(
        kind, value.name or "", value.dtype if tensor is None else tensor.dtype, dims
    )


def build_matching_inputs(
    model: AnyModel, feeds: Mapping[str, Any], other: AnyModel
) -> dict[str, Any]:
    """The inputs of ``other`` that make it compute what ``model`` computes on ``feeds``.

    What one model takes as an input may be an initializer of the other. Inputs of the same name
    are the same; the rest is matched by element type and shape, in the order of the models
    (inputs before initializers), as long as both have as many of each; where that leaves a
    choice, an input stands for an input and an initializer for an initializer.

    Args:
        model: the model whose inputs are known.
        feeds: its inputs by name, as tensors or arrays; the result is made of the same.
        other: the model to feed.

    Raises:
        OptionError: an input of ``other`` has no counterpart, or too many.

    """
    known = _known_values(load_model(model), feeds)
    kinds = {i.name: i.kind for i in inputs_from_onnx_model(model, init=True)}
    wanted = inputs_from_onnx_model(other)
    matched = {
        w.name: known.pop(w.name) for w in wanted if w.name in known and _fits(w, known[w.name])
    }
    waiting = [w for w in wanted if w.name not in matched]
    used: set[str] = set()
    for want in waiting:
        alike = [w for w in waiting if w.type == want.type and w.shape == want.shape]
        candidates = [name for name, value in known.items() if _fits(want, value)]
        # A size without a number takes any: among too many, inputs go to inputs.
        if len(candidates) > len(alike):
            candidates = [name for name in candidates if kinds[name] == want.kind]
        found = candidates[alike.index(want)] if len(candidates) == len(alike) else None
        if found is None or found in used:
            raise OptionError(
                f"{want} of the second model has {len(candidates)} counterparts in the first "
                f"({', '.join(candidates) or 'none'}), for {len(alike)} inputs alike: rename the "
                "inputs so that they match by name."
            )
        used.add(found)
        matched[want.name] = known[found]
    as_tensors = any(isinstance(value, torch.Tensor) for value in feeds.values())
    make = array_to_tensor if as_tensors else np.asarray
    return {w.name: make(matched[w.name]) for w in wanted}


def _known_values(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a model, then its initializers, as arrays by name."""
    names = [i.name for i in inputs_from_onnx_model(model)]
    if missing := [name for name in names if name not in feeds]:
        raise OptionError(f"The first model also reads {missing}: give them in feeds.")
    if unknown := [name for name in feeds if name not in {*names, *model.graph.initializers}]:
        raise OptionError(f"The first model does not read {unknown}; it reads {names}.")
    known = {name: _as_array(feeds[name]) for name in names}
    for name, value in model.graph.initializers.items():
        if name in feeds:
            known[name] = _as_array(feeds[name])
        elif value.const_value is not None:
            known[name] = value.const_value.numpy()
    return known


def _as_array(value: Any) -> Any:
    return tensor_to_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)


def _fits(want: ModelInput, array: Any) -> bool:
    """Whether an array can be this input; sizes that are only named take any number."""
    if want.type is not None and ir.DataType.from_numpy(array.dtype) != want.type:
        return False
    if want.shape is None:
        return True
    return len(want.shape) == array.ndim and all(
        not isinstance(dim, int) or dim == size
        for dim, size in zip(want.shape, array.shape, strict=True)
    )
