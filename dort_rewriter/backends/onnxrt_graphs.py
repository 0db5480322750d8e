"""What the ``onnxrt`` backend does with a graph: of our class, and of torch's under the hook.

Each function takes the backend object as an argument: ours, or an instance of torch's
``OrtBackend`` that the hook lends. They rely on what both have: ``_options``,
``_all_ort_execution_info``, ``execution_count``, ``_select_eps``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter import env
from dort_rewriter.aten import source_line
from dort_rewriter.backends.arguments import with_mode
from dort_rewriter.backends.execution_info import ByGraph, ExecutionInfo
from dort_rewriter.backends.instances import as_own
from dort_rewriter.backends.layers import suggesting_layers
from dort_rewriter.backends.seen_calls import note_call
from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.capture.interface import complete_metadata
from dort_rewriter.compiler import block
from dort_rewriter.compiler.block import make_block
from dort_rewriter.compiler.finite import FiniteChecks
from dort_rewriter.compiler.graph_key import graph_key
from dort_rewriter.compiler.minifier import watched
from dort_rewriter.compiler.provider_choice import selection_of
from dort_rewriter.compiler.safety_net import (
    GRAPH_BREAKS,
    guarded,
    is_compiled_ahead,
    log_whole_fallback,
    raises_at_call,
)
from dort_rewriter.compiler.verification import checks_finite, copies
from dort_rewriter.errors import CaptureError, OptionError, UnsupportedOp
from dort_rewriter.export.decompositions import get_tracing_table
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import OrtBackendOptions, from_mapping
from dort_rewriter.plan.graph_plan import plan_whole
from dort_rewriter.plan.recipe import BuiltBlock, Recipe, RunBoxed, unboxed
from dort_rewriter.runtime.kernel_query import require_low_bit_products
from dort_rewriter.torch_defects.kernel_layouts import asks_for_format
from dort_rewriter.torch_defects.overlapping_writes import (
    REASON,
    name_of,
    overlapping_writes,
    raises_in_eager_mode,
)

CompilePart = Callable[[torch.fx.GraphModule, Recipe], RunBoxed]
"""Compiles a graph of ATen operators."""


def make_dispatcher() -> OxsDispatcher:
    """The dispatcher that the environment asks for."""
    return OxsDispatcher(own_converters=env.read("ONNXRT_CHANGE_REWRITER") != "0")


@raises_at_call
def call_backend(
    backend: Any,
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo, forward and backward."""
    _refuse_options(options)
    _refuse_aot_compile()
    chosen = with_mode(_options(backend), mode)
    if chosen.weights is not None:
        require_low_bit_products(chosen.weights)
    note_call(graph_module, args)
    if not chosen.use_aot_autograd and mode is None:
        compiled: Callable[..., Any] = backend.compile(graph_module, args)
        return compiled
    return compile_dynamo_graph(backend, graph_module, args, chosen)


def compile_dynamo_graph(
    backend: Any,
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    options: OrtBackendOptions,
    compile_part: CompilePart = block.compile_graph,
) -> Callable[..., Any]:
    """Compile a graph of Dynamo through AOTAutograd, each graph of ATen operators by
    ``compile_part``; without AOTAutograd, by an option, as it is. What fails falls back to eager
    mode, with the option for that."""
    if not options.use_aot_autograd:
        return compile_graph(backend, graph_module, args, options, compile_part)
    if _overlaps(graph_module, options):
        forward: Callable[..., Any] = graph_module.forward
        return forward

    with suggesting_layers(graph_module):
        return guarded(
            lambda: _compile_by_aot(backend, graph_module, args, options, compile_part),
            lambda: graph_module.forward,
            graph_module,
            args,
            options,
            passed=GRAPH_BREAKS,
        )


def _compile_by_aot(
    backend: Any,
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    options: OrtBackendOptions,
    compile_part: CompilePart,
) -> Callable[..., Any]:
    checks = FiniteChecks(graph_module) if checks_finite(options) else None
    dispatcher = make_dispatcher()
    table = get_tracing_table(dispatcher)
    hidden_copies = asks_for_format(graph_module)

    def compile_one(graph: torch.fx.GraphModule, _: Any, **more: Any) -> RunBoxed:
        # Only its own calls run this graph and feed its model.
        more = {"as_stored": True, "hidden_copies": hidden_copies, **more}
        recipe = make_recipe(backend, options, **more)
        return _compile_checked(graph, recipe, checks, compile_part)

    def compile_inference(
        graph: torch.fx.GraphModule, weights: frozenset[str]
    ) -> Callable[..., Any]:
        held = weights if options.freeze else frozenset()
        return compile_one(graph, None, owns_views=True, weights=held)

    key = None
    if options.cache_graphs:
        key = graph_key(graph_module, args, options, dispatcher, table)
    return compile_with_aot(
        graph_module,
        args,
        compile_graph=compile_one,
        decompositions=table,
        compile_inference=compile_inference,
        verbose=options.optimization.verbose > 0,
        watched=functools.partial(watched, options=options),
        key=key,
        may_overlap=False,
    )


def _refuse_options(options: Mapping[str, Any] | None) -> None:
    """Raise where torch.compile passes options to a backend that was made with its own."""
    if options:
        from_mapping(OrtBackendOptions, options)  # an unknown name is said first
        raise OptionError(
            "A backend that is made already has its options: "
            "OrtBackend({...}), or backend='onnxrt' and options={...}."
        )


def _overlaps(graph_module: torch.fx.GraphModule, options: OrtBackendOptions) -> bool:
    """Whether a graph of Dynamo writes where arguments overlap, so that eager mode runs it.

    Logs it, where eager mode does not raise.
    """
    written = overlapping_writes(graph_module)
    if written and not any(map(raises_in_eager_mode, written)):
        left = [UnsupportedOp(name_of(n), REASON, source_line(n), n.name) for n in written]
        log_whole_fallback(left, fallback=options.fallback)
    return bool(written)


def _refuse_aot_compile() -> None:
    """Say what to use instead of torch's ``aot_compile``, which keeps what Inductor returns."""
    if is_compiled_ahead():
        raise CaptureError(
            "torch's aot_compile writes what Inductor makes. dort_rewriter.save(compiled, path) "
            "keeps what this backend makes, and dort_rewriter.load(path) calls it."
        )


def _compile_checked(
    graph_module: torch.fx.GraphModule,
    recipe: Recipe,
    checks: FiniteChecks | None,
    compile_part: CompilePart,
) -> RunBoxed:
    """Compile a graph; its results have to be finite where the options ask for it."""
    if checks is None:
        return compile_part(graph_module, recipe)
    watched_graph = checks.watch(graph_module)
    return watched_graph.checked(compile_part(graph_module, recipe))


def compile_graph(
    backend: Any,
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    options: OrtBackendOptions | None = None,
    compile_part: CompilePart = block.compile_graph,
) -> Callable[..., Any]:
    """Compile a graph of ATen operators: to what takes its arguments, or the list of them."""
    options = options or _options(backend)

    def compiled() -> Callable[..., Any]:
        complete_metadata(graph_module, args)
        checks = FiniteChecks(graph_module) if checks_finite(options) else None
        recipe = make_recipe(backend, options)
        run = _compile_checked(graph_module, recipe, checks, compile_part)
        return unboxed(run, graph_module)

    return guarded(compiled, lambda: graph_module.forward, graph_module, args, options)


def serves(backend: Any, graph_module: torch.fx.GraphModule) -> bool:
    """Whether a graph has a session of ours."""
    return graph_module in _blocks


_blocks: weakref.WeakKeyDictionary[torch.fx.GraphModule, Callable[..., Any]] = (
    weakref.WeakKeyDictionary()
)
"""The blocks built for graphs that torch's own class compiled."""


def accelerated_call(
    backend: Any, graph_module: torch.fx.GraphModule, *args: Any, **kwargs: Any
) -> Any:
    """Run a graph that was found convertible, building its session at the first call."""
    block = _blocks.get(graph_module)
    if block is None:

        def compiled() -> Callable[..., Any]:
            complete_metadata(graph_module, args)
            return make_block(plan_whole(graph_module, make_recipe(backend)))

        block = _blocks[graph_module] = guarded(
            compiled, lambda: graph_module.forward, graph_module, args, _options(backend)
        )
    return block(*args)


def make_recipe(backend: Any, options: OrtBackendOptions | None = None, **more: Any) -> Recipe:
    """What a backend does with a graph of ATen operators, with its options or others; ``more`` are
    other fields of the recipe."""
    options = options or _options(backend)
    return Recipe(
        dispatcher=make_dispatcher(),
        options=options,
        select_providers=selection_of(backend, options),
        on_built=functools.partial(_record, backend),
        around=functools.partial(_watch, backend),
        runs_here=True,
        torch_kernels=True,
        compared=backend._assert_allclose_to_baseline,
        **more,
    )


def _options(backend: Any) -> OrtBackendOptions:
    """The options of a backend; those of torch's class have some of our fields."""
    return as_own(backend._options)


def _record(backend: Any, built: BuiltBlock) -> None:
    table = backend._all_ort_execution_info
    known = table.execution_info_per_graph_module
    if not isinstance(known, weakref.WeakKeyDictionary):
        # That of torch's class is a dict: graphs and sessions would outlive torch._dynamo.reset().
        table.execution_info_per_graph_module = ByGraph(known)
    table.cache_session_execution_info(built.graph_module, ExecutionInfo(built))


def _watch(backend: Any, graph_module: torch.fx.GraphModule, run: RunBoxed) -> RunBoxed:
    """Count the runs of a block, and compare them with torch when the backend asks for it."""

    def call(args: list[Any]) -> Any:
        given = copies(args) if backend._assert_allclose_to_baseline else None
        results = run(args)
        backend.execution_count += 1
        if given is None:
            return results
        expected = graph_module.forward(*given)
        expected = expected if isinstance(expected, list | tuple) else (expected,)
        torch.testing.assert_close(list(results), list(expected))
        return results

    return call
