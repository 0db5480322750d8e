"""Build one block: export, optimize, make a session. What sees all phases but the cutting.

Which arguments a session may write to is what the graph says, proved on the model. Models of
earlier processes: a graph met before is neither exported nor optimized again. Functions of a user
that are given models, and what they give back, checked.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch

from dort_rewriter.aten import first_line, input_orders
from dort_rewriter.capture.updates import updates_of
from dort_rewriter.compiler.model_key import model_key
from dort_rewriter.errors import (
    ExecutionError,
    NoKernelError,
    OptionError,
    UnsupportedOp,
    UnsupportedOpError,
    calling,
)
from dort_rewriter.export.annotations import opset_of
from dort_rewriter.export.interpreter import ExportedGraph, convert_graph
from dort_rewriter.export.names import create_input_names, create_output_names
from dort_rewriter.kernels.loading import address_key
from dort_rewriter.optimize.addresses import give_addresses
from dort_rewriter.optimize.in_place import checks_of, written_in_place
from dort_rewriter.optimize.low_bits import lower_weights
from dort_rewriter.optimize.patterns import kernels
from dort_rewriter.optimize.pipeline import get_pattern_list, optimize
from dort_rewriter.optimize.provider_fit import (
    compute_halves_in_float,
    drop_unused_results,
    fit_to_provider,
    fit_to_standard,
    keep_ranks,
    keep_special_numbers,
    separate_operands,
    substitute,
)
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.ort_module import describe
from dort_rewriter.plan.graph_plan import GraphPlan
from dort_rewriter.plan.nodes import unsupported
from dort_rewriter.plan.outputs import SHARED, ModelOutput, OutputPlan
from dort_rewriter.plan.placement import choose_products, uses_own_kernels
from dort_rewriter.plan.recipe import BuiltBlock, ExportedBlock, Providers, Recipe
from dort_rewriter.runtime.addressed_call import can_give_addresses
from dort_rewriter.runtime.disk_cache import DiskCache, disk_cache
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.kernel_query import (
    BITS,
    has_kernel,
    is_wrong,
    kernel_query,
    loses_factors,
)
from dort_rewriter.runtime.model_files import to_proto, try_dump, weight_bytes
from dort_rewriter.runtime.providers import CPU, CUDA, OPENVINO, parse
from dort_rewriter.runtime.session import (
    Session,
    create_session,
    new_settings,
    session_settings,
    try_session,
)
from dort_rewriter.signature import Addresses, GraphSignature, Writes, input_slots

logger = logging.getLogger(__name__)


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
    arguments = {slot.name: i for i, slot in enumerate(signature.inputs) if slot.name is not None}
    found = give_addresses(block.model, written, arguments, address_key())
    return found if found and can_give_addresses(signature, writes, found[1]) else None


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


_MAX_WEIGHTS = 2**24
"""Bytes of constants above which a model is not stored."""


def _load(cache: DiskCache, key: str) -> ir.Model | None:
    """The model of a graph, if it is there."""
    if (data := cache.get(key)) is None:
        return None
    model = ir.from_proto(onnx.ModelProto.FromString(data))
    logger.debug("A model of %s nodes was found on disk.", model.graph.num_nodes())
    return model


def _before_transforms(options: OptimizationOptions) -> OptimizationOptions:
    """What is done to a model before functions of the user see it."""
    chosen = get_pattern_list(options.patterns, kernels.RULES)
    # NOTE: a model has a place on disk when its rules are given by name.
    named = [rule.name for rule in chosen] if isinstance(options.patterns, str) else chosen
    return dataclasses.replace(options, patterns=named)


def _transform(model: ir.Model, recipe: Recipe, provider: str) -> onnx.ModelProto:
    """A model as the functions of the user make it, with our own operators put in then."""
    proto = to_proto(model)
    for change in recipe.options.pre_ort_model_transforms or ():
        with calling("a pre_ort_model_transform", change):
            change(proto)
    options = recipe.options.optimization
    own = [rule for rule in get_pattern_list(options.patterns) if isinstance(rule, kernels.RULES)]
    if not own:
        return proto
    changed = ir.from_proto(proto)
    report = optimize(
        changed, dataclasses.replace(options, patterns=own), has_kernel=kernel_query(provider)
    )
    recipe.trace.reports.append(report)
    return to_proto(changed)


def _check_results(session: Session, exported: ir.Model) -> None:
    """Refuse a model that functions of the user gave results of other sizes than the graph has."""
    declared = {output.name: output.shape for output in session.ort.get_outputs()}
    for value in exported.graph.outputs:
        shape, wanted = declared.get(str(value.name)), value.shape
        if shape is None or wanted is None:
            continue
        fixed = [d if isinstance(d, int) else None for d in wanted]
        pairs = [(a, b) for a, b in zip(shape, fixed, strict=False) if isinstance(a, int)]
        if len(shape) != len(fixed) or any(b is not None and a != b for a, b in pairs):
            raise ExecutionError(
                f"pre_ort_model_transforms made {value.name!r} a result of the shape {shape} "
                f"instead of {wanted}."
            )


def build_block(
    plan: GraphPlan,
    args: Sequence[Any],
    frozen: Mapping[int, torch.Tensor] | None = None,
    numbers: Mapping[int, torch.Tensor] | None = None,
) -> BuiltBlock:
    """Export a graph that is planned for one session, and build that.

    ``frozen`` and ``numbers`` are the arguments that the model holds, by position.
    """
    recipe = plan.recipe
    providers = plan.providers(args)
    block = export_block(plan, str(providers[0][0]), frozen, numbers)
    fields = {f.name: getattr(block, f.name) for f in dataclasses.fields(block)}
    if recipe.make_runner is not None:
        return BuiltBlock(**fields, session=None, runner=recipe.make_runner(block))
    with recipe.trace.phase("session"):
        session = addresses = None
        if block.computed:
            plain = [str(p[0]) for p in providers] == [CPU]
            plain = plain and not recipe.options.preallocate_output
            if plain and (found := find_addresses(block)) is not None:
                model, addresses = found
                settings = session_settings(recipe.options, block.model, providers)
                session = create_session(model, providers=providers, options=settings)
            else:
                session = build_or_pass_on(block.model, providers, recipe.options)
            if block.proto is not None:
                _check_results(session, block.exported.model)
        executor = make_executor(session, block, recipe.options, addresses)
        return BuiltBlock(**fields, session=session, runner=executor)


def make_executor(
    session: Session | None,
    block: ExportedBlock,
    options: OrtBackendOptions,
    addresses: Addresses | None = None,
) -> Executor:
    """Prepare the calls of a session as the options say."""
    nodes = len(block.exported.model.graph)
    where = os.path.basename(first_line(block.graph_module).partition(": ")[0])
    return Executor(
        session,
        block.signature,
        name=f"ONNX Runtime: {nodes} nodes{f' from {where}' if where else ''}",
        writes=find_mutated_inputs(block),
        addresses=addresses,
        preallocate=options.preallocate_output,
        pause_torch_threads=options.pause_torch_threads,
    )


def export_block(
    plan: GraphPlan,
    provider: str,
    frozen: Mapping[int, torch.Tensor] | None = None,
    numbers: Mapping[int, torch.Tensor] | None = None,
) -> ExportedBlock:
    """Export a graph that is planned for one session, and optimize its model for a provider."""
    graph_module, recipe = plan.graph_module, plan.recipe
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    held = {**(frozen or {}), **(numbers or {})}
    constants = {placeholders[i].name: t for i, t in held.items()}
    asked, trace = recipe, recipe.trace
    if asked.options.pre_ort_model_transforms:
        first = _before_transforms(asked.options.optimization)
        recipe = dataclasses.replace(
            asked, options=dataclasses.replace(asked.options, optimization=first)
        )
    with trace.phase("export", 0):
        if plan.outputs.left:
            raise UnsupportedOpError(unsupported(n, SHARED) for n in plan.outputs.left)
        names = _output_names(plan.outputs)
        outputs = list(zip(names, plan.outputs.model_outputs, strict=True))
        values = {i: float(t) for i, t in (numbers or {}).items()}
        orders = input_orders(graph_module) if recipe.as_stored else {}
        cache = disk_cache() if recipe.options.cache and not frozen else None
        key = None
        if cache is not None:
            key = model_key(
                graph_module, recipe, provider, numbers=values, outputs=outputs, orders=orders
            )
        model = None if cache is None or key is None else _load(cache, key)
    if model is None:
        model = _convert(plan, recipe, provider, outputs, constants, orders)
        if cache is not None and key is not None and weight_bytes(model) <= _MAX_WEIGHTS:
            cache.put(key, to_proto(model).SerializeToString())
    proto = None
    if asked.options.pre_ort_model_transforms:
        proto = _transform(model, asked, provider)
    try_dump(proto or model, str(graph_module.graph), recipe.dump_prefix)
    slots = tuple(
        dataclasses.replace(s, name=names[s.index]) if s.source == "model" else s
        for s in plan.outputs.slots
    )
    fed = {str(value.name) for value in model.graph.inputs}
    inputs = input_slots(placeholders, _input_names(graph_module, recipe), fed, orders)
    return ExportedBlock(
        graph_module=graph_module,
        exported=ExportedGraph(model, GraphSignature(inputs=inputs, outputs=slots)),
        proto=proto,
        computed=dict(outputs),
    )


def _convert(
    plan: GraphPlan,
    recipe: Recipe,
    provider: str,
    outputs: Sequence[tuple[str, ModelOutput]],
    constants: Mapping[str, torch.Tensor],
    orders: Mapping[str, tuple[int, ...]],
) -> ir.Model:
    """Export a graph and optimize its model, by a recipe with the options of the optimizer."""
    options, trace, graph_module = recipe.options, recipe.trace, plan.graph_module
    placeholders = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
    names = zip(placeholders, _input_names(graph_module, recipe), strict=True)
    nodes = len(graph_module.graph.nodes)
    with trace.phase("export", nodes) as advance:
        model = convert_graph(
            graph_module,
            plan.dispatcher(provider),
            opset=opset_of(graph_module.graph, options.target_opset),
            input_names=[name for node, name in names if node not in constants],
            constants=constants,
            output_names=[name for name, _ in outputs],
            results=[(o.node, o.order) for _, o in outputs],
            keep_unused_inputs=False,
            own_kernels=provider == CPU and uses_own_kernels(options.optimization),
            input_orders=orders,
            advance=advance,
        ).model
    with trace.phase("optimize"):
        query = kernel_query(provider)
        report = optimize(
            model,
            options.optimization,
            has_kernel=query,
            make_session=functools.partial(try_session, provider=provider),
        )
        trace.reports.append(report)
        if options.weights is not None and provider == CPU:
            lower_weights(model, BITS[options.weights])
        drop_unused_results(model)
        if provider == OPENVINO:
            keep_ranks(model)
            keep_special_numbers(model)
        if provider == CPU:
            choose_products(model, options, calls_mkl=recipe.may_call_torch(provider))
    return model


def _input_names(graph_module: torch.fx.GraphModule, recipe: Recipe) -> list[str]:
    """What each placeholder is called in the model, if it is an input of it."""
    if recipe.rename_inputs:
        return create_input_names(graph_module)
    return [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]


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


def build_or_pass_on(model: Any, providers: Providers, options: OrtBackendOptions) -> Session:
    """Build the session of a model; where a provider refuses it, on those behind it.

    Raises :class:`OptionError` where it is required, :class:`ExecutionError` where there is to be
    no fallback.

    NOTE: not passed on where CUDA refuses it: no provider behind it has its memory.
    """
    (name, _), *rest = providers
    try:
        session = build_session(model, providers, options)
        if name not in (p.name for p in session.providers):
            raise ExecutionError(f"{describe()} made a session without {name}, which failed.")
    except ExecutionError as error:
        if name != CPU and parse(providers[0]).required:
            raise OptionError(f"{name} is required, and refuses a graph: {error}") from error
        if name in (CPU, CUDA) or not rest or not options.fallback:
            raise
        logger.warning("A graph runs on %s, %s refuses it: %s", rest[0][0], name, error)
    else:
        return session
    return build_or_pass_on(model, rest, options)


def build_session(model: Any, providers: Providers, options: OrtBackendOptions) -> Session:
    """Build the session of a model, with casts where the provider has no kernel for a type."""
    settings, provider = session_settings(options, model, providers), str(providers[0][0])
    keep = new_settings(options, model, providers)
    model = _with_right_kernels(model, provider, options)
    try:
        return create_session(model, providers=providers, options=settings, keep=keep)
    except NoKernelError:
        pass
    fitted = model if isinstance(model, ir.Model) else ir.from_proto(model)
    add_casts(fitted, provider=provider)
    fitted = _with_right_kernels(fitted, provider, options)  # of the types that are wider now
    return create_session(fitted, providers=providers, options=settings, keep=keep)


def _with_right_kernels(model: Any, provider: str, options: OrtBackendOptions) -> Any:
    """The model without the nodes that onnxruntime, or a kernel of it, computes wrongly."""
    if provider != CPU:
        return model
    known = model if isinstance(model, ir.Model) else ir.from_proto(model)
    changed = compute_halves_in_float(known)
    own = uses_own_kernels(options.optimization)
    changed += substitute(known, is_wrong, own_kernels=own)
    if loses_factors():
        changed += separate_operands(known)
    return known if changed else model


def add_casts(model: ir.Model, *, provider: str) -> None:
    """Fix the nodes without a kernel, or give them back to torch by name."""

    def runs(node: ir.Node, types: Sequence[ir.DataType | None]) -> bool:
        ask = functools.partial(
            has_kernel,
            node.op_type,
            node.domain,
            model.graph.opset_imports[node.domain],
            types,
            attributes={name: attribute.value for name, attribute in node.attributes.items()},
            outputs=len(node.outputs),
        )
        # What CUDA has no kernel for runs on the CPU, in the same session.
        return ask(provider=provider) or (provider != CPU and ask(provider=CPU))

    helpless = fit_to_provider(model, runs)
    _refuse(helpless, f"{provider} has no kernel for its types")


def add_casts_of_standard(model: ir.Model) -> None:
    """The same for a file: what counts is ONNX's own word, whoever is to run it."""
    _refuse(fit_to_standard(model), "ONNX does not define it for its types")


def _refuse(nodes: Sequence[ir.Node], reason: str) -> None:
    if nodes:
        raise UnsupportedOpError(
            UnsupportedOp(
                n.op_type,
                reason,
                n.metadata_props.get("source", ""),
                n.metadata_props.get("fx_node", ""),
            )
            for n in nodes
        )
