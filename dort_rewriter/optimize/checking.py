"""Rules checked as they are applied: what they write has the types and shapes they claim.

Each node that an application writes, and each that reads what it replaced, passes the shape
inference of ONNX; after each turn of the rules and each pass, the order of the nodes is looked at
and a session is made. An error names the rule. NOTE: this is for tests and for authors of rules;
it takes several times as long as the rules themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx
import onnx_ir as ir
from onnx.shape_inference import InferenceError, infer_node_outputs

from dort_rewriter.errors import ExecutionError, OptimizeError

MakeSession = Callable[[ir.Model], object]
"""Makes a session of a model, and raises :class:`ExecutionError` when there can be none."""

_DATA = 1024
"""Elements of a constant that the shape inference may look at: shapes, axes, pads."""


class RuleCheck:
    """Checks one model while it is changed."""

    def __init__(self, model: ir.Model, make_session: MakeSession | None) -> None:
        self.model = model
        self._make_session: MakeSession | None = None
        self.whole("The model, before any rule,")
        if make_session is not None:
            try:
                make_session(model)
            except ExecutionError:  # types without a kernel get their casts later
                return
            self._make_session = make_session

    def applied(self, rule: str, root: str, nodes: Iterable[ir.Node]) -> None:
        """Check the nodes that one application of a rule has written, or that read its results."""
        for node in dict.fromkeys(nodes):
            if node.graph is self.model.graph and (misfit := self._misfit(node)) is not None:
                raise OptimizeError(f"{rule}, applied at {root}, makes an invalid model: {misfit}")

    def whole(self, culprit: str) -> None:
        """Check all nodes, their order, and that there can be a session if there could be one."""
        graph = self.model.graph
        to_come = set(graph)
        for node in graph:
            to_come.discard(node)
            early = [v.name for v in node.inputs if v is not None and v.producer() in to_come]
            if early or node in {v.producer() for v in node.inputs if v is not None}:
                raise OptimizeError(
                    f"{culprit} is invalid: {describe(node)} reads {early} before it is computed."
                )
            if (misfit := self._misfit(node)) is not None:
                raise OptimizeError(f"{culprit} is invalid: {misfit}")
        if self._make_session is None:
            return
        try:
            self._make_session(self.model)
        except ExecutionError as error:
            raise OptimizeError(f"{culprit} is invalid: {error}") from error

    def _misfit(self, node: ir.Node) -> str | None:
        """How a node differs from what ONNX infers of it."""
        opset = self.model.graph.opset_imports.get("")
        if node.domain or opset is None or not onnx.defs.has(node.op_type, opset):
            return None  # of onnxruntime, of our own, a function: the session knows it
        read = [v for v in node.inputs if v is not None]
        has_graph = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
        if has_graph or any(v.type is None for v in read):
            return None
        try:
            inferred = infer_node_outputs(
                onnx.defs.get_schema(node.op_type, opset),
                ir.serde.serialize_node(node),
                {v.name or "": ir.serde.serialize_value(v).type for v in read},
                {v.name or "": data for v in read if (data := _data(v)) is not None},
                opset_imports=[onnx.helper.make_opsetid("", opset)],
            )
        except (InferenceError, onnx.checker.ValidationError) as error:
            return f"{describe(node)}: {error}"
        for value in node.outputs:
            found = inferred.get(value.name or "")
            if found is not None and (difference := _differs(value, found)):
                return f"{describe(node)} gives {value.name} {difference}"
        return None


def describe(node: ir.Node) -> str:
    """Name a node, what it reads, and where it comes from."""
    read = ", ".join(
        f"{v.name}: {v.type}{v.shape}" if v is not None else "nothing" for v in node.inputs
    )
    origin = {k: node.metadata_props[k] for k in ("rule", "source") if k in node.metadata_props}
    return f"{node.op_type} {node.name!r} of ({read}) {origin or ''}"


def _data(value: ir.Value) -> onnx.TensorProto | None:
    tensor = None if value.is_graph_input() else value.const_value
    if tensor is None or tensor.size > _DATA or tensor.dtype == ir.DataType.STRING:
        return None
    return ir.serde.serialize_tensor(tensor)


def _differs(value: ir.Value, inferred: onnx.TypeProto) -> str:
    """Say how what is claimed of a value differs from what ONNX infers, if it does."""
    found = inferred.tensor_type
    if value.dtype is not None and found.elem_type and found.elem_type != value.dtype:
        return f"the type {ir.DataType(found.elem_type).name}, not {value.dtype.name}"
    if value.shape is None or not found.HasField("shape"):
        return ""
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in found.shape.dim]
    claimed = [d if isinstance(d, int) else None for d in value.shape]
    alike = len(sizes) == len(claimed) and all(
        None in (a, b) or a == b for a, b in zip(sizes, claimed, strict=True)
    )
    return "" if alike else f"the shape {sizes}, not {value.shape}"
