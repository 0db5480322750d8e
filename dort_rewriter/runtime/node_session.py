"""One node in a session of onnxruntime of its own, to see every intermediate result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx
from onnx import helper

from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.ort_module import bindings, load_onnxruntime
from dort_rewriter.runtime.ort_values import (
    array_to_tensor,
    capsule_to_tensor,
    push,
    tensor_to_array,
)
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.runtime.session import Session, create_session, session_options


class _Slow(Protocol):
    def run(self, output_names: None, feeds: Mapping[str, Any]) -> Sequence[Any]: ...


class NodeSession:
    """Runs a node in onnxruntime; the session is built when the types of its inputs are known.

    NOTE: onnxruntime takes numpy's own types only: a node that reads anything else (bfloat16,
    a sequence) runs in what ``slow`` makes, unless it is of our own: nobody else has these.
    """

    def __init__(
        self, node: onnx.NodeProto, model: onnx.ModelProto, slow: Callable[[], _Slow]
    ) -> None:
        self.node = node
        self.model = model
        self.slow = slow
        self.reads = tuple(dict.fromkeys(n for n in _reads(node) if n))
        self.session: Session | None = None

    def run(self, output_names: None, feeds: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs of the node; None for those it leaves out."""
        given = {name: feeds[name] for name in self.reads if name in feeds}
        plain = all(_is_plain(v) for v in given.values())
        if not plain and self.node.domain != OWN_DOMAIN:
            return self.slow().run(None, feeds)
        if self.session is None:
            self.session = self._build(given)
        wanted = [name for name in self.node.output if name]
        plain = plain and "tensor(bfloat16)" not in self.session.output_types.values()
        results = self.session.ort.run(wanted, given) if plain else self._run(wanted, given)
        values = dict(zip(wanted, results, strict=True))
        return [values.get(name) for name in self.node.output]

    def _run(self, wanted: Sequence[str], given: Mapping[str, Any]) -> list[Any]:
        """The results of a node some of whose types numpy lacks."""
        assert self.session is not None
        feeds, fetches = bindings().OrtValueVector(), bindings().OrtValueVector()
        for value in given.values():
            push(feeds, array_to_tensor(value))
        options, cpu = load_onnxruntime().RunOptions(), ort_device(None)
        devices = [cpu] * len(wanted)
        run = self.session.ort.run_with_ortvaluevector
        run(options, list(given), feeds, list(wanted), fetches, devices)
        return [tensor_to_array(capsule_to_tensor(value.to_dlpack())) for value in fetches]

    def _build(self, given: Mapping[str, Any]) -> Session:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), None)
            for name, v in given.items()
        ]
        # Some operators have results of types that nothing tells but the model.
        known = {v.name: v for v in (*self.model.graph.value_info, *self.model.graph.output)}
        outputs = [
            _of_any_size(known.get(name, onnx.ValueInfoProto(name=name)))
            for name in self.node.output
            if name
        ]
        graph = helper.make_graph([self.node], "node", inputs, outputs)
        one = helper.make_model(
            graph,
            ir_version=self.model.ir_version,
            opset_imports=list(self.model.opset_import),
            functions=list(self.model.functions),
        )
        return create_session(one, options=session_options(optimization_level="disable"))


def _of_any_size(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The type of a result, without its sizes."""
    kept = onnx.ValueInfoProto(name=value.name)
    if value.type.HasField("tensor_type"):
        kept.type.tensor_type.elem_type = value.type.tensor_type.elem_type
    return kept


def _is_plain(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.type.__module__ == "numpy"


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """Yield what a node reads, and what its subgraphs do."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
