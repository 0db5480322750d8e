"""Compile one ATen graph: cut, export, optimize, build. The one place that sees all four phases.

A graph is cut when it is compiled; its blocks are exported and built at their first call, so that
a backward graph nobody runs costs nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dort_rewriter.backends.frozen import FrozenWeights
from dort_rewriter.capture.outputs import OutputPlan, plan_outputs
from dort_rewriter.capture.partition import Partition, partition_graph
from dort_rewriter.capture.randomness import hoist_random
from dort_rewriter.errors import ExecutionError, UnsupportedOp, UnsupportedOpError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.files import to_proto
from dort_rewriter.export.interpreter import ExportedGraph, convert_graph
from dort_rewriter.export.names import create_input_names, create_output_names
from dort_rewriter.export.provenance import source_line
from dort_rewriter.export.registry import op_name
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.provider_fit import fit_to_provider
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.dump import dump_graph
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.kernels import has_kernel, kernel_query
from dort_rewriter.runtime.session import Session, create_session, session_options
from dort_rewriter.runtime.threads import ThreadPolicy
from dort_rewriter.signature import GraphSignature, InputSlot, describe_value
from dort_rewriter.trace import CompileTrace

if TYPE_CHECKING:
    import onnx

__all__ = [
    "Block",
    "BuiltBlock",
    "Recipe",
    "add_casts",
    "compile_graph",
    "make_block",
    "returns_tuple",
]

logger = logging.getLogger(__name__)

Providers = Sequence[tuple[str, Mapping[str, Any]]]
"""Execution providers with their options, best first."""

MAX_THAWED = 2
"""How many times a model is built again because its weights changed."""

RunBoxed = Callable[[list[Any]], Any]
"""Takes the list of arguments, and empties it."""


@dataclass(frozen=True, kw_only=True)
class BuiltBlock:
    """A block that is ready to run."""

    graph_module: torch.fx.GraphModule
    exported: ExportedGraph
    proto: onnx.ModelProto | None
    """The model as the session got it, when a transform asked for it."""
    signature: GraphSignature
    session: Session | None
    """None when everything the graph returns is made of its arguments."""
    executor: Executor


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to do with a graph."""

    dispatcher: Dispatcher
    options: OrtBackendOptions
    select_providers: Callable[
        [torch.fx.GraphModule, Sequence[Any]], Sequence[tuple[str, Mapping[str, Any]]]
    ]
    on_built: Callable[[BuiltBlock], None] | None = None
    """Called once for each block, when its session exists."""
    around: Callable[[torch.fx.GraphModule, RunBoxed], RunBoxed] | None = None
    """Put around what runs a block."""
    weights: frozenset[str] = frozenset()
    """Names of placeholders to put into the model."""
    trace: CompileTrace = dataclasses.field(default_factory=CompileTrace)
    refused: frozenset[str] = frozenset()
    """Names of FX nodes that turned out not to be convertible."""
    build_now: bool = False
    """Build the blocks when the graph is compiled, not at their first call."""
    rename_inputs: bool = True
    """Call the inputs ``input0``, ``input1``, ...; False keeps the names of the graph."""
    dump_prefix: str | None = None
    """Prefix of the files written for each model; None reads it from the environment."""

    def refusal(self, node: torch.fx.Node) -> UnsupportedOp | None:
        """Return why a node of an ATen graph stays in torch; None when it does not."""
        if node.op == "get_attr" or _is_getitem(node):
            return None
        reason = self.dispatcher.refusal(node)
        if reason is None and node.name in self.refused:
            reason = "its converter refused it"
        if reason is None:
            return None
        return UnsupportedOp(op_name(node.target), reason, source_line(node), node.name)


def _is_getitem(node: torch.fx.Node) -> bool:
    return op_name(node.target) == "_operator::getitem"


def compile_graph(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Callable[..., Any]:
    """Return a callable that takes the list of arguments of the graph, and empties it.

    It returns the tuple of the results, also when the graph returns a single one.
    """
    partition = cut(graph_module, recipe)
    if partition.whole:
        return _boxed(make_block(graph_module, recipe).boxed)
    return _boxed_module(partition.graph_module)


def cut(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Partition:
    """Cut a graph, its blocks replaced by what will run them."""
    with recipe.trace.phase("cut"):
        hoist_random(graph_module)
        partition = partition_graph(graph_module, recipe.refusal, recipe.options.min_block_size)
    recipe.trace.fallbacks.extend(partition.fallbacks)
    if partition.fallbacks:
        _report(partition.fallbacks, recipe)
    for name in partition.blocks:
        submodule = getattr(partition.graph_module, name)
        delattr(partition.graph_module, name)
        object.__setattr__(partition.graph_module, name, make_block(submodule, recipe))
    return partition


def make_block(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Block:
    """Return what runs a graph that is convertible as a whole, built if the recipe says so."""
    block = Block(graph_module, recipe)
    if recipe.build_now:
        block.prepare()
    return block


def _report(fallbacks: Sequence[UnsupportedOp], recipe: Recipe) -> None:
    """Say once per graph what stays in torch; random operators belong there."""
    missing = [f for f in fallbacks if not f.reason.startswith("random")]
    if not missing:
        return
    if not recipe.options.fallback:
        raise UnsupportedOpError(missing)
    logger.info("These operators run in torch: %s", UnsupportedOpError(missing))


class Block:
    """A graph that runs in ONNX Runtime; its first call builds it."""

    def __init__(self, graph_module: torch.fx.GraphModule, recipe: Recipe) -> None:
        self.graph_module = graph_module
        self.recipe = recipe
        self._lock = threading.Lock()
        self._boxed: RunBoxed | None = None
        self._thawed = 0

    def __call__(self, *args: Any) -> Any:
        """Run the graph on its arguments."""
        results = self.boxed(list(args))
        return results if returns_tuple(self.graph_module) else results[0]

    def boxed(self, args: list[Any]) -> Any:
        """Run the graph on a list of arguments, which is emptied."""
        run = self._boxed
        if run is None:
            run = self._prepare(args)
        try:
            return run(args)
        except ExecutionError as e:
            return self._give_up(e)(args)

    def prepare(self) -> None:
        """Build the session now, out of what the graph says about its arguments."""
        placeholders = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        with unset_fake_temporarily():  # AOTAutograd compiles under it
            self._prepare([n.meta.get("val") for n in placeholders])

    def _prepare(self, args: Sequence[Any]) -> RunBoxed:
        with self._lock:
            if self._boxed is None:
                self._boxed = self._build(args)
            return self._boxed

    def _build(self, args: Sequence[Any]) -> RunBoxed:
        weights = self.recipe.weights if self._thawed < MAX_THAWED else frozenset()
        frozen = FrozenWeights.take(self.graph_module, weights, args)
        try:
            built = build_block(self.graph_module, args, self.recipe, frozen.tensors)
        except UnsupportedOpError as e:
            if not self.recipe.options.fallback:
                raise
            refused = self.recipe.refused | {u.node for u in e.unsupported}
            if refused == self.recipe.refused:
                raise
            return compile_graph(
                self.graph_module, dataclasses.replace(self.recipe, refused=refused)
            )
        except ExecutionError as e:
            return self._give_up(e)
        if self.recipe.on_built is not None:
            self.recipe.on_built(built)
        run = built.executor.boxed
        if self.recipe.around is not None:
            run = self.recipe.around(self.graph_module, run)
        return frozen.guard(run, self._thaw)

    def _thaw(self, args: list[Any]) -> Any:
        """Build the model again, its weights having changed: with the new ones, and as inputs
        when that happens too often."""
        with self._lock:
            self._thawed += 1
            run = self._boxed = self._build(args)
        return run(args)

    def _give_up(self, error: ExecutionError) -> RunBoxed:
        """Leave this graph to torch from now on."""
        if not self.recipe.options.fallback:
            raise error
        logger.warning("A graph runs in torch from now on: %s", error)
        self._boxed = _boxed_module(self.graph_module)
        return self._boxed


def build_block(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    recipe: Recipe,
    frozen: Mapping[int, torch.Tensor] | None = None,
) -> BuiltBlock:
    """Export a graph that is convertible as a whole, and build its session.

    ``frozen`` are the arguments that the model holds, by position.
    """
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    constants = {placeholders[i].name: t for i, t in (frozen or {}).items()}
    options, trace = recipe.options, recipe.trace
    with trace.phase("export"):
        plan = plan_outputs(graph_module)
        names = _output_names(plan)
        exported = convert_graph(
            graph_module,
            recipe.dispatcher,
            opset=options.target_opset,
            input_names=_input_names(graph_module, constants) if recipe.rename_inputs else None,
            constants=constants,
            output_names=names,
            results=[(o.node, o.order) for o in plan.model_outputs],
            keep_unused_inputs=False,
        )
    providers = recipe.select_providers(graph_module, args)
    with trace.phase("optimize"):
        report = optimize(
            exported.model, options.optimization, has_kernel=kernel_query(str(providers[0][0]))
        )
        trace.reports.append(report)
    proto = _transform(exported, options)
    dump_graph(proto or exported.model, str(graph_module.graph), recipe.dump_prefix)
    slots = tuple(
        dataclasses.replace(s, name=names[s.index]) if s.source == "model" else s
        for s in plan.slots
    )
    fed = iter(exported.signature.inputs)
    inputs = tuple(
        InputSlot(name=None, **describe_value(n.meta["val"])) if n.name in constants else next(fed)
        for n in placeholders
    )
    signature = GraphSignature(inputs=inputs, outputs=slots)
    with trace.phase("session"):
        session = _build_session(proto or exported.model, providers, options) if names else None
        executor = Executor(session, signature)
    return BuiltBlock(
        graph_module=graph_module,
        exported=exported,
        proto=proto,
        signature=signature,
        session=session,
        executor=executor,
    )


def _input_names(
    graph_module: torch.fx.GraphModule, constants: Mapping[str, torch.Tensor]
) -> list[str]:
    placeholders = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
    names = zip(placeholders, create_input_names(graph_module), strict=True)
    return [name for placeholder, name in names if placeholder not in constants]


def _output_names(plan: OutputPlan) -> list[str]:
    """Name each output of the model after the first result made of it."""
    values: list[Any] = [
        None if s.kind == "none" else 0 if s.kind == "int" else "" for s in plan.slots
    ]
    by_position = create_output_names(values)
    names: dict[int, str] = {}
    for slot, name in zip(plan.slots, by_position, strict=True):
        if slot.source == "model":
            names.setdefault(slot.index, name)
    return [names[i] for i in range(len(plan.model_outputs))]


def _transform(exported: ExportedGraph, options: OrtBackendOptions) -> onnx.ModelProto | None:
    if not options.pre_ort_model_transforms:
        return None
    proto = to_proto(exported.model)
    for transform in options.pre_ort_model_transforms:
        transform(proto)
    return proto


def _build_session(model: Any, providers: Providers, options: OrtBackendOptions) -> Session:
    settings = options.ort_session_options
    if settings is None:
        policy = ThreadPolicy(intra_op_threads=options.intra_op_threads, spinning=options.spinning)
        settings = session_options(
            optimization_level=options.ort_optimization_level, threads=policy
        )
    try:
        return create_session(model, providers=providers, options=settings)
    except ExecutionError as e:
        if not any(code in str(e) for code in ("NOT_IMPLEMENTED", "INVALID_GRAPH")):
            raise  # these two are about types: one in which the operator has no kernel, or is not
    fitted = model if isinstance(model, ir.Model) else ir.from_proto(model)
    add_casts(fitted, provider=str(providers[0][0]))
    return create_session(fitted, providers=providers, options=settings)


def add_casts(model: ir.Model, *, provider: str) -> None:
    """Mend the nodes without a kernel, or give them back to torch by name."""

    def runs(node: ir.Node, types: Sequence[ir.DataType | None]) -> bool:
        return has_kernel(
            node.op_type,
            node.domain,
            model.graph.opset_imports[node.domain],
            types,
            attributes={name: attribute.value for name, attribute in node.attributes.items()},
            outputs=len(node.outputs),
            provider=provider,
        )

    if helpless := fit_to_provider(model, runs):
        raise UnsupportedOpError(
            UnsupportedOp(
                n.op_type,
                f"{provider} has no kernel for its types",
                n.metadata_props.get("source", ""),
                n.metadata_props.get("fx_node", ""),
            )
            for n in helpless
        )


def returns_tuple(graph_module: torch.fx.GraphModule) -> bool:
    """Tell whether a graph gives a tuple, rather than a result alone."""
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    return isinstance(output.args[0], list | tuple)


def _boxed(function: RunBoxed) -> RunBoxed:
    def call(args: list[Any]) -> Any:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return call


def _boxed_module(graph_module: torch.fx.GraphModule) -> RunBoxed:
    """Return what runs a graph in torch, and gives a tuple as sessions do."""
    forward = graph_module.forward
    is_tuple = returns_tuple(graph_module)

    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        results = forward(*given)
        return results if is_tuple else (results,)

    return _boxed(call)
