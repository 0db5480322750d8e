"""Files of optimum as other exporters write them: what they take and give, in the order of a call.

optimum exports models of transformers for the tasks that it knows. It chooses inputs and outputs
itself: some have defaults in torch, some results of a call are in no file.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch.utils._pytree import tree_leaves

from dort_rewriter.errors import ExecutionError, ExportError
from dort_rewriter.runtime.ort_values import tensor_to_array
from dort_rewriter.tools.command import in_a_line


@dataclass(frozen=True)
class ChosenResults:
    """A file that gives some of the results of a model."""

    proto: onnx.ModelProto
    places: tuple[int, ...]
    """Which of the tensors that the model returns, in order."""
    left_out: tuple[str, ...]
    """The names of the others."""


def optimum_is_installed() -> bool:
    """Whether optimum is here, with its exporter."""
    try:
        import optimum.exporters.onnx  # noqa: F401
    except ImportError:
        return False
    return True


def export_with_optimum(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], opset: int, shapes: Any
) -> ChosenResults:
    """What optimum makes of a model of transformers; which sizes may vary it says itself."""
    try:
        from optimum.exporters.onnx import onnx_export_from_model
        from optimum.exporters.tasks import TasksManager
    except ImportError as error:
        raise ExecutionError(
            f"optimum is not there ({error}): pip install optimum-onnx."
        ) from None  # the reason of a row is what is behind an error
    if not hasattr(model, "config"):
        raise ExportError(f"optimum takes models of transformers, not {type(model).__name__}.")
    try:
        task = TasksManager.infer_task_from_model(model)
    except (ValueError, KeyError) as error:
        raise ExportError(
            f"optimum knows no task of {type(model).__name__}: {in_a_line(error)}"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        onnx_export_from_model(
            model,
            output=folder,
            opset=opset,
            monolith=True,
            do_validation=False,
            no_post_process=True,
            task=task,
        )
        files = sorted(Path(folder).glob("*.onnx"))
        if len(files) != 1:
            names = ", ".join(file.name for file in files)
            raise ExportError(f"optimum makes several files of the model: {names}.")
        return as_called(onnx.load(files[0]), model, args, kwargs)


def as_called(
    proto: onnx.ModelProto, model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ChosenResults:
    """A file whose inputs and outputs have the names of arguments and results, in their order."""
    names = [*inspect.signature(model.forward).parameters]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    _order_inputs(proto, {n: v for n, v in given.items() if isinstance(v, torch.Tensor)})
    results = [*_named_results(model(*args, **kwargs))]
    left = list(proto.graph.output)
    found: dict[int, Any] = {}
    for is_same in (_has_name, _has_shape):
        for place, result in enumerate(results):
            output = next((o for o in left if is_same(o, *result)), None)
            if place not in found and output is not None:
                found[place] = output
                left.remove(output)
    if not found:
        shown = ", ".join(o.name for o in proto.graph.output)
        raise ExportError(f"No result of {type(model).__name__} is one of the file: {shown}.")
    places = tuple(sorted(found))
    outputs = [found[place] for place in places]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    others = tuple(name for i, (name, _) in enumerate(results) if i not in found)
    return ChosenResults(proto, places, others)


def _named_results(result: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a model returns, in order, under the names of what holds them."""
    parts = result.items() if isinstance(result, Mapping) else [("output", result)]
    for name, part in parts:
        tensors = [leaf for leaf in tree_leaves(part) if isinstance(leaf, torch.Tensor)]
        for i, tensor in enumerate(tensors):
            yield name if part is tensor else f"{name}.{i}", tensor


def _order_inputs(proto: onnx.ModelProto, given: Mapping[str, torch.Tensor]) -> None:
    """Have a file take the tensors of a call in their order, and hold what has a default."""
    taken = {i.name: i for i in proto.graph.input}
    for name in sorted(taken.keys() - given.keys()):
        if (default := _DEFAULTS.get(name)) is None or "input_ids" not in given:
            raise ExportError(f"The file takes {name!r}, which is no tensor of the call.")
        value = default(tensor_to_array(given["input_ids"]))
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    inputs = [taken.get(name) or _unused_input(name, tensor) for name, tensor in given.items()]
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)


_DEFAULTS: dict[str, Callable[[Any], Any]] = {
    "attention_mask": np.ones_like,
    "token_type_ids": np.zeros_like,
    "position_ids": lambda ids: np.broadcast_to(np.arange(ids.shape[1]), ids.shape).copy(),
}
"""What models of transformers take for an argument that is not given, of the tokens."""


def _unused_input(name: str, tensor: torch.Tensor) -> onnx.ValueInfoProto:
    """An input that a file does not read."""
    element = helper.np_dtype_to_tensor_dtype(tensor_to_array(tensor).dtype)
    return helper.make_tensor_value_info(name, element, list(tensor.shape))


def _has_name(output: onnx.ValueInfoProto, name: str, value: torch.Tensor) -> bool:
    return output.name == name


def _has_shape(output: onnx.ValueInfoProto, name: str, value: torch.Tensor) -> bool:
    dims = output.type.tensor_type.shape.dim
    return len(dims) == value.dim() and all(
        not d.HasField("dim_value") or d.dim_value == size
        for d, size in zip(dims, value.shape, strict=True)
    )
