"""Compile one ATen graph: cut it, and replace its blocks by what runs them.

A graph is cut when it is compiled; its blocks are exported and built at their first call, so that
a backward graph nobody runs costs nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd import forward_ad

from dort_rewriter.backends.autotune import Autotuned
from dort_rewriter.backends.blocks import BuiltBlock
from dort_rewriter.backends.building import build_block, shared_in_torch
from dort_rewriter.backends.frozen import FrozenNumbers, FrozenWeights
from dort_rewriter.backends.problem_report import report_when_asked
from dort_rewriter.backends.recipe import Recipe, RunBoxed
from dort_rewriter.backends.safety_net import guarded
from dort_rewriter.backends.verification import calls_to_verify, verified
from dort_rewriter.capture.aliases import reads_by_place, rebase_strided, settle_blocks
from dort_rewriter.capture.metadata import retrace
from dort_rewriter.capture.outputs import SHARED, plan_outputs
from dort_rewriter.capture.partition import Partition, copy_graph, partition_graph
from dort_rewriter.capture.placement import PLACED
from dort_rewriter.capture.randomness import hoist_random
from dort_rewriter.capture.ties import TIES
from dort_rewriter.errors import CaptureError, ExecutionError, UnsupportedOp, UnsupportedOpError
from dort_rewriter.forks import SafeLock, at_fork
from dort_rewriter.runtime.session import Session
from dort_rewriter.signature import GraphSignature, InputSlot, describe_value

__all__ = ["Block", "compile_graph", "cut", "make_block", "returns_tuple"]

logger = logging.getLogger(__name__)

MAX_THAWED = 2
"""How many times a model is built again because its weights changed."""


def compile_graph(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Callable[..., Any]:
    """A callable that takes the list of arguments of the graph, and empties it.

    It returns the tuple of the results, also when the graph returns a single one.
    """
    return guarded(
        lambda: _compile(graph_module, recipe),
        lambda: _boxed_module(graph_module),
        graph_module,
        fallback=recipe.options.fallback,
        trace=recipe.trace,
    )


def _compile(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Callable[..., Any]:
    if recipe.options.autotune:
        return _boxed(Autotuned(_candidates(graph_module, recipe)).boxed)
    partition = cut(graph_module, recipe)
    if partition.whole:
        return _boxed(make_block(graph_module, recipe).boxed)
    return _boxed_module(partition.graph_module)


def _candidates(graph_module: torch.fx.GraphModule, recipe: Recipe) -> dict[str, RunBoxed]:
    """The ways to run a graph: ONNX Runtime alone, with some operators in torch, torch."""
    options = dataclasses.replace(recipe.options, autotune=False)
    hoist_random(graph_module)

    def compiled(**changes: Any) -> RunBoxed:
        changed = dataclasses.replace(recipe, options=dataclasses.replace(options, **changes))
        return compile_graph(copy_graph(graph_module), changed)

    candidates = {"ONNX Runtime": compiled(placement={"*": "onnxruntime"})}
    if any(recipe.place(n) == "torch" for n in graph_module.graph.nodes):
        candidates["ONNX Runtime and torch"] = compiled()
    return {**candidates, "torch": _boxed_module(graph_module)}


def cut(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Partition:
    """Cut a graph, its blocks replaced by what will run them."""
    with recipe.trace.phase("cut"):
        hoist_random(graph_module)
        rebase_strided(graph_module.graph)
        shared = [*plan_outputs(graph_module).left, *reads_by_place(graph_module.graph)]
        left = {n: shared_in_torch(n) for n in shared}
        partition = partition_graph(
            graph_module,
            lambda node: left.get(node) or recipe.refusal(node),
            recipe.options.min_block_size,
        )
        settle_blocks(partition.graph_module, partition.blocks)
    recipe.trace.fallbacks.extend(partition.fallbacks)
    _report(partition, recipe)
    for name in partition.blocks:
        submodule = getattr(partition.graph_module, name)
        delattr(partition.graph_module, name)
        object.__setattr__(partition.graph_module, name, make_block(submodule, recipe))
    return partition


def make_block(graph_module: torch.fx.GraphModule, recipe: Recipe) -> Block:
    """What runs a graph that is convertible as a whole, built if the recipe says so."""
    block = Block(graph_module, recipe)
    if recipe.build_now:
        block.prepare()
    return block


def _report(partition: Partition, recipe: Recipe) -> None:
    """Say once per graph what stays in torch, but for what belongs there."""
    missing = [f for f in partition.fallbacks if not _belongs_in_torch(f)]
    if not missing:
        return
    if not recipe.options.fallback:
        raise UnsupportedOpError(missing)
    if partition.blocks:
        logger.info("These operators run in torch: %s", UnsupportedOpError(missing))
    else:
        logger.warning("A graph runs in torch as a whole: %s", UnsupportedOpError(missing))


def _belongs_in_torch(fallback: UnsupportedOp) -> bool:
    return fallback.reason.startswith("random") or fallback.reason in (PLACED, SHARED, TIES)


def describe(built: BuiltBlock) -> str:
    """A line about a graph that runs in ONNX Runtime."""
    session, signature = built.session, built.signature
    providers = "" if session is None else f" on {', '.join(p.name for p in session.providers)}"
    return (
        f"A graph of {len(built.graph_module.graph.nodes)} nodes is a model of "
        f"{len(built.exported.model.graph)}{providers}, inputs {_few(signature.input_names)}, "
        f"outputs {_few(signature.output_names)}"
    )


def _few(names: Sequence[str]) -> str:
    """Names, the first ones of many."""
    shown = ", ".join(map(repr, names[:8]))
    return f"[{shown}{f', ... {len(names)} in all' if len(names) > 8 else ''}]"


class Block:
    """A graph that runs in ONNX Runtime; its first call builds it."""

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        recipe: Recipe,
        origin: torch.fx.GraphModule | None = None,
    ) -> None:
        self.graph_module = graph_module
        self.recipe = recipe
        self._origin = origin
        """The graph that this one was traced again from."""
        self._relatives: list[tuple[GraphSignature, Block]] = []
        """The same graph for arguments of other ranks, types or fixed sizes."""
        self._lock = SafeLock()
        self._run: RunBoxed | None = None
        """Runs the graph on arguments like those it was traced for."""
        self._boxed: RunBoxed | None = None
        """Runs the graph: the above, behind a choice where there are relatives."""
        self._session: Session | None = None
        self._given_up = False
        self._builds = 0
        self._thawed = 0
        self._numbers_vary = False
        _blocks.add(self)

    def __call__(self, *args: Any) -> Any:
        """Run the graph on its arguments."""
        results = self.boxed(list(args))
        return results if returns_tuple(self.graph_module) else results[0]

    def boxed(self, args: list[Any]) -> Any:
        """Run the graph on a list of arguments, which is emptied."""
        if forward_ad._current_level >= 0 and _has_tangent(args):
            return _boxed_module(self.graph_module)(args)  # a session knows of no tangents
        run = self._boxed
        if run is None:
            run = self._prepare(args)
        try:
            return run(args)
        except ExecutionError as e:
            error = e
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
            lambda: _boxed_module(self.graph_module),
            self.graph_module,
            fallback=self.recipe.options.fallback,
            trace=self.recipe.trace,
        )

    def _build_model(self, args: Sequence[Any]) -> RunBoxed:
        weights = self.recipe.weights if self._thawed < MAX_THAWED else frozenset()
        frozen = FrozenWeights.take(self.graph_module, weights, args)
        numbers = FrozenNumbers.take(() if self._numbers_vary else args)
        try:
            built = build_block(
                self.graph_module, args, self.recipe, frozen.tensors, numbers.tensors
            )
        except UnsupportedOpError as e:
            if not self.recipe.options.fallback:
                raise
            reasons = {u.node: f"{u.reason} ({u.op})" for u in e.unsupported}
            refused = {**self.recipe.refused, **reasons}
            if refused == self.recipe.refused:  # no node of the graph is to blame
                return self._give_up(ExecutionError(str(e)), args)
            return compile_graph(
                self.graph_module, dataclasses.replace(self.recipe, refused=refused)
            )
        except ExecutionError as e:
            return self._give_up(e, args)
        logger.info("%s", describe(built))
        if self.recipe.on_built is not None:
            known = built.graph_module if self._origin is None else self._origin
            self.recipe.on_built(dataclasses.replace(built, graph_module=known))
        self._session = built.session
        run = built.runner.boxed
        if calls := calls_to_verify(self.recipe.options):
            run = verified(built, run, self.recipe.options, calls)
        if self.recipe.around is not None:
            run = self.recipe.around(self.graph_module, run)
        self._builds += 1
        run = frozen.guard(run, functools.partial(self._thaw, self._builds))
        return numbers.guard(run, functools.partial(self._free_numbers, self._builds))

    def _thaw(self, build: int, args: list[Any]) -> Any:
        """Build the model again, its weights having changed: with the new ones, and as inputs
        when that happens too often."""
        with self._lock:
            if self._is_latest(build):
                self._thawed += 1
                self._use(self._build(args))
        return self.boxed(args)

    def _free_numbers(self, build: int, args: list[Any]) -> Any:
        """Build the model again, a number having changed: from now on all are inputs."""
        with self._lock:
            if self._is_latest(build):
                self._numbers_vary = True
                self._use(self._build(args))
        return self.boxed(args)

    def _is_latest(self, build: int) -> bool:
        """Tell whether no other thread was faster to replace what was built."""
        return build == self._builds and not self._given_up

    def _recover(self, error: ExecutionError, args: list[Any]) -> Any:
        """Run the graph on arguments that its session failed on."""
        taken = signature_of(self.graph_module)
        if self._origin is not None or taken.accepts(args):
            return self._blame(error, args)
        try:
            relative = self._relative(args)
        except CaptureError:
            if not self.recipe.options.fallback:
                raise error from None
            return _boxed_module(self.graph_module)(args)  # torch says what is wrong with them
        return relative.boxed(args)

    def _blame(self, error: ExecutionError, args: list[Any]) -> Any:
        """Find out whether a run failed because of its arguments, by running the graph in torch.

        If torch raises too, that is what the user gets, and the session stays. If not, the graph
        is left to torch. NOTE: no operator of a block writes to its arguments: a run that fails
        has changed none of them.
        """
        given = list(args)
        results = _boxed_module(self.graph_module)(args)
        self._give_up(error, given)
        return results

    def _choose(self, run: RunBoxed) -> RunBoxed:
        """Look at the arguments before a session does, now that there are several."""
        taken = signature_of(self.graph_module)

        def call(args: list[Any]) -> Any:
            return run(args) if taken.accepts(args) else self._relative(args).boxed(args)

        return call

    def _relative(self, args: Sequence[Any]) -> Block:
        with self._lock:
            for taken, block in self._relatives:
                if taken.accepts(args):
                    return block
            traced = retrace(self.graph_module, args)
            block = Block(traced, self.recipe, self.graph_module)
            self._relatives.append((signature_of(traced), block))
            if self._run is not None:
                self._use(self._run)
            return block

    def _give_up(self, error: ExecutionError, args: Sequence[Any]) -> RunBoxed:
        """Leave this graph to torch from now on."""
        if not self.recipe.options.fallback:
            raise error
        with self._lock:
            if not self._given_up:
                logger.warning("A graph runs in torch from now on: %s", error)
                report_when_asked(self.graph_module, args, self.recipe.options, str(error))
                self.recipe.trace.failures.append(str(error))
                self._use(_boxed_module(self.graph_module))
                self._given_up = True
            assert self._run is not None
            return self._run

    def forget_inherited(self) -> None:
        """In a forked child, leave the sessions of the parent alone: the next call builds."""
        inherits = self.recipe.make_runner is not None  # it may have sessions of its own
        if self._session is not None:
            inherits = not self._session.survives_fork()
        if inherits and not self._given_up:
            self._run = self._boxed = self._session = None


_blocks: weakref.WeakSet[Block] = weakref.WeakSet()


def _forget_inherited() -> None:
    for block in list(_blocks):
        block.forget_inherited()


at_fork(in_child=_forget_inherited)


def _has_tangent(args: Sequence[Any]) -> bool:
    """Tell whether an argument is differentiated in forward mode."""
    tensors = (a for a in args if isinstance(a, torch.Tensor))
    return any(forward_ad.unpack_dual(a).tangent is not None for a in tensors)


def signature_of(graph_module: torch.fx.GraphModule) -> GraphSignature:
    """The arguments a graph was traced for; nothing about its results."""
    placeholders = (n for n in graph_module.graph.nodes if n.op == "placeholder")
    slots = (InputSlot(name=None, **describe_value(n.meta.get("val"))) for n in placeholders)
    return GraphSignature(inputs=tuple(slots), outputs=())


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
    """What runs a graph in torch, and gives a tuple as sessions do."""
    forward = graph_module.forward
    is_tuple = returns_tuple(graph_module)

    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        results = forward(*given)
        return results if is_tuple else (results,)

    return _boxed(call)
