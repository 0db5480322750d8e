"""Graphs that are compiled: planned, and their blocks replaced by what runs in ONNX Runtime.

A graph is planned when it is compiled; its blocks are exported and built at their first call, so
that a backward graph that does not run costs nothing. What a block was built for may change:
weights and numbers that it holds, ranks, types and fixed sizes of arguments. It is built again
then, or another beside it; one that fails falls back to torch.

No one joins daemon threads when the interpreter ends: it ends, and onnxruntime's state is
destroyed, while they are in a session. Their calls are held back before.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import forward_ad

from dort_rewriter.aten import is_random
from dort_rewriter.capture.interface import retrace
from dort_rewriter.compiler.autotune import Autotuned
from dort_rewriter.compiler.building import build_block
from dort_rewriter.compiler.frozen import FrozenNumbers, FrozenWeights
from dort_rewriter.compiler.problem_report import report_when_asked
from dort_rewriter.compiler.safety_net import guarded, log_fallbacks
from dort_rewriter.compiler.verification import calls_to_verify, verified
from dort_rewriter.errors import CaptureError, ExecutionError, UnsupportedOpError
from dort_rewriter.forks import SafeLock, at_fork
from dort_rewriter.plan.graph_plan import GraphPlan, plan_graph, prepare
from dort_rewriter.plan.partition import copy_graph
from dort_rewriter.plan.placement import PLACED
from dort_rewriter.plan.recipe import (
    BuiltBlock,
    Recipe,
    RunBoxed,
    boxed,
    boxed_module,
    returns_tuple,
)
from dort_rewriter.runtime.providers import with_nodes
from dort_rewriter.runtime.session import Session
from dort_rewriter.signature import GraphSignature, InputSlot, describe_value

logger = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that the end of a program waits for calls of daemon threads."""
HELD = 60.0
"""Seconds that those threads wait for the end, which takes its time on a busy machine. They go on
then: a function of ``atexit`` that was registered early may wait for what they do."""


@functools.cache
def _hold_calls_at_shutdown() -> None:
    """Let no thread but the main one be in a session once the functions of ``atexit`` are done.

    NOTE: the functions of ``atexit`` are called in the opposite order of their registration, and
    onnxruntime has one of its own: this is to be called when it is loaded. What a program
    registers after its first call still finds its threads at work.
    """
    atexit.register(_hold_calls)


def _hold_calls() -> None:
    start = time.monotonic()
    main = threading.get_ident()

    def wait(run: RunBoxed, args: list[Any]) -> Any:
        if threading.get_ident() != main and (left := start + HELD - time.monotonic()) > 0:
            time.sleep(left)
        return run(args)

    def runs(frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code is not wait.__code__:
            if frame.f_code is Block.boxed.__code__:
                return True
            frame = frame.f_back
        return False

    for block in list(_blocks):
        block.hold_back(wait)
    # A thread that has taken what it runs, and is not in it yet, counts: it is in the code.
    while time.monotonic() < start + PATIENCE and any(
        runs(frame) for ident, frame in sys._current_frames().items() if ident != main
    ):
        time.sleep(0.001)


MAX_REBUILT = 2
"""How many times a model is built again because its weights changed."""


class Block:
    """A graph that runs in ONNX Runtime."""

    def __init__(
        self,
        plan: GraphPlan,
        origin: torch.fx.GraphModule | None = None,
    ) -> None:
        self.plan = plan
        self.graph_module = plan.graph_module
        self.recipe = plan.recipe
        self._origin = origin
        """The graph that this one was traced again from."""
        self._relatives: list[tuple[GraphSignature, RunBoxed]] = []
        """The same graph for arguments of other ranks, types or fixed sizes."""
        self._twins: dict[tuple[int, ...], tuple[Block, Sequence[Any]]] = {}
        """The same graph with the weights of other modules in its models, by the identity of
        these; each goes with the first of its weights."""
        self._lock = SafeLock()
        self._run: RunBoxed | None = None
        """Runs the graph on arguments like those it was traced for."""
        self._boxed: RunBoxed | None = None
        """Runs the graph: the above, behind a choice where there are relatives."""
        self._session: Session | None = None
        self._fell_back = False
        self._builds = 0
        self._rebuilt = 0
        self._numbers_vary = False
        self._is_random = any(map(is_random, plan.graph_module.graph.nodes))
        _blocks.add(self)

    def __call__(self, *args: Any) -> Any:
        """Run the graph on its arguments."""
        results = self.boxed(list(args))
        return results if returns_tuple(self.graph_module) else results[0]

    def boxed(self, args: list[Any]) -> Any:
        """Run the graph on a list of arguments, which is emptied."""
        if forward_ad._current_level >= 0 and _has_tangent(args):
            return boxed_module(self.graph_module)(args)  # a session knows of no tangents
        run = self._boxed
        if run is None:
            run = self._prepare(args)
        state = torch.get_rng_state() if self._is_random else None
        try:
            return run(args)
        except ExecutionError as e:
            error = e
        if state is not None:
            torch.set_rng_state(state)  # torch makes them again
        return self._recover(error, args)  # not above: an error of torch comes without ours

    def prepare(self) -> None:
        """Build the session now, out of what the graph says about its arguments."""
        placeholders = [n for n in self.graph_module.graph.nodes if n.op == "placeholder"]
        with unset_fake_temporarily():  # AOTAutograd compiles under it
            self._prepare([n.meta.get("val") for n in placeholders])

    def _prepare(self, args: Sequence[Any]) -> RunBoxed:
        with self._lock:
            return self._boxed or self._use(self._build(args))

    def _use(self, run: RunBoxed) -> RunBoxed:
        """Run the graph so from now on."""
        self._run = run
        self._boxed = self._choose(run) if self._relatives else run
        return self._boxed

    def _build(self, args: Sequence[Any]) -> RunBoxed:
        return guarded(
            lambda: self._build_model(args),
            lambda: boxed_module(self.graph_module),
            self.graph_module,
            args,
            self.recipe.options,
            trace=self.recipe.trace,
        )

    def _build_model(self, args: Sequence[Any]) -> RunBoxed:
        weights = self.recipe.weights if self._rebuilt < MAX_REBUILT else frozenset()
        frozen = FrozenWeights.take(self.graph_module, weights, args)
        numbers = FrozenNumbers.take(() if self._numbers_vary else args)
        try:
            built = build_block(self.plan, args, frozen.tensors, numbers.tensors)
        except UnsupportedOpError as e:
            if not self.recipe.options.fallback:
                raise
            reasons = {u.node: f"{u.reason} ({u.op})" for u in e.unsupported}
            if reasons.items() <= self.recipe.refused.items():  # no node of the graph is to blame
                return self._fall_back(ExecutionError(str(e)), args)
            return assemble(self.plan.without(reasons))
        except ExecutionError as e:
            return self._fall_back(e, args)
        logger.info("%s", describe(built))
        if self.recipe.on_built is not None:
            known = built.graph_module if self._origin is None else self._origin
            self.recipe.on_built(dataclasses.replace(built, graph_module=known))
        self._session = built.session
        _hold_calls_at_shutdown()
        run = built.runner.boxed
        if calls := calls_to_verify(self.recipe.options):
            run = verified(built, run, self.recipe.options, calls)
        if self.recipe.around is not None:
            run = self.recipe.around(self.graph_module, run)
        self._builds += 1
        run = frozen.guard(run, functools.partial(self._run_changed, self._builds, frozen))
        varied = functools.partial(self._rebuild, self._builds, numbers_vary=True)
        return numbers.guard(run, varied)

    def _run_changed(self, build: int, frozen: FrozenWeights, args: list[Any]) -> Any:
        """Run the graph on other weights than its model holds, or on changed ones."""
        key = frozen.identities(args)
        found = self._twins.get(key)
        if found is not None:
            return found[0].boxed(args)
        if frozen.are_taken_from(args) or not frozen.are_alive():
            return self._rebuild(build, args)
        with self._lock:
            if key not in self._twins:
                twins = self._twins

                def forget(_: Any) -> None:
                    twins.pop(key, None)

                weights = [weakref.ref(args[i], forget) for i in frozen.tensors]
                twins[key] = Block(self.plan, self._origin), weights
            twin, _ = self._twins[key]
        return twin.boxed(args)

    def _rebuild(self, build: int, args: list[Any], *, numbers_vary: bool = False) -> Any:
        """Build the model again, its weights having changed: with the new ones, and as inputs
        when that happens too often; or a number: from now on all are inputs."""
        with self._lock:
            # Else another thread was faster to replace what was built.
            if build == self._builds and not self._fell_back:
                if numbers_vary:
                    self._numbers_vary = True
                else:
                    self._rebuilt += 1
                self._use(self._build(args))
        return self.boxed(args)

    def _recover(self, error: ExecutionError, args: list[Any]) -> Any:
        """Run the graph on arguments that its session failed on."""
        if error.unfinished:
            raise error
        taken = signature_of(self.graph_module)
        if self._origin is not None or taken.accepts(args):
            return self._blame(error, args)
        try:
            relative = self._relative(args)
        except CaptureError:
            if not self.recipe.options.fallback:
                raise error from None
            return boxed_module(self.graph_module)(args)  # torch says what is wrong with them
        return relative(args)

    def _blame(self, error: ExecutionError, args: list[Any]) -> Any:
        """Find out whether a run failed because of its arguments, by running the graph in torch.

        If torch raises too, that is what the user gets, and the session stays. If not, the graph
        falls back to torch. NOTE: a run that fails has changed no argument, or says so.
        """
        given = list(args)
        results = boxed_module(self.graph_module)(args)
        self._fall_back(error, given)
        return results

    def _choose(self, run: RunBoxed) -> RunBoxed:
        """Look at the arguments before a session does, now that there are several."""
        taken = signature_of(self.graph_module)

        def call(args: list[Any]) -> Any:
            return run(args) if taken.accepts(args) else self._relative(args)(args)

        return call

    def _relative(self, args: Sequence[Any]) -> RunBoxed:
        with self._lock:
            for taken, run in self._relatives:
                if taken.accepts(args):
                    return run
            traced = retrace(self.graph_module, args)
            run = assemble(plan_graph(traced, self.recipe), self.graph_module)
            self._relatives.append((signature_of(traced), run))
            if self._run is not None:
                self._use(self._run)
            return run

    def _fall_back(self, error: ExecutionError, args: Sequence[Any]) -> RunBoxed:
        """Run this graph in torch from now on."""
        if not self.recipe.options.fallback:
            raise error
        with self._lock:
            if not self._fell_back:
                logger.warning("A graph runs in torch from now on: %s", error)
                report_when_asked(self.graph_module, args, self.recipe.options, str(error))
                self.recipe.trace.failures.append(str(error))
                self._use(boxed_module(self.graph_module))
                self._fell_back = True
            assert self._run is not None
            return self._run

    def hold_back(self, run: Callable[[RunBoxed, list[Any]], Any]) -> None:
        """Have each call made by another function, which is given what makes it now."""
        if self._boxed is not None:
            self._boxed = functools.partial(run, self._boxed)

    def forget_inherited(self) -> None:
        """In a forked child, leave the sessions of the parent alone: the next call builds."""
        inherits = self.recipe.make_runner is not None  # it may have sessions of its own
        if self._session is not None:
            inherits = not self._session.survives_fork()
        if inherits and not self._fell_back:
            self._run = self._boxed = self._session = None


def assemble(plan: GraphPlan, origin: torch.fx.GraphModule | None = None) -> RunBoxed:
    """What runs a planned graph: a block, or torch with blocks for its submodules.

    ``origin`` is the graph that it was traced again from.
    """
    plan.recipe.trace.plans.append(plan)
    log_fallbacks(
        plan.fallbacks,
        plan.called,
        in_part=bool(plan.blocks),
        fallback=plan.recipe.options.fallback,
    )
    if plan.whole:
        return boxed(make_block(plan, origin).boxed)
    for name, part in plan.blocks.items():
        delattr(plan.graph_module, name)
        object.__setattr__(plan.graph_module, name, make_block(part))
    return boxed_module(plan.graph_module)


def make_block(plan: GraphPlan, origin: torch.fx.GraphModule | None = None) -> Block:
    """What runs a graph that is convertible as a whole, built if the recipe says so."""
    block = Block(plan, origin)
    if plan.recipe.build_now:
        block.prepare()
    return block


_blocks: weakref.WeakSet[Block] = weakref.WeakSet()


def _forget_inherited() -> None:
    for block in list(_blocks):
        block.forget_inherited()


at_fork(in_child=_forget_inherited)


def _has_tangent(args: Sequence[Any]) -> bool:
    """Whether an argument is differentiated in forward mode."""
    tensors = (a for a in args if isinstance(a, torch.Tensor))
    return any(forward_ad.unpack_dual(a).tangent is not None for a in tensors)


def signature_of(graph_module: torch.fx.GraphModule) -> GraphSignature:
    """The arguments a graph was traced for; nothing about its results."""
    placeholders = (n for n in graph_module.graph.nodes if n.op == "placeholder")
    slots = (InputSlot(name=None, **describe_value(n.meta.get("val"))) for n in placeholders)
    return GraphSignature(inputs=tuple(slots), outputs=())


def describe(built: BuiltBlock) -> str:
    """A line about a graph that runs in ONNX Runtime."""
    session, signature = built.session, built.signature
    on = ""
    if session is not None:
        on = f" on {with_nodes((p.name for p in session.providers), session.placement)}"
    return (
        f"A graph of {len(built.graph_module.graph.nodes)} nodes is a model of "
        f"{len(built.exported.model.graph)}{on}, inputs {_few(signature.input_names)}, "
        f"outputs {_few(signature.output_names)}"
    )


def _few(names: Sequence[str]) -> str:
    """Names, the first ones of many."""
    shown = ", ".join(map(repr, names[:8]))
    return f"[{shown}{f', ... {len(names)} in all' if len(names) > 8 else ''}]"


def compile_graph(graph_module: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
    """A callable that takes the list of arguments of the graph, and empties it.

    It returns the tuple of the results, also when the graph returns a single one.
    """
    return guarded(
        lambda: _compile(graph_module, recipe),
        lambda: boxed_module(graph_module),
        graph_module,
        None,
        recipe.options,
        trace=recipe.trace,
    )


def _compile(graph_module: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
    if recipe.options.autotune:
        return _autotuned(graph_module, recipe)
    return assemble(plan_graph(graph_module, recipe))


def _autotuned(graph_module: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
    """Try ways to run a graph: ONNX Runtime alone, with some operators in torch, torch."""
    options = dataclasses.replace(recipe.options, autotune=False)
    prepare(graph_module, recipe)

    def planned(**changes: Any) -> GraphPlan:
        changed = dataclasses.replace(options, **changes)
        trace = dataclasses.replace(recipe.trace, plans=[])
        own = dataclasses.replace(recipe, options=changed, trace=trace)
        return plan_graph(copy_graph(graph_module), own)

    ways = {"ONNX Runtime": planned(placement={"*": "onnxruntime"})}
    default = planned()
    if _computes_in_torch(default):
        ways["ONNX Runtime and torch"] = default
    ways["torch"] = planned(placement={"*": "torch"})
    runs = {name: assemble(plan) for name, plan in ways.items()}
    plans = recipe.trace.plans
    plans.extend(plan for way in ways.values() for plan in way.recipe.trace.plans)

    def record(seconds: Mapping[str, float]) -> None:
        *earlier, last = ways[min(seconds, key=seconds.__getitem__)].recipe.trace.plans
        plans[:] = [*earlier, dataclasses.replace(last, timed=seconds)]

    return boxed(Autotuned(runs, record).boxed)


def _computes_in_torch(plan: GraphPlan) -> bool:
    """Whether torch computes by choice what a session could: between sessions or out of one."""
    chosen = any(node.is_kernel or node.by == "call" for _, node in plan.nodes())
    return chosen or any(f.reason == PLACED for f in plan.fallbacks)
