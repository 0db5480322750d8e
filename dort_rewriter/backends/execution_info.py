"""What users of torch's ``OrtBackend`` read about its sessions, under the names they know.

``OrtBackend.run`` of torch is here too: one session, called on tensors without its graph. The runs
of compiled graphs do not pass here (:mod:`dort_rewriter.runtime.executor`): this is for programs
that hold a session and what ``ExecutionInfo`` says about it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import ItemsView, KeysView, Sequence, ValuesView
from typing import Any

import onnx
import torch
from onnx import helper

from dort_rewriter.dtypes import to_onnx_type, to_torch
from dort_rewriter.ort_module import bindings, load_onnxruntime
from dort_rewriter.plan.recipe import BuiltBlock, Runner
from dort_rewriter.runtime.ort_values import dense, from_ort, to_ort
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.signature import InputSlot, OutputSlot, Scalar, describe_value


class ExecutionInfo:
    """One session and its interface."""

    def __init__(self, built: BuiltBlock) -> None:
        # NOTE: no reference to the graph: the table that holds this is keyed by it, weakly.
        self._session = built.session
        self.signature = built.signature
        self.executor: Runner = built.runner
        self.input_names = built.signature.input_names
        self.output_names = built.signature.output_names
        self._made = {s.name: s for s in built.signature.outputs if s.source == "model"}

    def is_supported(self, *args: object) -> bool:
        """Whether the session takes arguments like these."""
        return self.signature.accepts(args)

    @property
    def session(self) -> object:
        """The ``onnxruntime.InferenceSession``; None when the graph computes nothing."""
        return None if self._session is None else self._session.ort

    @functools.cached_property
    def input_devices(self) -> tuple[Any, ...]:
        """Where the inputs of the model are, as onnxruntime's ``OrtDevice``."""
        return tuple(ort_device(s.device) for s in self.signature.inputs if s.name is not None)

    @functools.cached_property
    def output_devices(self) -> tuple[Any, ...]:
        """Where the outputs of the model are, as onnxruntime's ``OrtDevice``."""
        return tuple(ort_device(self._made[name].device) for name in self.output_names)

    @functools.cached_property
    def input_value_infos(self) -> tuple[onnx.ValueInfoProto, ...]:
        """The inputs of the model with their types and shapes."""
        return tuple(_value_info(s) for s in self.signature.inputs if s.name is not None)

    @functools.cached_property
    def output_value_infos(self) -> tuple[onnx.ValueInfoProto, ...]:
        """The outputs of the model with their types and shapes."""
        return tuple(_value_info(self._made[name]) for name in self.output_names)


def _value_info(slot: InputSlot | OutputSlot) -> onnx.ValueInfoProto:
    dtype, shape = (
        (slot.read_dtype, slot.read_shape)
        if isinstance(slot, InputSlot)
        else (slot.made_dtype, slot.made_shape)
    )
    assert dtype is not None
    return helper.make_tensor_value_info(slot.name or "", int(to_onnx_type(dtype)), list(shape))


class ByGraph(weakref.WeakKeyDictionary[torch.fx.GraphModule, "list[ExecutionInfo]"]):
    """Sessions by graph; an entry goes when its graph does. Views have a length, as a dict's."""

    def keys(self) -> KeysView[torch.fx.GraphModule]:  # type: ignore[override]
        """The graphs."""
        return KeysView(self)

    def values(self) -> ValuesView[list[ExecutionInfo]]:  # type: ignore[override]
        """The sessions of each graph."""
        return ValuesView(self)

    def items(self) -> ItemsView[torch.fx.GraphModule, Any]:  # type: ignore[override]
        """The graphs with their sessions."""
        return ItemsView(self)


class ExecutionInfoTable:
    """The sessions of a backend by graph."""

    def __init__(self) -> None:
        self.execution_info_per_graph_module = ByGraph()

    def search_reusable_session_execution_info(
        self, graph_module: torch.fx.GraphModule, *args: object
    ) -> ExecutionInfo | None:
        """The session of a graph that takes arguments like these, if there is one."""
        known = self.execution_info_per_graph_module.get(graph_module, [])
        return next((info for info in known if info.is_supported(*args)), None)

    def cache_session_execution_info(
        self, graph_module: torch.fx.GraphModule, info: ExecutionInfo
    ) -> None:
        """Add a session of a graph."""
        self.execution_info_per_graph_module.setdefault(graph_module, []).append(info)

    def clear(self) -> None:
        """Forget every session."""
        self.execution_info_per_graph_module.clear()


def run_session(
    sess: Any,
    input_names: Sequence[str],
    inputs: Sequence[torch.Tensor | Scalar],
    input_devices: Sequence[Any],
    output_names: Sequence[str],
    outputs: Sequence[Any],
    output_devices: Sequence[Any],
    preallocate_output: bool,
    input_value_infos: Sequence[onnx.ValueInfoProto],
    normalized_prim_outputs: Sequence[Any],
) -> tuple[Any, ...]:
    """Run a session; return its results, as numbers where the examples of them are numbers.

    The examples, ``normalized_prim_outputs``, may be fake tensors; with ``preallocate_output``
    torch makes tensors like ``outputs`` for the session to write to, if all are tensors.
    """
    given = [_as_input(v, i) for v, i in zip(inputs, input_value_infos, strict=True)]
    for device in {t.device for t in given if t.is_cuda}:
        torch.cuda.synchronize(device)  # the session reads on a stream of its own
    feeds, fetches = to_ort(given), bindings().OrtValueVector()
    prepared: list[torch.Tensor] = []
    if preallocate_output and all(isinstance(o, torch.Tensor) for o in outputs):
        # NOTE: made again also where these are real tensors: an earlier run may have given them.
        prepared = [torch.empty(o.shape, dtype=o.dtype, device=o.device) for o in outputs]
        fetches = to_ort(prepared)
    sess.run_with_ortvaluevector(
        load_onnxruntime().RunOptions(),
        list(input_names),
        feeds,
        list(output_names),
        fetches,
        list(output_devices),
    )
    expected = [describe_value(o) for o in normalized_prim_outputs]
    results = prepared or from_ort(fetches, [e["dtype"] for e in expected])
    return tuple(
        result if wanted["kind"] == "tensor" else result.item()
        for result, wanted in zip(results, expected, strict=True)
    )


def _as_input(value: torch.Tensor | Scalar, info: onnx.ValueInfoProto) -> torch.Tensor:
    dtype = to_torch(info.type.tensor_type.elem_type)
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=dtype)
    return dense(value, info.name, dtype, value.device)
