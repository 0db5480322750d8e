"""The graphs of the calls that are saved together: captured, described, with shared tensors.

A graph that Dynamo makes for any size is one for sizes of two or more, and torch may have found
bounds while it made it: a convolution chooses its way by batches of 16. A compiled model gets
another graph when such a size comes; what is saved has to have it before. So calls of sizes that
a graph leaves out are made beside the call that it was made for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from dort_rewriter.aten import storage_order
from dort_rewriter.compiler.building import find_mutated_inputs
from dort_rewriter.deployment.capturing import Captured, capture
from dort_rewriter.deployment.compiled import Compiled
from dort_rewriter.deployment.describing import State, describe_call, read_arguments
from dort_rewriter.deployment.examples import Call, map_call, mark_dims
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
from dort_rewriter.signature import inverse_order

logger = logging.getLogger(__name__)

MOST_VARYING = 2
"""Varying sizes of which each has graphs for what is left out; of more, the first one has."""
MOST_BESIDE = 12
"""Graphs that were not asked for."""
LARGEST = 4_096
"""Sizes beyond a bound that are tried."""
_MOST_ELEMENTS = 2**26

Place = tuple[int, int]
"""A tensor of a call, and a dimension of it."""


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
            for size, call in _Sizes(made, self._found.target).calls_beside(places):
                before = len(self.made)
                if added == MOST_BESIDE:
                    logger.info("No more graphs are added: not for %s.", size)
                    return
                try:
                    self.add(call)
                except Exception as error:
                    # Whatever the model raises at sizes that were not asked for.
                    logger.info("No graph is saved for %s: %s", size, error)
                new = self.made[before:]
                added += len(new)
                waiting += [(other, places) for other in new]

    def _places(self, made: MadeGraph) -> list[Place]:
        """The sizes of a graph that are changed for others: all of few, the first of many, and
        where each session holds the weights."""
        places = list(_Sizes(made, self._found.target).places.values())
        return places[:1] if self._found.options.freeze or len(places) > MOST_VARYING else places

    def _takes(self, call: Call) -> bool:
        """Whether a graph that there is takes a call."""
        calls = [[LoadedCall(made.saved, self.state.tensors)] for made in self.made]
        try:
            with torch.set_grad_enabled(self._training):
                choose(calls, *call)
        except CallMismatchError:
            return False
        return True


class _Sizes:
    """The tensors of a call, and their sizes in its graph."""

    def __init__(self, made: MadeGraph, target: Callable[..., Any]) -> None:
        captured, self._call = made.captured, made.call
        args, kwargs = made.call
        _, self._tensors, self._names = read_arguments(target, args, kwargs)
        placeholders = captured.block.graph_module.graph.find_nodes(op="placeholder")
        self._fakes: dict[int, torch.Tensor] = {
            id(value): node.meta["val"]
            for node, value in zip(placeholders, captured.args, strict=True)
            if isinstance(value, torch.Tensor)
        }
        self.places: dict[Any, Place] = {}
        """The first place of each symbol that is a size."""
        self._values: dict[Any, int] = {}
        self._ranges: dict[Any, Any] = {}
        for k, tensor in enumerate(self._tensors):
            for dim, size in self._symbolic(tensor):
                if isinstance(symbol := size.node.expr, sympy.Symbol):
                    self.places.setdefault(symbol, (k, dim))
                    self._values.setdefault(symbol, tensor.shape[dim])
                    self._ranges[symbol] = size.node.shape_env.var_to_range[symbol]

    def _symbolic(self, tensor: torch.Tensor) -> Iterator[tuple[int, torch.SymInt]]:
        """Yield the dimensions of a tensor whose sizes may vary, and these sizes."""
        fake = self._fakes.get(id(tensor))
        sizes: Sequence[Any] = () if fake is None else fake.shape
        for dim, size in enumerate(sizes):
            if isinstance(size, torch.SymInt) and not size.node.expr.is_number:
                yield dim, size

    def calls_beside(self, places: Collection[Place]) -> Iterator[tuple[str, Call]]:
        """Yield calls like this one, each with a size that its graph may leave out: one, two, and
        the next beyond a bound. Only sizes at some places are changed.

        Each comes with the size in words: ``x.shape[0] == 1``.
        """
        for symbol, place in self.places.items():
            for size in self._left_out(symbol) if place in places else ():
                if (made := self._of(symbol, size)) is not None:
                    yield f"{self._names[place[0]]}.shape[{place[1]}] == {size}", made

    def _left_out(self, symbol: Any) -> list[int]:
        """Sizes that graphs leave out: small ones, and the nearest on either side of a range."""
        lower, upper = self._ranges[symbol].lower, self._ranges[symbol].upper
        sizes = {1, 2, max(1, int(lower) - 1)}
        if isinstance(upper, sympy.Integer | int) and upper < LARGEST:
            sizes.add(int(upper) + 1)
        return sorted(sizes)

    def _of(self, changed: Any, size: int) -> Call | None:
        """The call with a size for a symbol; None where a tensor cannot be made so."""
        values = {**self._values, changed: size}
        made: dict[int, torch.Tensor] = {}
        for tensor in self._tensors:
            if id(tensor) in made:
                continue
            part, dims = tensor.detach(), []
            for dim, symbolic in self._symbolic(tensor):
                expression = symbolic.node.expr
                if changed in expression.free_symbols:
                    wanted = int(expression.subs(values))
                    if wanted < 1 or not part.numel():
                        return None
                    part = _resized(part, dim, wanted)
                    if part.numel() > _MOST_ELEMENTS:
                        return None
                dims.append(dim)
            part = _laid_out_as(part, tensor).requires_grad_(tensor.requires_grad)
            mark_dims(part, dims)
            made[id(tensor)] = part
        return map_call(*self._call, lambda t: made[id(t)])


def _resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """A tensor of so many rows, which are the first ones, or those there are again and again: so
    that indices among them stay indices."""
    if size <= tensor.shape[dim]:
        return tensor.narrow(dim, 0, size)
    rows = torch.arange(size, device=tensor.device) % tensor.shape[dim]
    return tensor.index_select(dim, rows)


def _laid_out_as(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """A tensor, dense in the same order of dimensions as another, if that is dense."""
    order = storage_order(whole)
    if order is None and whole.is_contiguous():
        order = tuple(range(whole.dim()))
    if part.shape == whole.shape or order is None:
        return part
    dense = part.permute(order).clone(memory_format=torch.contiguous_format)
    return dense.permute(inverse_order(order))


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
