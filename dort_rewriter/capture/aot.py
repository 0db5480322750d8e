"""AOTAutograd wiring: forward, backward and inference graphs of ATen operators for a compiler."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from dort_rewriter.aten import is_random, let_layouts_vary, lineage, results_of
from dort_rewriter.capture.interface import (
    Finish,
    Traced,
    flatten_interface,
    metadata_of_compilation,
)
from dort_rewriter.capture.joint_graph import (
    drop_copies,
    mark_saved,
    merge_duplicates,
    name_known_masks,
)
from dort_rewriter.capture.taken_types import TypeCheck, in_eager_mode_if_refused
from dort_rewriter.capture.tracing import RANDOM_DECOMPOSITIONS, correct_tracing, keep_resizing
from dort_rewriter.capture.updates import apply_updates, is_inference, take_updates
from dort_rewriter.errors import CaptureError
from dort_rewriter.progress import shown
from dort_rewriter.torch_defects.gradient_layouts import keep_gradients_apart
from dort_rewriter.torch_defects.inverse_views import detach_owning_results
from dort_rewriter.torch_defects.lost_strides import keep_orders
from dort_rewriter.torch_defects.margin_loss import corrected
from dort_rewriter.torch_defects.metadata import correct_metadata
from dort_rewriter.torch_defects.overlapping_writes import REASON, name_of, overlapping_writes
from dort_rewriter.torch_defects.unused_random import return_unused_random, without_last
from dort_rewriter.torch_defects.view_replays import (
    drop_wrong_replays,
    share_memory,
    view_written_arguments,
)
from dort_rewriter.trace import AtenPass, passes_of, run_passes

_OUT_OF_BOUNDS = ("out of bounds", "out of range")

CompileGraph = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""Takes an ATen graph and its example arguments, returns a callable with the same arguments."""

CompileInference = Callable[[torch.fx.GraphModule, frozenset[str]], Callable[..., Any]]
"""Takes an ATen graph and the names of its placeholders that are weights."""


@in_eager_mode_if_refused
def compile_with_aot(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    compile_graph: CompileGraph,
    decompositions: Mapping[Any, Callable[..., Any]],
    compile_inference: CompileInference | None = None,
    verbose: bool = False,
    watched: Callable[[CompileGraph], CompileGraph] = lambda compiler: compiler,
    key: str | None = None,
    may_overlap: bool = True,
) -> Callable[..., Any]:
    """Compile Dynamo's graph through AOTAutograd: forward and backward, or inference.

    ``compile_inference`` is called in place of ``compile_graph`` for a graph without a backward;
    it is also given the names of the inputs that are weights. ``verbose`` shows the work.
    ``watched`` is given each compiler, for one that AOTAutograd calls instead. ``key`` is of all
    that the graphs depend on besides Dynamo's: torch keeps them under it for other processes.
    ``may_overlap`` is False for a graph that was searched for writes that overlap.
    Raises :class:`CaptureError` for what AOTAutograd would trace wrongly.
    """
    from torch._dynamo.backends.common import aot_autograd

    def finish(
        graph: torch.fx.GraphModule, given: Sequence[Any], traced: Traced
    ) -> Callable[..., Any]:
        drawing.append(traced.kind != "backward" and any(map(is_random, graph.graph.nodes)))
        if traced.kind != "backward":
            drop_wrong_replays(graph.graph, metadata_of_compilation(), shared=shared)
            keep_gradients_apart(metadata_of_compilation())
        if traced.kind != "inference" or compile_inference is None:
            return apply_updates(compile_graph(graph, given), traced.updated)
        return apply_updates(compile_inference(graph, traced.weights), traced.updated)

    shared = share_memory(args)
    drawing: list[bool] = []
    make = functools.partial(_make_compiler, finish, watched)
    keeping: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    for node in overlapping_writes(graph_module) if may_overlap else ():
        raise CaptureError(f"{name_of(node)} is not traced: {REASON}")
    keep_orders(graph_module)
    flat = flatten_interface(graph_module)
    traced, unused = return_unused_random(graph_module if flat is None else flat.graph_module)
    if key is not None:
        from dort_rewriter.capture.cached_graphs import keep, make_keeper

        make, keeping = functools.partial(make_keeper, finish), keep(traced, key, finish)
    types = TypeCheck({**corrected(decompositions), **RANDOM_DECOMPOSITIONS})
    compiler = aot_autograd(
        fw_compiler=make(functools.partial(_prepare_forward, traced.graph)),
        bw_compiler=make(lambda graph: Traced("backward")),
        inference_compiler=make(functools.partial(_prepare_inference, types, traced.graph)),
        partition_fn=functools.partial(_partition, types, traced.graph),
        decompositions=types.decompositions,
        keep_inference_input_mutations=is_inference(args),
    )
    with (
        keep_resizing(decompositions),
        correct_tracing(traced),
        types.watched(),
        shown("Tracing by AOTAutograd", asked=verbose),
        keeping,
    ):
        packed = args if flat is None else flat.pack(*args)
        run = without_last(compiler(traced, packed), unused)
    return _raising_as(graph_module, run if flat is None else flat.around(run), any(drawing))


def _make_compiler(
    finish: Finish,
    watched: Callable[[CompileGraph], CompileGraph],
    prepare: Callable[[torch.fx.GraphModule], Traced],
) -> CompileGraph:
    return watched(lambda graph, given: finish(graph, given, prepare(graph)))


def _raising_as(
    graph_module: torch.fx.GraphModule, compiled: Callable[..., Any], draws: bool
) -> Callable[..., Any]:
    """Let an index out of bounds raise what it raises in eager mode.

    What an operator is decomposed into says something else of its arguments: a label that is no
    class is an index of a ``gather`` there. NOTE: what the graph writes to was not written yet,
    and is written as far as eager mode comes. What was drawn is drawn again.
    """

    def call(*given: Any) -> Any:
        state = torch.get_rng_state() if draws else None
        try:
            return compiled(*given)
        except (IndexError, RuntimeError) as error:
            if not any(words in str(error) for words in _OUT_OF_BOUNDS):
                raise
            found = error
        if state is not None:
            torch.set_rng_state(state)
        # Dynamo's graphs get their code when they are called, which would print what they raise.
        _LazyGraphModule.force_recompile(graph_module)
        graph_module.forward(*given)
        raise found

    return call


class _AotGraph:
    """A graph of AOTAutograd on its way to a compiler."""

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        program: torch.fx.Graph,
        types: TypeCheck | None = None,
    ) -> None:
        self.graph_module = graph_module
        self.graph: torch.fx.Graph = graph_module.graph
        self.types = types
        self.program = program
        """Dynamo's graph."""
        self.metadata = metadata_of_compilation()
        self.updated: tuple[int, ...] = ()
        """The arguments whose new values are its last results."""
        self.results = 0
        """How many results a joint graph has that are the forward part's."""

    def refuse_types(self) -> int:
        assert self.types is not None
        self.types.check(self.graph_module)
        return 0

    def returns_views(self) -> bool:
        """Whether a result of the program is made by a view of another node."""
        if self.metadata is None:
            return False
        first = len(self.metadata.tokens) + len(self.metadata.mutated_inp_runtime_indices)
        results = results_of(self.graph)[first : first + len(self.metadata.output_info)]
        return any(len(lineage(n)) > 1 for n in results if isinstance(n, torch.fx.Node))

    def release_updates(self) -> int:
        """Let the new values of arguments lie in memory as they like: torch copies them.

        They are the first results of a forward graph.
        """
        if self.metadata is None:
            return 0
        updated = [self.metadata.input_info[i] for i in self.metadata.mutated_inp_runtime_indices]
        copied = [
            i for i, info in enumerate(updated) if info.mutates_data and not info.mutates_metadata
        ]
        let_layouts_vary(self.graph, copied)
        return len(copied)

    def take_updates(self) -> int:
        self.updated = take_updates(self.graph_module)
        return len(self.updated)

    def run(self, passes: Sequence[AtenPass[_AotGraph]]) -> None:
        run_passes(passes, self, passes_of(self.graph_module))


_CORRECT_METADATA = AtenPass[_AotGraph](
    "correct_metadata",
    "Nodes have the types and sizes that kernels give, not those that torch traced.",
    lambda given: correct_metadata(given.graph),
)
_REFUSE_TYPES = AtenPass[_AotGraph](
    "refuse_types",
    "Torch's kernels take the types of all operators, or eager mode runs the graph.",
    _AotGraph.refuse_types,  # by the types that kernels give, not by those that torch traced
)
_NAME_KNOWN_MASKS = AtenPass[_AotGraph](
    "name_known_masks",
    "Attention is called causal, or has no mask, where its mask is known.",
    lambda given: name_known_masks(given.graph),
)
_VIEW_WRITTEN_ARGUMENTS = AtenPass[_AotGraph](
    "view_written_arguments",
    "Results that are views of mutated inputs are views of these.",
    lambda given: view_written_arguments(given.graph, given.metadata),
)
_DETACH_OWNING_RESULTS = AtenPass[_AotGraph](
    "detach_owning_results",
    "Results that are no views in eager mode are none of what they are made of.",
    lambda given: detach_owning_results(given.graph, given.metadata, given.program),
    applies=_AotGraph.returns_views,
)
_RELEASE_UPDATES = AtenPass[_AotGraph](
    "release_updates",
    "New values of mutated inputs may have any strides: torch copies them.",
    _AotGraph.release_updates,
)

JOINT: tuple[AtenPass[_AotGraph], ...] = (
    AtenPass(
        "drop_copies",
        "Copies that cannot be told from what they copy are gone.",
        lambda given: drop_copies(given.graph),
    ),
    AtenPass(
        "merge_duplicates",
        "What is computed twice is computed once.",
        lambda given: merge_duplicates(given.graph),
    ),
    _CORRECT_METADATA,
    _REFUSE_TYPES,
    _NAME_KNOWN_MASKS,
    AtenPass(
        "mark_saved",
        "What the backward graph would recompute to other values is saved.",
        lambda given: mark_saved(
            given.graph,
            given.results,
            max(given.results - len(results_of(given.program)), 0),
        ),
    ),
)
"""What a joint graph goes through before it is cut into forward and backward."""

FORWARD: tuple[AtenPass[_AotGraph], ...] = (
    _VIEW_WRITTEN_ARGUMENTS,
    _DETACH_OWNING_RESULTS,
    _RELEASE_UPDATES,
)
"""What a forward graph goes through behind that."""

INFERENCE: tuple[AtenPass[_AotGraph], ...] = (
    _CORRECT_METADATA,
    _REFUSE_TYPES,
    _VIEW_WRITTEN_ARGUMENTS,
    _DETACH_OWNING_RESULTS,
    _RELEASE_UPDATES,
    _NAME_KNOWN_MASKS,
    AtenPass(
        "take_updates",
        "New values of mutated inputs are the last results.",
        _AotGraph.take_updates,
    ),
)
"""What a graph without gradients goes through."""


def _prepare_forward(program: torch.fx.Graph, graph_module: torch.fx.GraphModule) -> Traced:
    _AotGraph(graph_module, program).run(FORWARD)
    return Traced("forward")


def _prepare_inference(
    types: TypeCheck, program: torch.fx.Graph, graph_module: torch.fx.GraphModule
) -> Traced:
    given = _AotGraph(graph_module, program, types)
    given.run(INFERENCE)
    return Traced("inference", given.updated, _weights(graph_module))


def _partition(
    types: TypeCheck,
    program: torch.fx.Graph,
    joint: torch.fx.GraphModule,
    inputs: Any,
    **kwargs: Any,
) -> Any:
    """Cut the joint graph of Dynamo's graph into forward and backward.

    NOTE: min_cut_rematerialization_partition works on every torch; default_partition fails on
    torch 2.8 with dynamic shapes.
    """
    from functorch.compile import min_cut_rematerialization_partition

    given = _AotGraph(joint, program, types)
    given.results = kwargs["num_fwd_outputs"]
    given.run(JOINT)
    with torch._functorch.config.patch(cse=False):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **kwargs)
    saved = range(given.results, len(results_of(forward.graph)))
    let_layouts_vary(forward.graph, saved)
    let_layouts_vary(backward.graph, range(len(results_of(backward.graph))))
    for part in (forward, backward):
        passes_of(part).extend(passes_of(joint))
    return forward, backward


def _weights(graph_module: torch.fx.GraphModule) -> frozenset[str]:
    """The placeholders of the graph under compilation that are parameters or buffers, and
    that the graph leaves as they are."""
    metadata = metadata_of_compilation()
    if metadata is None:
        return frozenset()
    names = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
    mutated = {i for i, info in enumerate(metadata.input_info) if info.mutates_data}
    # Where torch does not tell which inputs are weights (2.3), none is.
    fixed = getattr(metadata, "static_input_indices", None) or ()
    return frozenset(names[i] for i in fixed if i not in mutated)
