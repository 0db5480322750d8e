"""Running a model one node after the other, for debugging: on ONNX's reference evaluator, or with
a session of onnxruntime for each node.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from dort_rewriter.errors import ExecutionError
from dort_rewriter.graph.schemas import qualified
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.ort_module import bindings, load_onnxruntime
from dort_rewriter.runtime.ort_values import (
    array_to_tensor,
    as_pairs,
    capsule_to_tensor,
    plan_call,
    push,
    tensor_to_array,
)
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.runtime.session import Session, create_session, session_options
from dort_rewriter.runtime.straightline import CallLines
from dort_rewriter.signature import GraphSignature

Array = Any
"""A numpy array, or a list of them for a sequence."""

OnResult = Callable[[str, Array, onnx.NodeProto | None], None]
"""Called with each result as soon as it exists, and the node that made it (None for inputs and
initializers). What it raises stops the run."""


Engine = Literal["reference", "onnxruntime"]


class NodeRunner(Protocol):
    """Runs one node, all results known so far being given by name."""

    def run(self, output_names: None, feeds: Mapping[str, Array]) -> Sequence[Array]:
        """The outputs of the node, those it leaves out too."""


class NodeSession:
    """Runs a node in onnxruntime; the session is built when the types of its inputs are known.

    NOTE: onnxruntime takes numpy's own types only: a node that reads anything else (bfloat16,
    a sequence) runs in what ``slow`` makes, unless it is of our own, which only onnxruntime runs.
    """

    def __init__(
        self, node: onnx.NodeProto, model: onnx.ModelProto, slow: Callable[[], NodeRunner]
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
        # Some operators have results of types that only the model knows.
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


class ReferenceModel:
    """A model whose nodes run one at a time; ``new_ops`` adds implementations to ONNX's own."""

    def __init__(
        self,
        model: onnx.ModelProto | ir.Model,
        new_ops: Sequence[type[Any]] = (),
        engine: Engine = "reference",
    ) -> None:
        proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
        self.model = proto
        opsets = {o.domain: o.version for o in proto.opset_import}
        self.constants = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
        if engine == "onnxruntime":
            self.steps: list[tuple[onnx.NodeProto, NodeRunner]] = [
                (n, NodeSession(n, proto, functools.partial(self._evaluator, n, opsets, [])))
                for n in proto.graph.node
            ]
        else:
            self.steps = [(n, self._evaluator(n, opsets, list(new_ops))) for n in proto.graph.node]

    def _evaluator(
        self, node: onnx.NodeProto, opsets: dict[str, int], new_ops: list[type[Any]]
    ) -> ReferenceEvaluator:
        try:
            return ReferenceEvaluator(
                node, opsets=opsets, functions=list(self.model.functions), new_ops=new_ops or None
            )
        except (NotImplementedError, RuntimeError) as error:
            raise ExecutionError(
                f"ONNX's reference evaluator has no {describe_node(node)}: give an "
                f"implementation in new_ops, or run the model with onnxruntime. {error}"
            ) from error

    def run(
        self, feeds: Mapping[str, Array], on_result: OnResult | None = None
    ) -> dict[str, Array]:
        """Every result by name, the intermediate ones too."""
        results: dict[str, Array] = {**self.constants, **feeds}
        if on_result is not None:
            for name, value in results.items():
                on_result(name, value, None)
        for node, evaluator in self.steps:
            try:
                # Everything known is given, for the subgraphs that read it by name.
                values = evaluator.run(None, results)
            except Exception as error:  # numpy and the evaluator raise anything
                raise ExecutionError(
                    f"The model, run by nodes, failed at {node.name!r}, "
                    f"{describe_node(node)}: {error}"
                ) from error
            for name, value in zip(node.output, values, strict=True):
                if not name:
                    continue
                results[name] = value
                if on_result is not None:
                    on_result(name, value, node)
        return results


class ReferenceExecutor:
    """The same calls as an :class:`~dort_rewriter.runtime.executor.Executor`, on numpy."""

    def __init__(
        self,
        model: onnx.ModelProto | ir.Model,
        signature: GraphSignature,
        *,
        on_result: OnResult | None = None,
        new_ops: Sequence[type[Any]] = (),
        engine: Engine = "reference",
    ) -> None:
        self.model = ReferenceModel(model, new_ops, engine)
        self.signature = signature
        self.on_result = on_result
        source = CallLines(signature, plan_call(signature)).write_assemble()
        self._assemble = source.function("assemble", {})

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the graph node by node."""
        results = self.model.run(self.feeds(arguments), self.on_result)
        slots = {s.name: s for s in self.signature.outputs if s.source == "model"}
        produced = []
        for name in self.signature.output_names:
            tensor = array_to_tensor(results[name])
            device = slots[name].device
            produced.append(tensor if device is None else tensor.to(device))
        return self._assemble(arguments, produced)

    def feeds(self, arguments: Iterable[Any]) -> dict[str, Array]:
        """The model's inputs by name, from the arguments of a call."""
        feeds: dict[str, Array] = {}
        for slot, argument in zip(self.signature.inputs, arguments, strict=True):
            if slot.name is None or slot.dtype is None:
                continue
            tensor = argument if slot.kind == "tensor" else torch.tensor(argument)
            if tensor.dtype is not slot.dtype:
                raise ExecutionError(
                    f"Input {slot.name!r} is {tensor.dtype}, the graph was compiled for "
                    f"{slot.dtype}."
                )
            if slot.is_complex:
                tensor = as_pairs(tensor, slot.name, slot.dtype)
            if slot.read_order is not None:
                tensor = tensor.permute(slot.read_order)
            feeds[slot.name] = tensor_to_array(tensor)
        return feeds


def describe_node(node: onnx.NodeProto) -> str:
    """A node as a call: ``Add(x, y)``."""
    return f"{qualified(node.domain, node.op_type)}({', '.join(node.input)})"
