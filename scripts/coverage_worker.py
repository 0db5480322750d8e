"""What ``opset_coverage.py`` does with an entry of ``op_db``: trace, convert, run, judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx_ir as ir
import torch
from op_db_entries import as_near, call_of, compare, evaluate, spread
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition

from dort_rewriter.capture.tracing import keep_resizing
from dort_rewriter.compiler.building import add_casts
from dort_rewriter.errors import ExecutionError, UnsupportedOpError
from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import ExportedGraph, convert_graph
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.export.registry import Converter, op_name
from dort_rewriter.export.torch_calls import (
    call_converter,
    is_called,
    mark_called,
    may_be_called,
)
from dort_rewriter.kernels.torch_calls import register_call
from dort_rewriter.plan.placement import ORDERED, has_torchs_order
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import Session, create_session, session_options
from dort_rewriter.runtime.threads import ThreadPolicy

DTYPES = (torch.float32, torch.int64, torch.bool)
MEMORY_AS_FOUND = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"}
MEMORY_AS_FOUND.add("new_empty_strided")
"""Entries without a value to compare: types and shapes only."""
LONGEST_DETAIL = 400


class Graph:
    """One graph that AOTAutograd made: converted, run beside torch, judged."""

    def __init__(self, kind: str, module: torch.fx.GraphModule, sweep: Sweep) -> None:
        self.kind = kind
        self.module = module
        self.values_count = sweep.values_count
        self.status = "converted"
        self.detail = ""
        self.ops: list[str] = []
        self.executor: Executor | None = None
        try:
            self.executor = self.build(sweep)
        except UnsupportedOpError as e:
            self.status = "cut"
            self.ops = sorted({f"{u.op}: {u.reason}" for u in e.unsupported})
        except Exception as e:
            # Whatever breaks is the finding.
            self.judge("error", f"{type(e).__name__}: {e}")

    def build(self, sweep: Sweep) -> Executor:
        """Convert the graph, with calls of torch for what has no converter; build its session."""
        try:
            self.call([n for n in self.module.graph.nodes if _has_ties(n)])
            exported = self.convert(sweep)
        except UnsupportedOpError as error:
            refused = {u.node for u in error.unsupported}
            nodes = [n for n in self.module.graph.nodes if n.name in refused]
            if not nodes or not all(may_be_called(n, draws=True) for n in nodes):
                raise
            self.call(nodes)
            exported = self.convert(sweep)
        session = new_session(exported.model) if exported.output_names else None
        return Executor(session, exported.signature)

    def convert(self, sweep: Sweep) -> ExportedGraph:
        """Convert the graph as backends do: an argument that it does not read may be anything."""
        return convert_graph(
            self.module, sweep.dispatcher, opset=sweep.opset, keep_unused_inputs=False
        )

    def call(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Let the session call nodes in torch."""
        for node in nodes:
            mark_called(node)
            self.status = "torch kernel"
        self.ops = sorted({*self.ops, *(op_name(n.target) for n in nodes)})

    def is_random(self) -> bool:
        """Whether the graph draws random numbers."""
        return any(
            torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            for node in self.module.graph.nodes
        )

    def judge(self, status: str, detail: str) -> None:
        """Lower the status; the first finding is the one to tell."""
        if self.status in ("converted", "torch kernel"):
            self.status, self.detail = status, " ".join(detail.split())[:LONGEST_DETAIL]

    def __call__(self, *args: Any) -> Any:
        """Run through ONNX Runtime and torch; what follows goes on with torch's results."""
        before = torch.get_rng_state()
        expected = self.module(*args)
        behind = torch.get_rng_state()
        if self.executor is not None:
            torch.set_rng_state(before)  # it draws the same numbers
            try:
                got = self.executor(*args)
            except Exception as e:
                # Whatever breaks is the finding.
                self.judge("error", f"{type(e).__name__}: {e}")
            else:
                difference = compare(got, expected, self.values_count)
                if difference and not self.is_noise(args, got, expected):
                    self.judge("wrong", difference)
            torch.set_rng_state(behind)
        return expected

    def is_noise(self, args: Sequence[Any], got: Sequence[Any], expected: Sequence[Any]) -> bool:
        """Whether results differ only where float32 itself cannot tell.

        NOTE: some gradients are differences of large terms that cancel (a normalization over one
        element: 0 in float64, 1e-4 in eager). The graph is run in float64: a result that is not
        farther from it than eager's own is not wrong.
        """
        wide = [_as_float64(a) for a in args]
        try:
            exact = self.module(*wide)
        except (RuntimeError, TypeError, ValueError):  # it insists on the types it was traced with
            return False
        return as_near(got, expected, exact)


def _has_ties(node: torch.fx.Node) -> bool:
    """Whether a result depends on an order of torch's kernel: ours for it is not asked."""
    if node.op != "call_function" or (name := op_name(node.target)) not in ORDERED:
        return False
    return has_torchs_order(node, name, has_kernel=lambda: False)


def _as_float64(value: Any) -> Any:
    wide = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    if isinstance(value, torch.Tensor) and value.dtype in wide:
        return value.to(wide[value.dtype])
    return value


def new_session(model: ir.Model) -> Session:
    """A session, with the casts the backends put around nodes without a kernel."""
    options = session_options(threads=ThreadPolicy(intra_op_threads=1))
    try:
        return create_session(model, options=options)
    except ExecutionError as e:
        if not any(code in str(e) for code in ("NOT_IMPLEMENTED", "INVALID_GRAPH")):
            raise
    add_casts(model, provider="CPUExecutionProvider")
    return create_session(model, options=options)


class Calls(Dispatcher):
    """A dispatcher, before which nodes that a session calls in torch are written so."""

    def __init__(self, others: Dispatcher) -> None:
        super().__init__()
        self.others = others

    def find(self, node: torch.fx.Node) -> Converter | str:
        if is_called(node):
            return call_converter(op_name(node.target), register_call)
        return self.others.find(node)


class Sweep:
    """Measures the samples of one entry after the other."""

    def __init__(self, samples: int, opset: int, dynamic: bool) -> None:
        self.samples = samples
        self.opset = opset
        self.dynamic = dynamic
        converters = OxsDispatcher()
        self.dispatcher = Calls(converters)
        self.table = get_decomposition_table(converters)
        self.values_count = True

    def measure(self, entry: Any) -> Iterator[dict[str, Any]]:
        """Yield a record for each graph of each sample of an entry."""
        self.values_count = entry.name not in MEMORY_AS_FOUND
        supported = entry.supported_dtypes("cpu")
        for dtype in DTYPES:
            if dtype not in supported:
                continue
            grad = dtype.is_floating_point and entry.supports_autograd
            for number, sample in self._choose(entry, dtype, grad):
                where = {"dtype": str(dtype).removeprefix("torch."), "sample": number}
                for record in self._measure_sample(entry, sample, grad):
                    yield {**where, **record}

    def _choose(self, entry: Any, dtype: torch.dtype, grad: bool) -> list[tuple[int, Any]]:
        """Samples from all over the list: neighbours are alike."""
        torch.manual_seed(0)
        found = entry.sample_inputs("cpu", dtype, requires_grad=grad)
        return spread(found, self.samples)

    def _measure_sample(self, entry: Any, sample: Any, grad: bool) -> list[dict[str, Any]]:
        call, tensors = call_of(entry, sample, grad)
        try:
            expected, expected_grads = evaluate(call, tensors, gradients_of)
        except Exception:
            # The sample itself is refused by eager: there is nothing to compare with.
            return []
        if not expected:
            return []
        return self._compile_and_compare(call, tensors, expected, expected_grads)

    def _compile_and_compare(
        self,
        call: Callable[..., list[torch.Tensor]],
        tensors: list[torch.Tensor],
        expected: list[torch.Tensor],
        expected_grads: list[Any],
    ) -> list[dict[str, Any]]:
        graphs: dict[str, Graph] = {}

        def compiler(kind: str) -> Callable[..., Any]:
            def compile_graph(module: torch.fx.GraphModule, inputs: Any) -> Any:
                graphs[kind] = Graph(kind, module, self)
                return make_boxed_func(graphs[kind])

            return compile_graph

        torch._dynamo.reset()
        compiled = aot_function(
            call,
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("forward"),
            partition_fn=min_cut_rematerialization_partition,
            decompositions=self.table,
            dynamic=self.dynamic,
        )
        try:
            with keep_resizing(self.table):
                got, grads = evaluate(compiled, tensors, gradients_of)
        except Exception as e:
            # torch's tracing refuses in every way Python has; so does a graph when it runs.
            kind = "backward" if graphs else "forward"
            detail = " ".join(f"{type(e).__name__}: {e}".split())[:LONGEST_DETAIL]
            found = [_record(g) for k, g in graphs.items() if k != kind]
            return [*found, {"graph": kind, "status": "untraceable", "detail": detail}]
        if graphs["forward"].is_random():  # drawn otherwise than eager does
            return [_record(g) for g in graphs.values()]
        for kind, a, b in (
            ("forward", got, expected),
            ("backward", grads, expected_grads),
        ):
            if kind in graphs and (difference := compare(a, b, self.values_count)):
                graphs[kind].judge(
                    "wrong", f"decomposed by torch into another result: {difference}"
                )
        return [_record(g) for g in graphs.values()]


def _record(graph: Graph) -> dict[str, Any]:
    record: dict[str, Any] = {"graph": graph.kind, "status": graph.status}
    if graph.detail:
        record["detail"] = graph.detail
    if graph.ops:
        record["ops"] = graph.ops
    return record


def gradients_of(_: int, result: torch.Tensor) -> torch.Tensor:
    """Numbers at random. NOTE: not `randn_like`, which draws in the order of the memory."""
    return torch.randn(result.shape, dtype=result.dtype)
