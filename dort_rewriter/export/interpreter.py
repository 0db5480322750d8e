"""Walk an FX graph of ATen operators, call a converter for each node, and hand over the model.

NOTE: the walk does not stop at an operator without a converter: the user gets a list of all.

AOTAutograd's graphs leave type promotion of elementwise operators to the kernels: tensor operands
are cast to the type torch computes in; Python numbers are left alone, the recorder gives them the
type of their neighbours. Operands that are all numbers become tensors, as in torch.

Results without an element are constants, whatever the operator: what is known of such a result is
all there is to know. onnxruntime computes some of them wrongly, and 1.19 does not survive others:
the building of a session with ``Mul(Div(Sub(a, aT), d), u)`` of empty matrices, which the gradient
of ``svd`` has, and the run of a TopK.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx.defs
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dort_rewriter.aten import ancestors, describe, source_line
from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.errors import (
    DortError,
    ExportError,
    UnsupportedOp,
    UnsupportedOpError,
    working_on,
)
from dort_rewriter.export.annotations import (
    annotate,
    check_shape,
    element_type,
    is_automatic,
    newer_type,
    opset_of,
    permutation,
    stored,
    unsupported_value,
)
from dort_rewriter.export.complex_numbers import has_complex
from dort_rewriter.export.dispatcher import RANDOM, Dispatcher
from dort_rewriter.export.names import check_names, create_output_names, give_way
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import (
    Converter,
    Refused,
    newer_converter,
    op_name,
    python_name,
)
from dort_rewriter.export.torch_calls import is_called
from dort_rewriter.graph.schemas import ir_version_of
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import Writer
from dort_rewriter.signature import (
    GraphSignature,
    OutputSlot,
    as_returned,
    describe_value,
    input_slots,
    inverse_order,
)


def _drop_unused_inputs(graph: ir.Graph) -> None:
    """Remove the inputs of which neither the numbers nor the sizes are read.

    One of another layout is read through a Transpose.
    """
    for value in list(graph.inputs):
        for reader in {use.node for use in value.uses()}:
            if reader.op_type == "Transpose" and not _is_read(reader.outputs[0]):
                graph.remove(reader, safe=True)
        if not _is_read(value):
            graph.inputs.remove(value)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


Results = Mapping[torch.fx.Node, Any]


def _empty_results(
    writer: Writer, meta: Any, known: Results
) -> Value | Sequence[Value | None] | None:
    """Constants for a result, or a list of results, that holds no element; else None.

    The sizes that are known at run time are taken from the results `known` so far.
    """
    metas = meta if isinstance(meta, list | tuple) else [meta]
    if not metas or not all(_is_empty(m) for m in metas):
        return None
    found = [_constant(writer, m, known) for m in metas]
    if any(v is None for v in found):
        return None
    return found if isinstance(meta, list | tuple) else found[0]


def _is_empty(meta: Any) -> bool:
    if not isinstance(meta, torch.Tensor):
        return False
    return any(type(size) is int and size == 0 for size in meta.shape)


def _constant(writer: Writer, meta: torch.Tensor, known: Results) -> Value | None:
    pair = (2,) if meta.is_complex() else ()
    sizes = [_size(writer, size, known) for size in (*meta.shape, *pair)]
    dtype = meta.dtype.to_real()
    fixed = [s for s in sizes if isinstance(s, int)]
    if len(fixed) == len(sizes):
        tensor: ir.TensorProtocol = TorchTensor(torch.empty(fixed, dtype=dtype))
        return writer.tensor(tensor)
    if any(s is None for s in sizes):
        return None
    nothing = writer.tensor(TorchTensor(torch.empty((), dtype=dtype).zero_()))
    result = cast(Value, writer.call("Expand", nothing, sizes))
    annotate(result, meta)  # without it, a product does not see that it is one over nothing
    return result


def _size(writer: Writer, size: Any, known: Results) -> int | ir.Value | None:
    """A size as a number, or as a result that is equal to it."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    wanted = size.node.expr
    for node, value in known.items():
        meta = node.meta.get("val")
        if not isinstance(value, Value):
            continue
        if isinstance(meta, torch.SymInt) and meta.node.expr == wanted:
            return value
        dims: Sequence[Any] = meta.shape if isinstance(meta, torch.Tensor) else ()
        for axis, dim in enumerate(dims):
            if isinstance(dim, torch.SymInt) and dim.node.expr == wanted:
                return writer.size(value, axis)
    return None


_UNPROMOTED = (
    "aten::_to_copy",
    "aten::clone",
    "aten::fill",
    "aten::logical_",
    "aten::masked_fill",
    "prims::",
)
"""Elementwise by tag, but each operand keeps its own type."""

_EXACT_BESIDE = ("aten::mul", "aten::div", "aten::floor_divide")
"""What torch gives its second operand as it is, where that is a number beside 16-bit tensors: all
other operators, and first operands, see it rounded to 16 bits."""

_Number = (int, float, torch.SymInt, torch.SymFloat)


def _promote(recorder: Recorder, node: torch.fx.Node, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of an FX node with the casts that its operator implies."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.pointwise not in target.tags:
        return args
    if target.name().startswith(_UNPROMOTED) or is_called(node):  # by torch, which promotes
        return args
    if has_complex(node):  # their converters promote
        return args
    metas = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in node.args]
    first = 1 if target.name().startswith("aten::where") else 0  # a condition keeps its type
    positions = [i for i, m in enumerate(metas) if i >= first and _is_operand(m)]
    if (dtype := _common_dtype([metas[i] for i in positions], node.meta.get("val"))) is None:
        return args
    if target.name().startswith(_EXACT_BESIDE) and _is_exact(metas[1:2], dtype):
        dtype = torch.float32  # the result is rounded, once
    promoted = list(args)
    numbers_only = not any(isinstance(metas[i], torch.Tensor) for i in positions)
    for i in positions:
        if numbers_only or isinstance(args[i], ir.Value):
            promoted[i] = recorder.cast(args[i], to_onnx_type(dtype))
    return promoted


def _is_exact(second: Sequence[Any], dtype: torch.dtype) -> bool:
    """Whether a second operand, known at run time, has digits that a 16-bit type has not."""
    if dtype not in (torch.float16, torch.bfloat16) or not second:
        return False
    if isinstance(second[0], torch.Tensor):
        return second[0].dim() == 0 and second[0].dtype not in (dtype, torch.bool)
    return isinstance(second[0], torch.SymInt | torch.SymFloat)


def _is_operand(meta: Any) -> bool:
    return isinstance(meta, (torch.Tensor, *_Number)) and not isinstance(meta, bool)


def _common_dtype(operands: Sequence[Any], result: Any) -> torch.dtype | None:
    if not any(isinstance(m, torch.Tensor) for m in (*operands, result)) or not operands:
        return None
    kind = ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    common: torch.dtype = elementwise_dtypes(*operands, type_promotion_kind=kind)[1]
    if isinstance(result, torch.Tensor):
        wider = result.dtype
        if wider.is_floating_point and not common.is_floating_point:
            return wider
    return common


PRODUCER = "dort_rewriter"
OPSETS = range(18, onnx.defs.onnx_opset_version() + 1)
"""Those the converters write, up to the newest of the installed onnx."""


@dataclass(frozen=True)
class ExportedGraph:
    """A converted graph: the model, and how to call it."""

    model: ir.Model
    signature: GraphSignature

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs of the model, in order."""
        return self.signature.input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """The outputs of the model, in order."""
        return self.signature.output_names


Result = tuple[Any, tuple[int, ...] | None]
"""A node of the graph (or a constant) to return, and a permutation to return it in."""


class _Missing:
    """Stands for the result of a node that could not be converted."""


def convert_graph(
    graph_module: torch.fx.GraphModule,
    dispatcher: Dispatcher,
    *,
    opset: int = 18,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    keep_unused_inputs: bool = True,
    constants: Mapping[str, torch.Tensor] | None = None,
    results: Sequence[Result] | None = None,
    own_kernels: bool = False,
    input_orders: Mapping[str, tuple[int, ...]] | None = None,
    draws: bool = False,
    domains: Mapping[str, int] | None = None,
    advance: Callable[[], object] = lambda: None,
) -> ExportedGraph:
    """Convert an FX graph whose nodes carry ``meta["val"]``.

    `constants` gives values to some placeholders, by name: they become initializers, and are no
    input any more; `input_names` names the others. `results` asks for other results than those
    the graph returns. `own_kernels` lets the model have nodes with kernels of our own.
    `input_orders` names placeholders whose dimensions the model reads in another order. `draws`
    lets the model draw random numbers, which no seed of torch decides. `domains` are versions of
    domains other than the standard one. `advance` is called after
    each node.

    Raises :class:`UnsupportedOpError` with every operator that has no converter.
    """
    if opset not in OPSETS:
        raise ExportError(
            f"Opset {opset!r} is not supported: choose from {OPSETS.start} to {OPSETS.stop - 1}."
        )
    interpreter = _Interpreter(graph_module, dispatcher, opset, input_names, constants or {})
    interpreter.graph.opset_imports.update(domains or {})
    interpreter.recorder.own_kernels = own_kernels
    interpreter.input_orders = input_orders or {}
    interpreter.draws = draws
    interpreter.advance = advance
    if results is None:
        output = next(n for n in graph_module.graph.nodes if n.op == "output")
        leaves = torch.utils._pytree.tree_leaves(output.args[0], is_leaf=lambda a: a is None)
        results = [(leaf, None) for leaf in leaves]
    with unset_fake_temporarily():  # AOTAutograd compiles under it: constants would be fake too
        return interpreter.run(results, output_names, keep_unused_inputs)


class _Interpreter:
    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        dispatcher: Dispatcher,
        opset: int,
        input_names: Sequence[str] | None,
        constants: Mapping[str, torch.Tensor],
    ) -> None:
        self.graph_module = graph_module
        self.dispatcher = dispatcher
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="main_graph")
        self.recorder = Recorder(self.graph, opset)
        self.recorder.walk = self._walk_body
        self.lacks_types = opset_of(graph_module.graph, opset) > opset
        self.results: dict[torch.fx.Node, Any] = {}
        self.unsupported: list[UnsupportedOp] = []
        self.inputs: dict[torch.fx.Node, str] = {}
        """The placeholders that are no constants, and what they are called."""
        self.constants = constants
        self.input_names = None if input_names is None else list(input_names)
        self.taken = set(input_names or ())
        self.input_orders: Mapping[str, tuple[int, ...]] = {}
        self.draws = False
        self.advance: Callable[[], object] = lambda: None

    def run(
        self,
        results: Sequence[Result],
        output_names: Sequence[str] | None,
        keep_unused: bool,
    ) -> ExportedGraph:
        self._check_names(output_names)
        needed = ancestors([leaf for leaf, _ in results])
        nodes = self.graph_module.graph.nodes
        with working_on(lambda: source_line(node)):
            for node in nodes:
                if node.op == "placeholder":
                    self._placeholder(node, node in needed)
                elif node in needed:
                    self._visit(node)
                self.advance()
        if self.unsupported:
            raise UnsupportedOpError(self.unsupported)
        outputs = self._outputs(results, output_names)
        if not keep_unused:
            _drop_unused_inputs(self.graph)
        fed = {str(value.name) for value in self.graph.inputs}
        slots = input_slots(list(self.inputs), list(self.inputs.values()), fed, self.input_orders)
        version = ir_version_of(self.recorder.opset)
        model = ir.Model(self.graph, ir_version=version, producer_name=PRODUCER)
        give_way(model, [*(self.input_names or ()), *(output_names or ())])
        return ExportedGraph(model, GraphSignature(inputs=slots, outputs=outputs))

    def _visit(self, node: torch.fx.Node) -> None:
        if node.op == "get_attr":
            self.results[node] = self._attribute(node)
        elif node.op == "call_function":
            self.results[node] = self._call(node)
        else:
            raise ExportError(f"{node.op} is not ATen: lower the graph first: {describe(node)}")

    def _walk_body(
        self, recorder: Recorder, body: torch.fx.GraphModule, arguments: Sequence[Any]
    ) -> list[Any]:
        """Record the body of a higher-order operator, and return its results."""
        inner = _Interpreter(body, self.dispatcher, recorder.opset, None, {})
        inner.recorder, inner.graph, inner.taken = recorder, recorder.graph, self.taken
        *_, output = nodes = list(body.graph.nodes)
        placeholders = [n for n in nodes if n.op == "placeholder"]
        inner.results.update(zip(placeholders, arguments, strict=True))
        results = output.args[0]
        leaves = list(results) if isinstance(results, list | tuple) else [results]
        needed = ancestors(leaves)
        with working_on(lambda: source_line(node)):
            for node in nodes:
                if node in needed and node not in inner.results:
                    inner._visit(node)
        if inner.unsupported:
            first = inner.unsupported[0]
            raise Refused(f"{first.op} inside: {first.reason}")
        return [inner._argument(leaf) for leaf in leaves]

    # -- inputs --------------------------------------------------------------------------------

    def _check_names(self, output_names: Sequence[str] | None) -> None:
        """Check the names that are given, and keep them from what lies between."""
        nodes = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        nodes = [n for n in nodes if n.name not in self.constants]
        names = [n.name for n in nodes if n.meta.get("val") is not None]
        check_names(self.input_names, names, len(nodes), output_names or ())
        self.taken.update(output_names or ())

    def _placeholder(self, node: torch.fx.Node, is_read: bool) -> None:
        if node.name in self.constants:
            self.results[node] = self._initializer(node, self.constants[node.name], node.name)
            return
        name = self.input_names[len(self.inputs)] if self.input_names else node.name
        self.taken.add(name)
        self.inputs[node] = name
        meta = node.meta.get("val")
        if meta is None:
            self.results[node] = None
            return
        if (reason := unsupported_value(meta)) is not None:
            if is_read:
                self._refuse(node, "placeholder", reason)
            self.results[node] = _Missing
            return
        order = self.input_orders.get(node.name)
        value = Value(self.recorder, name=name)
        annotate(value, meta if order is None else meta.permute(order))
        self.graph.inputs.append(value)
        self.results[node] = value
        if order is not None:
            back = inverse_order(order)
            seen = self.recorder.Transpose(value, perm=permutation(meta, back))
            self.results[node] = seen
            annotate(seen, meta)

    def _attribute(self, node: torch.fx.Node) -> Any:
        path = str(node.target).split(".")
        target: Any = functools.reduce(getattr, path, self.graph_module)
        if isinstance(target, torch.fx.GraphModule):
            return target
        if not isinstance(target, torch.Tensor):
            raise ExportError(f"{node.target} is a {type(target).__name__}, not a tensor.")
        return self._initializer(node, target, str(node.target))

    def _initializer(self, node: torch.fx.Node, tensor: torch.Tensor, name: str) -> Any:
        if isinstance(tensor, torch._subclasses.FakeTensor):
            raise ExportError(f"{name} is a fake tensor: it has no values to store.")
        if (reason := unsupported_value(tensor)) is not None:
            self._refuse(node, node.op, reason)
            return _Missing
        name = self._free_name(name)
        return self.recorder.tensor(TorchTensor(stored(tensor), name=name), name)

    def _free_name(self, name: str) -> str:
        free, i = name, 0
        while free in self.taken:
            i += 1
            free = f"{name}_{i}"
        self.taken.add(free)
        return free

    # -- operators -----------------------------------------------------------------------------

    def _call(self, node: torch.fx.Node) -> Any:
        if node.target is operator.getitem:
            source = self.results[node.all_input_nodes[0]]
            if isinstance(source, list | tuple):
                return source[node.args[1]]  # type: ignore[index]
            if source is _Missing:
                return _Missing
        found = (newer_type(node) if self.lacks_types else None) or self.dispatcher.find(node)
        if found == RANDOM and self.draws:
            found = self.dispatcher.find_drawing(node) or found
        if isinstance(found, str):
            found = newer_converter(node, self.recorder.opset) or found
        if isinstance(found, str):
            self._refuse(node, op_name(node.target), found)
            return _Missing
        if any(self.results[a] is _Missing for a in node.all_input_nodes):
            return _Missing
        empty = _empty_results(self.recorder, node.meta.get("val"), self.results)
        return self._convert(node, found) if empty is None else self._annotate(node, empty)

    def _convert(self, node: torch.fx.Node, converter: Converter) -> Any:
        recorder = self.recorder
        recorder.fx_node = node
        where = source_line(node)
        recorder.provenance = {"fx_node": node.name, **({"source": where} if where else {})}
        try:
            args = _promote(recorder, node, [self._argument(a) for a in node.args])
            kwargs = {
                python_name(key): self._argument(value)
                for key, value in node.kwargs.items()
                if converter.takes(key)
            }
            results = self._annotate(node, converter.function(recorder, *args, **kwargs))
        except (Refused, DortError) as e:
            self._refuse(node, converter.name, str(e))
            return _Missing
        return results

    def _refuse(self, node: torch.fx.Node, name: str, reason: str) -> None:
        self.unsupported.append(UnsupportedOp(name, reason, source_line(node), node.name))

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, torch.fx.Node):
            return self.results[argument]
        if isinstance(argument, list | tuple):
            return [self._argument(a) for a in argument]
        if isinstance(argument, torch.dtype):
            return to_onnx_type(argument.to_real())
        return argument

    def _annotate(self, node: torch.fx.Node, results: Any) -> Any:
        """Give the results of a converter the types, shapes and names of the FX node."""
        meta = node.meta.get("val")
        if not isinstance(meta, list | tuple):
            if results is None and meta is not None:
                raise Refused("its converter gave nothing")
            return self._annotate_one(results, meta, node.name)
        count = len(results) if isinstance(results, list | tuple) else 1
        if count != len(meta):
            raise Refused(f"its converter gave {count} result(s) instead of {len(meta)}")
        return [
            self._annotate_one(r, m, f"{node.name}_{i}")
            for i, (r, m) in enumerate(zip(results, meta, strict=True))
        ]

    def _annotate_one(self, value: Any, meta: Any, name: str) -> Any:
        if value is None or meta is None:
            return None
        if not isinstance(value, Value):
            try:
                value = self.recorder.constant(value, element_type(meta))
            except (TypeError, ValueError) as e:
                kind = type(value).__name__
                raise Refused(f"its converter gave a {kind} instead of a value") from e
        want = element_type(meta)
        if value.dtype is not None and value.dtype != want:
            value = self.recorder.cast(value, want)
        if is_automatic(value):
            annotate(value, meta)
            value.name = self._free_name(name)
        else:
            check_shape(value, meta)
        return value

    # -- outputs -------------------------------------------------------------------------------

    def _outputs(
        self, results: Sequence[Result], output_names: Sequence[str] | None
    ) -> tuple[OutputSlot, ...]:
        metas = [a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a, _ in results]
        names = output_names or [self._free_name(n) for n in create_output_names(metas)]
        if len(names) != len(results):
            raise ExportError(f"{len(names)} output name(s) for {len(results)} output(s).")
        self.recorder.provenance = {}
        slots: list[OutputSlot] = []
        for (leaf, order), meta, name in zip(results, metas, names, strict=True):
            value = self.results[leaf] if isinstance(leaf, torch.fx.Node) else leaf
            if meta is None or value is None:
                slots.append(OutputSlot(kind="none", source="constant", name=name))
                continue
            if order is not None:
                value = self.recorder.Transpose(value, perm=permutation(meta, order))
                meta = meta.permute(order)
            slots.append(self._output(value, meta, name))
        return tuple(slots)

    def _output(self, value: Any, meta: Any, name: str) -> OutputSlot:
        recorder = self.recorder
        if not isinstance(value, ir.Value):
            value = recorder.constant(value, element_type(meta))
        if value.is_graph_input() or value.is_initializer() or value.is_graph_output():
            value = recorder.copy(value)
            annotate(value, meta)
        value.name = name
        self.graph.outputs.append(value)
        return OutputSlot(
            source="model",
            index=len(self.graph.outputs) - 1,
            name=name,
            views=as_returned(meta),
            **describe_value(meta),
        )
