"""explain: what torch.compile makes of a model, what runs in ONNX Runtime, what in torch and why.

The model is compiled as ``backend="onnxrt"`` does, and called once: what is explained is the path
that this call takes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir
import torch

from dort_rewriter import notebook
from dort_rewriter.aten import source_line
from dort_rewriter.backends.arguments import with_mode
from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.backends.onnxrt_graphs import compile_dynamo_graph
from dort_rewriter.compiler.autotune import MEASURES
from dort_rewriter.compiler.block import compile_graph
from dort_rewriter.deployment.compiled import WHAT_IS_SKIPPED, as_given, take_apart
from dort_rewriter.deployment.restoring import left_as_it_was
from dort_rewriter.errors import CaptureError, OptionError, UnsupportedOp
from dort_rewriter.export.registry import op_name
from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_KERNELS
from dort_rewriter.optimize.low_bits import ERROR
from dort_rewriter.options import OrtBackendOptions, from_mapping
from dort_rewriter.plan.graph_plan import describe_times, prepare
from dort_rewriter.plan.recipe import BuiltBlock, Recipe, RunBoxed
from dort_rewriter.runtime.kernel_query import require_low_bit_products
from dort_rewriter.runtime.providers import UNKNOWN
from dort_rewriter.tools.command import HELP, answer, load_pair, make_parser
from dort_rewriter.tools.explain_times import Stopwatch, Times, measure
from dort_rewriter.tools.models import by_count, count_nodes
from dort_rewriter.tools.results import tensors_in
from dort_rewriter.trace import CompileTrace, PassRun


@dataclass(frozen=True, kw_only=True)
class InTorch:
    """An operator that runs in torch."""

    op: str
    reason: str
    count: int
    where: tuple[str, ...]
    """The Python lines it comes from."""


@dataclass(frozen=True, kw_only=True)
class AtenGraph:
    """A graph of ATen operators, forward, backward or of inference alone."""

    kind: Literal["forward", "backward", "inference"]
    ops: dict[str, int]
    """Its operators, and how many of each."""
    models: tuple[dict[str, int], ...]
    """For each part that runs in ONNX Runtime, its ONNX nodes by type."""
    placements: tuple[Mapping[str, Mapping[str, int]] | None, ...]
    """For each of them, the nodes of each execution provider by type, as its session reports
    them; None where it has the CPU alone, or onnxruntime does not say."""
    in_onnxruntime: int
    """How many operators those parts have that are nodes of a model."""
    in_torch: tuple[InTorch, ...]
    torch_kernels: tuple[InTorch, ...] = ()
    """What those parts call in torch, and why it is not converted."""
    passes: tuple[PassRun, ...] = ()
    """What was done to it and decided about it, in order."""
    timed: Mapping[str, float] = field(default_factory=dict)
    """With ``autotune``, the seconds of a call by each way to run it; the fastest is described."""
    providers: tuple[tuple[str, ...], ...] = ()
    """For each of the models, the execution providers of its session, best first."""

    def counts(self) -> dict[str, int]:
        """How many operators run where; they add up to all."""
        return {
            "in ONNX Runtime": self.in_onnxruntime,
            "in torch, called by sessions": sum(t.count for t in self.torch_kernels),
            "in torch": sum(t.count for t in self.in_torch),
        }


@dataclass(frozen=True, kw_only=True)
class CapturedGraph:
    """A graph that Dynamo captured, and what it was lowered to."""

    ops: dict[str, int]
    """What it calls, and how often."""
    lowered: tuple[AtenGraph, ...]


@dataclass(frozen=True, kw_only=True)
class GraphBreak:
    """Where a graph ends before the function does."""

    reason: str
    where: tuple[str, ...]
    """The Python lines, the innermost last."""


@dataclass(frozen=True, kw_only=True)
class LowBitError:
    """What rounded weights change: errors are lengths of differences, by those of float32."""

    weights: str
    """The option: ``int8``, ``int4``."""
    products: int
    """How many products read a rounded weight."""
    weight_error: float
    """Of the weight that is farthest from what it was."""
    result_error: float
    """Of the result that is farthest from that of eager mode."""

    def __str__(self) -> str:
        if not self.products:
            return f"weights={self.weights!r}: no product has a constant weight large enough"
        return (
            f"weights={self.weights!r}: {self.products} products; error of the weights up to "
            f"{self.weight_error:.2%}, of the results {self.result_error:.2%}"
        )


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What :func:`explain` found; ``print(explanation)`` and ``explanation.to_dict()``."""

    graphs: tuple[CapturedGraph, ...]
    breaks: tuple[GraphBreak, ...]
    times: Times | None = None
    """Where the time goes, when it was asked for."""
    low_bits: LowBitError | None = None
    """How far results are from those of float32, with the option ``weights``."""

    @property
    def in_torch(self) -> tuple[InTorch, ...]:
        """Everything that runs in torch, of all graphs."""
        return tuple(t for g in self.graphs for a in g.lowered for t in a.in_torch)

    def describe_passes(self) -> str:
        """What each graph went through: the passes in order, what they changed, and the time."""
        lines = []
        for i, captured in enumerate(self.graphs):
            for graph in captured.lowered:
                lines.append(f"graph {i}, {graph.kind}:")
                for run in graph.passes:
                    did = "-" if run.changed is None else f"{run.changed} nodes"
                    lines.append(
                        f"  {run.name:<22} {did:>10} {run.seconds * 1e3:8.2f} ms  {run.sentence}"
                    )
        return "\n".join(lines)

    @property
    def skipped(self) -> bool:
        """Whether Dynamo captured nothing: the whole model ran in eager mode."""
        return not self.graphs

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = [f"{len(self.graphs)} graph(s), {len(self.breaks)} break(s)"]
        if self.skipped:
            lines.append(
                f"Dynamo captured nothing, so that all of it ran in eager mode. {WHAT_IS_SKIPPED}"
            )
        for i, captured in enumerate(self.graphs):
            lines.append(
                f"graph {i}: {sum(captured.ops.values())} calls ({_counts(captured.ops)})"
            )
            for graph in captured.lowered:
                lines.extend(f"  {line}" for line in _describe(graph))
        for i, found in enumerate(self.breaks):
            lines.append(f"break {i}: {found.reason}")
            lines.extend(f"  at {place}" for place in found.where)
        if self.times is not None:
            lines.append(str(self.times))
        if self.low_bits is not None:
            lines.append(str(self.low_bits))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same as tables, for notebooks."""
        return "".join(_html(self))


def _describe(graph: AtenGraph) -> list[str]:
    total = sum(graph.ops.values())
    first, *others = graph.counts().items()
    where = [first, *((name, count) for name, count in others if count)]
    said = ", ".join(f"{count} {name}" for name, count in where)
    lines = [f"{graph.kind}: {total} operators: {said}"]
    if graph.timed:
        lines.append(f"  {describe_times(graph.timed)}")
    names = graph.providers or ((),) * len(graph.models)
    described = zip(graph.models, graph.placements, names, strict=True)
    for i, (nodes, placed, providers) in enumerate(described):
        total = sum(nodes.values())
        lines.append(f"  model {i}: {total} nodes ({_counts(nodes)}){_by_torch(nodes)}")
        lines.extend(
            f"    on {provider}: {sum(types.values())} ({_counts(types)})"
            for provider, types in (placed or {}).items()
        )
        if placed is None and len(providers) > 1:
            lines.append(f"    on {', '.join(providers)}: {UNKNOWN}")
    for kind, found in (("called in torch", graph.torch_kernels), ("in torch", graph.in_torch)):
        for left in found:
            lines.append(f"  {kind}: {left.count} x {left.op}: {left.reason}")
            lines.extend(f"    at {place}" for place in left.where)
    return lines


def _by_torch(nodes: Mapping[str, int]) -> str:
    """Which nodes of a model kernels of torch compute, inside the session."""
    count = sum(nodes.get(f"{OWN_DOMAIN}.{name}", 0) for name in TORCH_KERNELS)
    return f", {count} of them by kernels of torch" if count else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"


def explain(
    model: Callable[..., Any],
    *args: Any,
    times: bool = False,
    backend_options: OrtBackendOptions | Mapping[str, Any] | None = None,
    compile_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compile a model for ONNX Runtime, call it once, and say what became of it.

    Args:
        model: a module or a function. What was compiled already, by ``torch.compile(model)`` or
            ``model.compile()``, is compiled again in the same way: a model that Dynamo skips
            then has no graphs, and :attr:`Explanation.skipped` is True.
        args: what to call it with.
        times: also say where the time goes, beside eager mode: the model is called many times.
        backend_options: options of ``backend="onnxrt"``; without them a model that was compiled
            by it keeps its own.
        compile_options: arguments of ``torch.compile``, such as ``{"dynamic": True}``.
        kwargs: what to call it with, by name.

    The backward graphs are part of it when the results need gradients; these are computed, and
    accumulated nowhere. What the model writes to is set back, as by :func:`warm_up`.
    ``torch._dynamo.reset()`` is called before and after: what was compiled earlier is compiled
    again when it is used.
    """
    options, settings = _how(model, backend_options, compile_options)
    # A graph that was kept has nothing to explain.
    options = dataclasses.replace(options, fallback=True, cache_graphs=False)
    if options.weights is not None:
        require_low_bit_products(options.weights)
    backend = OrtBackend(options)
    tries = 3 * (1 + MEASURES) if options.autotune else 1  # of three ways
    watch = Stopwatch(backend._options) if times else None
    recorder = _Recorder(backend, watch)
    original = as_given(model)
    torch._dynamo.reset()
    try:
        compiled = torch.compile(original, backend=recorder, **settings)

        def step(function: Callable[..., Any]) -> None:
            _run_backward(function(*args, **kwargs))

        measured = None
        with left_as_it_was(original, (args, kwargs)):
            if watch is None:
                for _ in range(tries):
                    step(compiled)
            else:
                eager, ours = (functools.partial(step, f) for f in (original, compiled))
                measured = measure(eager, ours, watch, tries)
        low_bits = None
        if options.weights is not None:
            torch._dynamo.reset()
            low_bits = _compare_with_float32(original, (args, kwargs), backend)
    finally:
        torch._dynamo.reset()
    graphs = [
        CapturedGraph(ops=ops, lowered=tuple(described() for described in lowered))
        for ops, lowered in recorder.graphs
    ]
    breaks = tuple(dict.fromkeys(recorder.breaks))
    return Explanation(graphs=tuple(graphs), breaks=breaks, times=measured, low_bits=low_bits)


def _how(
    model: Callable[..., Any],
    backend_options: OrtBackendOptions | Mapping[str, Any] | None,
    compile_options: Mapping[str, Any] | None,
) -> tuple[OrtBackendOptions, dict[str, Any]]:
    """The options of the backend, and the other arguments of ``torch.compile``: those given, or
    those that a model was compiled with."""
    settings = dict(compile_options or {})
    if "backend" in settings:
        raise OptionError("explain compiles by backend='onnxrt': leave 'backend' out.")
    given, mode = settings.pop("options", None), settings.pop("mode", None)
    if given is not None and backend_options is not None:
        raise OptionError("Give backend_options, or compile_options['options'], not both.")
    chosen = given if backend_options is None else backend_options
    if chosen is None and mode is None:
        with contextlib.suppress(CaptureError):  # it was not compiled, or by another backend
            found = take_apart(model)
            return found.options, {"dynamic": found.dynamic, **settings}
    return with_mode(from_mapping(OrtBackendOptions, chosen), mode), settings


def _run_backward(results: Any) -> None:
    """Compute gradients, so that AOTAutograd compiles the backward graphs; none is accumulated."""
    roots = [r.real if r.is_complex() else r for r in tensors_in(results) if r.requires_grad]
    leaves = _leaves(roots)
    if leaves:
        torch.autograd.grad([r.sum() for r in roots], leaves, allow_unused=True)


def _leaves(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that gradients of results are accumulated in."""
    waiting = [r.grad_fn for r in roots]
    seen, found = set(waiting), [r for r in roots if r.grad_fn is None]
    while waiting:
        node = waiting.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append(leaf)
        for following, _ in () if node is None else node.next_functions:
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _nodes_that_run(built: BuiltBlock) -> dict[str, int]:
    """The nodes of a model by type, as transforms of a user left them."""
    model = built.model
    return count_nodes(model if isinstance(model, ir.Model) else ir.from_proto(model))


class _Recorder:
    """Compiles the graphs of Dynamo, and keeps what became of each."""

    def __init__(self, backend: OrtBackend, watch: Stopwatch | None) -> None:
        self.backend = backend
        self.watch = watch
        self.graphs: list[tuple[dict[str, int], list[Callable[[], AtenGraph]]]] = []
        """What Dynamo's graphs call; and the records of their graphs of ATen operators, once they
        have run."""
        self.breaks: list[GraphBreak] = []

    def __call__(
        self, graph_module: torch.fx.GraphModule, args: Sequence[Any]
    ) -> Callable[..., Any]:
        reason: Any = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is not None and reason.graph_break:
            places = tuple(
                f"{f.filename}:{f.lineno} in {f.name}: {f.line}" for f in reason.user_stack
            )
            self.breaks.append(GraphBreak(reason=_reason(str(reason.reason)), where=places))
        ops = by_count(
            _target_name(n.target) for n in graph_module.graph.nodes if n.op.startswith("call_")
        )
        lowered: list[Callable[[], AtenGraph]] = []
        self.graphs.append((ops, lowered))  # the backward graph comes later
        compiler = functools.partial(self._compile, lowered)
        options = self.backend._options
        return compile_dynamo_graph(self.backend, graph_module, args, options, compiler)

    def _compile(
        self,
        lowered: list[Callable[[], AtenGraph]],
        graph_module: torch.fx.GraphModule,
        recipe: Recipe,
    ) -> RunBoxed:
        trace, built = CompileTrace(), list[BuiltBlock]()
        recipe = dataclasses.replace(recipe, trace=trace, on_built=built.append)
        watch = self.watch
        if watch is not None:
            watch.traces.append(trace)
            recipe = dataclasses.replace(recipe, around=functools.partial(_watch, watch, built))
        prepare(graph_module, recipe)  # as the compilation does: the operators are those it sees
        calls = {n.name: n for n in graph_module.graph.nodes if _computes(n)}
        kind = _kind(graph_module)
        run = compile_graph(graph_module, recipe)
        lowered.append(functools.partial(_described, kind, calls, trace, built))
        return run if watch is None else watch.watch_graph(run)


def _described(
    kind: Literal["forward", "backward", "inference"],
    calls: Mapping[str, torch.fx.Node],
    trace: CompileTrace,
    built: Sequence[BuiltBlock],
) -> AtenGraph:
    timed = trace.plans[-1].timed if trace.plans else {}
    if timed:  # only what runs from now on
        plans = [p for plan in trace.plans for p in (plan, *plan.blocks.values())]
        built = [b for b in built if any(b.graph_module is p.graph_module for p in plans)]
    inside = {n.name for b in built for n in b.graph_module.graph.nodes if _computes(n)}
    reasons = {c.node: c.reason for plan in trace.plans for c in plan.called}
    outside = [n for name, n in calls.items() if name not in inside]
    called = [name for name in calls if name in inside and name in reasons]
    computed = [b for b in built if b.computed]
    sessions = [b.session for b in computed]
    return AtenGraph(
        kind=kind,
        ops=by_count(op_name(n.target) for n in calls.values()),
        models=tuple(map(_nodes_that_run, computed)),
        placements=tuple(None if s is None else s.placement for s in sessions),
        providers=tuple(() if s is None else tuple(p.name for p in s.providers) for s in sessions),
        in_onnxruntime=len(calls) - len(outside) - len(called),
        in_torch=_left_to_torch(outside, trace),
        torch_kernels=_grouped((calls[name], reasons[name]) for name in called),
        passes=trace.plans[0].passes if trace.plans else (),
        timed=timed,
    )


def _watch(watch: Stopwatch, built: list[BuiltBlock], _: Any, run: RunBoxed) -> RunBoxed:
    return watch.watch_session(built[-1], run)  # it was built just before


def _compare_with_float32(
    model: Callable[..., Any], inputs: tuple[Sequence[Any], Mapping[str, Any]], backend: OrtBackend
) -> LowBitError:
    """Call a model in inference, in eager mode and by a backend, and compare the results."""
    args, kwargs = inputs
    built: list[BuiltBlock] = []
    compiled = torch.compile(model, backend=functools.partial(_compile, backend, built))
    with torch.no_grad():
        with left_as_it_was(model, (tuple(args), dict(kwargs))):
            expected = _tensors(model(*args, **kwargs))
        with left_as_it_was(model, (tuple(args), dict(kwargs))):
            given = _tensors(compiled(*args, **kwargs))
    nodes = [n for b in built for n in b.exported.model.graph if n.op_type == "MatMulNBits"]
    errors = [float(n.metadata_props[ERROR]) for n in nodes]
    return LowBitError(
        weights=str(backend._options.weights),
        products=len(nodes),
        weight_error=max(errors, default=0.0),
        result_error=max(
            (_error(a, b) for a, b in zip(given, expected, strict=True)), default=0.0
        ),
    )


def _compile(
    backend: OrtBackend,
    built: list[BuiltBlock],
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
) -> Callable[..., Any]:
    def compile_part(graph: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
        return compile_graph(graph, dataclasses.replace(recipe, on_built=built.append))

    return compile_dynamo_graph(backend, graph_module, args, backend._options, compile_part)


def _tensors(results: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for t in tensors_in(results) if t.is_floating_point()]


def _error(given: torch.Tensor, expected: torch.Tensor) -> float:
    length = float(expected.double().norm())
    difference = float((given.double() - expected.double()).norm())
    return difference / length if length else difference


_REASONS = {"generic_jump": "a branch on the value of a tensor"}
"""torch's shortest words for a break, and what they mean."""


def _reason(words: str) -> str:
    meaning = _REASONS.get(words.partition(" ")[0])
    return words.strip() if meaning is None else f"{meaning} ({words.strip()})"


def _computes(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


def _kind(graph_module: torch.fx.GraphModule) -> Literal["forward", "backward", "inference"]:
    # These are the names that AOTAutograd gives to arguments.
    names = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
    if any(name.startswith("tangents_") for name in names):
        return "backward"
    return "forward" if any(name.startswith("primals_") for name in names) else "inference"


def _left_to_torch(nodes: Sequence[torch.fx.Node], trace: CompileTrace) -> tuple[InTorch, ...]:
    refused: dict[str, UnsupportedOp] = {f.node: f for p in trace.plans for f in p.fallbacks}
    failure = f"its session failed: {trace.failures[0]}" if trace.failures else ""
    otherwise = failure or "too few operators around it to be worth a session"
    return _grouped((n, refused[n.name].reason if n.name in refused else otherwise) for n in nodes)


def _grouped(nodes: Iterable[tuple[torch.fx.Node, str]]) -> tuple[InTorch, ...]:
    """Nodes and their reasons, those of one operator and reason together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node, reason in nodes:
        groups.setdefault((op_name(node.target), reason), []).append(source_line(node))
    return tuple(
        InTorch(
            op=op,
            reason=reason,
            count=len(places),
            where=tuple(dict.fromkeys(p for p in places if p)),
        )
        for (op, reason), places in groups.items()
    )


def _target_name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def _html(found: Explanation) -> Iterator[str]:
    yield notebook.heading(f"{len(found.graphs)} graph(s), {len(found.breaks)} break(s)")
    graphs = [(i, graph) for i, captured in enumerate(found.graphs) for graph in captured.lowered]
    wheres = list(graphs[0][1].counts()) if graphs else []
    header = ("graph", "kind", "operators", *wheres, "models", "nodes")
    rows = [
        (
            *(i, graph.kind, sum(graph.ops.values()), *graph.counts().values()),
            *(len(graph.models), sum(sum(model.values()) for model in graph.models)),
        )
        for i, graph in graphs
    ]
    yield notebook.table(rows, header)
    outside = [
        (i, where, left.count, left.op, left.reason, "\n".join(left.where))
        for i, graph in graphs
        for where, found_there in (
            ("called by a session", graph.torch_kernels),
            ("beside the sessions", graph.in_torch),
        )
        for left in found_there
    ]
    if outside:
        yield notebook.heading("In torch")
        yield notebook.table(outside, ("graph", "", "count", "operator", "reason", "Python"))
    if found.breaks:
        yield notebook.heading("Breaks")
        places = [(b.reason, b.where[-1] if b.where else "") for b in found.breaks]
        yield notebook.table(places, ("reason", "Python"))
    if found.times is not None:
        yield from _times(found.times)
    if found.low_bits is not None:
        yield notebook.text(str(found.low_bits))
    yield notebook.details("all of it as text", f"<pre>{html.escape(str(found))}</pre>")


def _times(times: Times) -> Iterator[str]:
    yield notebook.heading(times.summary())
    if times.busy:
        yield notebook.text(f"NOTE: {times.busy}.")
    for title, rows in times.tables().items():
        made = [(seconds * 1e3, f"{share:.0%}", name) for seconds, share, name in rows]
        yield notebook.details(title, notebook.table(made, ("ms", "share", "")))


def run_explain(arguments: Sequence[str]) -> int:
    """Print what became of a model; 1 with ``--strict`` when anything runs in torch."""
    parser = make_parser(
        "explain",
        "Compile a model for ONNX Runtime, call it once, and print its graphs, where they break\n"
        "and why, and which operators run in torch and why.",
        "examples:\n"
        "  dort-rewriter explain model.py:make_model\n"
        "  dort-rewriter explain model.py:make_model --times\n"
        "  dort-rewriter explain model.py:make_model --passes\n"
        "  dort-rewriter explain package.models:small --dynamic --json",
    )
    parser.add_argument("model", metavar="MODEL", help=HELP)
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    parser.add_argument("--times", action="store_true", help="also say where the time goes")
    parser.add_argument(
        "--passes",
        action="store_true",
        help="also say what was done to each graph before it was exported, in order",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 when a graph breaks or torch runs any"
    )
    options = parser.parse_args(arguments)
    model, args = load_pair(options.model)
    compile_options = {"dynamic": True} if options.dynamic else None
    with contextlib.redirect_stdout(sys.stderr):  # what the model prints is no answer
        found = explain(model, *args, times=options.times, compile_options=compile_options)
    text = f"{found}\n{found.describe_passes()}" if options.passes else str(found)
    answer(options.json, found.to_dict(), text)
    torchs = found.in_torch or any(a.torch_kernels for g in found.graphs for a in g.lowered)
    return int(options.strict and bool(found.breaks or torchs or found.skipped))
