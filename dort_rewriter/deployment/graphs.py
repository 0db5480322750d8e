"""The graphs of the calls that are saved together: captured, described, with shared tensors."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from dort_rewriter.compiler.building import find_mutated_inputs
from dort_rewriter.deployment.beside import Place, calls_beside, varying_places
from dort_rewriter.deployment.capturing import Captured, capture
from dort_rewriter.deployment.compiled import Compiled
from dort_rewriter.deployment.describing import State, describe_call, read_arguments
from dort_rewriter.deployment.examples import Call
from dort_rewriter.deployment.interface import describe_calls
from dort_rewriter.deployment.loaded_calls import LoadedCall, choose
from dort_rewriter.deployment.reading import MOST_GRAPHS, SavedCall, SavedGraph
from dort_rewriter.deployment.serialization import spell
from dort_rewriter.deployment.steps import StepPlan
from dort_rewriter.errors import (
    CallMismatchError,
    CaptureError,
    ExecutionError,
    ExportError,
    OptionError,
)
from dort_rewriter.plan.recipe import BuiltBlock, Providers
from dort_rewriter.runtime.model_files import uses_torch_kernels

logger = logging.getLogger(__name__)

MOST_VARYING = 2
"""Varying sizes of which each has graphs for what is left out; of more, the first one has."""
MOST_BESIDE = 12
"""Graphs that nobody has asked for."""


@dataclass(frozen=True)
class MadeGraph:
    """A call with its graph, and its gradients' in a training step."""

    call: Call
    captured: Captured
    saved: SavedCall

    @property
    def blocks(self) -> dict[str, BuiltBlock]:
        """What computes its graphs, by kind."""
        backward = self.captured.backward
        more = {} if backward is None else {"backward": backward.block}
        return {"model": self.captured.block, **more}


class Graphs:
    """The graphs of some calls of one compiled model."""

    def __init__(self, found: Compiled, *, training: bool) -> None:
        self._found = found
        self._training = training
        self.made: list[MadeGraph] = []
        self.state = State(found.module)
        """The tensors that they share."""

    def add(self, call: Call) -> None:
        """Make the graph of a call, unless one that there is takes it.

        Raises :class:`CaptureError` for what is not one graph that ONNX Runtime runs as a whole.
        """
        if self._takes(call):
            return
        if len(self.made) == MOST_GRAPHS:
            raise OptionError(f"The calls have more than {MOST_GRAPHS} graphs: save fewer.")
        args, kwargs = call
        try:
            captured = capture(self._found, args, kwargs, training=self._training)
        except (ExportError, ExecutionError) as error:
            raise CaptureError(
                f"It does not run in ONNX Runtime as a whole, and cannot be saved: {error}"
            ) from error
        state = self.state.copy()
        arguments, result = describe_call(captured, self._found.target, args, kwargs, state)
        graph = _saved_graph(captured.block, captured.providers)
        backward = None
        if (found := captured.backward) is not None:
            backward = _saved_graph(found.block, found.providers, found.plan)
        saved = SavedCall(
            arguments=arguments,
            graph=graph,
            backward=backward,
            updates=captured.updates,
            result=result,
        )
        spell(saved)  # which refuses views that a file does not take
        self.made.append(MadeGraph(call, captured, saved))
        self.state = state
        logger.info(
            "A graph of %s nodes is a model of %s, saved for %s.",
            len(captured.block.graph_module.graph.nodes),
            len(captured.block.exported.model.graph),
            describe_calls([arguments])[0] or "no tensors",
        )

    def add_calls_beside(self) -> None:
        """Add graphs for sizes that graphs leave out: one, and those beyond a bound.

        What the model has no graph for is left out, with a line of log.
        """
        waiting = [(made, self._places(made)) for made in self.made]
        added = 0
        while waiting:
            made, places = waiting.pop(0)
            for size, call in calls_beside(made.captured, made.call, self._leaves(made), places):
                before = len(self.made)
                if added == MOST_BESIDE:
                    logger.info("No more graphs are added: not for %s.", size)
                    return
                try:
                    self.add(call)
                except Exception as error:
                    # Whatever the model raises at sizes that nobody has asked for.
                    logger.info("No graph is saved for %s: %s", size, error)
                new = self.made[before:]
                added += len(new)
                waiting += [(other, places) for other in new]

    def _places(self, made: MadeGraph) -> list[Place]:
        """The sizes of a graph that are changed for others: all of few, the first of many, and
        where each session holds the weights."""
        places = varying_places(made.captured, made.call, self._leaves(made))
        return places[:1] if self._found.options.freeze or len(places) > MOST_VARYING else places

    def _leaves(self, made: MadeGraph) -> list[tuple[torch.Tensor, str]]:
        args, kwargs = made.call
        _, tensors, names = read_arguments(self._found.target, args, kwargs)
        return list(zip(tensors, names, strict=True))

    def _takes(self, call: Call) -> bool:
        """Whether a graph that there is takes a call."""
        calls = [[LoadedCall(made.saved, self.state.tensors)] for made in self.made]
        try:
            with torch.set_grad_enabled(self._training):
                choose(calls, *call)
        except CallMismatchError:
            return False
        return True


def _saved_graph(
    block: BuiltBlock, providers: Providers, plan: StepPlan | None = None
) -> SavedGraph:
    return SavedGraph(
        name=f"ONNX Runtime: saved model of {len(block.exported.model.graph)} nodes",
        signature=block.signature,
        writes=find_mutated_inputs(block),
        providers=tuple((n, {k: str(v) for k, v in o.items()}) for n, o in providers),
        torch_kernels=block.session is not None and uses_torch_kernels(block.model),
        placement=None if block.session is None else block.session.placement,
        plan=plan,
    )
