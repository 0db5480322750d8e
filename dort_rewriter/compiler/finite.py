"""``options={"verify": "finite"}``: results that are not finite are traced to where they are made.

Each call of a graph looks at its results. Where one is infinite or no number, the graph is run
again in torch on the same arguments, node by node, and the first node that makes such a value out
of others is named, with its Python line and its inputs. Infinities that the program writes down
itself (``masked_fill(mask, -inf)``), or is given in what is no parameter, are left alone as long
as nothing else comes of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dort_rewriter.aten import ancestors, is_random, source_line
from dort_rewriter.capture.updates import updates_of
from dort_rewriter.compiler.verification import copies
from dort_rewriter.errors import NotFiniteError
from dort_rewriter.export.registry import op_name
from dort_rewriter.plan.partition import copy_graph
from dort_rewriter.plan.recipe import RunBoxed

SHOWN = 6
"""Inputs of a node that are described."""


class FiniteChecks:
    """Looks at the results of the graphs of one call of Dynamo: forward, then backward."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        self._sources = [_source(n) for n in _placeholders(graph_module)]
        self._names: dict[str, str] = {}
        """What the program calls the arguments, by the names of their placeholders."""

    def watch(self, graph_module: torch.fx.GraphModule) -> _Watched:
        """Keep a graph as it is, before it is compiled."""
        names = [n.name for n in _placeholders(graph_module)]
        kind = "backward" if any(name.startswith("tangents_") for name in names) else "forward"
        if kind == "forward" and len(names) == len(self._sources):
            pairs = zip(names, self._sources, strict=True)
            self._names |= {name: source for name, source in pairs if source}
        return _Watched(copy_graph(graph_module), kind, self._names)


class _Watched:
    """A graph whose results have to be finite."""

    def __init__(
        self, graph_module: torch.fx.GraphModule, kind: str, names: Mapping[str, str]
    ) -> None:
        self._graph_module = graph_module
        self._kind = kind
        self._names = names
        self._is_random = any(map(is_random, graph_module.graph.nodes))
        self._updated = frozenset(updates_of(graph_module.graph).values())
        self._infinite: set[int] = set()
        """Results that are infinite because the program says so."""

    def checked(self, run: RunBoxed) -> RunBoxed:
        """What runs the graph, and raises :class:`NotFiniteError` for results that are not finite
        and whose values were made so, or given."""

        def call(args: list[Any]) -> Any:
            given = [
                copies([a])[0] if i in self._updated else a for i, a in enumerate(args)
            ]  # what runs the graph may write to those
            state = torch.get_rng_state() if self._is_random else None
            results = run(args)
            self._check(results, given, state)
            return results

        call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
        return call

    def _check(self, results: Any, given: list[Any], state: torch.Tensor | None) -> None:
        listed = list(results) if isinstance(results, list | tuple) else [results]
        kinds = {i: _Kind.of(r) for i, r in enumerate(listed)}
        bad = {i: k for i, k in kinds.items() if k.nan or (k.inf and i not in self._infinite)}
        if not bad:
            return
        replay = _Replay(self._graph_module)
        now = torch.get_rng_state()
        try:
            if state is not None:
                torch.set_rng_state(state)
            with torch.no_grad():
                replay.run(*copies(given))
        finally:
            torch.set_rng_state(now)
        for i, kind in bad.items():
            text, node = self._explain(replay, i, kind, given)
            if text:
                raise NotFiniteError(
                    f"{text} It shows in result {i} of the {self._kind} graph.",
                    node="" if node is None else node.name,
                    where="" if node is None else source_line(node),
                )
            self._infinite.add(i)

    def _explain(
        self, replay: _Replay, place: int, kind: _Kind, args: list[Any]
    ) -> tuple[str, torch.fx.Node | None]:
        """Where a result has its value from; an empty text when the program says it itself."""
        output = next(n for n in self._graph_module.graph.nodes if n.op == "output")
        leaf = tree_leaves(output.args, is_leaf=lambda v: v is None)[place]
        needed = ancestors([leaf])
        if (made := replay.first_made(needed, nan=kind.nan)) is not None:
            return self._describe(replay, made), made.node
        for node, value in zip(_placeholders(self._graph_module), args, strict=True):
            given, trained = replay.kind_of(node), isinstance(value, torch.nn.Parameter)
            if node in needed and (given.nan or (given.inf and (kind.nan or trained))):
                what, text = self._name(node), given.text()
                return f"The argument {what} of the {self._kind} graph has {text} already.", node
        if replay.kind_of(leaf) == _FINITE:
            return (
                "ONNX Runtime gives a value that is not finite where torch gives finite ones: "
                'options={"verify": True} names the node that differs.'
            ), None
        return "", None

    def _describe(self, replay: _Replay, made: _Made) -> str:
        where = source_line(made.node)
        infinite = [n for n in made.node.all_input_nodes if replay.kind_of(n).inf]
        parts = [
            f"{op_name(made.node.target)} makes {made.kind.text()} of",
            f" {'infinite' if infinite else 'finite'} values",
            f" at {where}" if where else "",
            f". Its inputs: {'; '.join(self._inputs(made))}" if made.inputs else "",
            ".",
        ]
        text = "".join(parts)
        if infinite and made.kind.nan:
            earlier = replay.first_made(ancestors(infinite[:1]), nan=False)
            if earlier is not None:
                line = source_line(earlier.node)
                text += (
                    f" The infinity comes from {op_name(earlier.node.target)}"
                    f"{f', at {line}' if line else ''}."
                )
        return text

    def _inputs(self, made: _Made) -> Iterator[str]:
        for node, text in list(made.inputs.items())[:SHOWN]:
            yield f"{self._name(node)} {text}"
        if len(made.inputs) > SHOWN:
            yield f"{len(made.inputs) - SHOWN} more"

    def _name(self, node: torch.fx.Node) -> str:
        return self._names.get(node.name, node.name)


@dataclass(frozen=True)
class _Kind:
    """Which values of a tensor are not finite."""

    nan: bool = False
    inf: bool = False

    @staticmethod
    def of(value: Any) -> _Kind:
        if not isinstance(value, torch.Tensor):
            number = isinstance(value, float) and not math.isfinite(value)
            return _Kind(number and math.isnan(value), number and math.isinf(value))
        if not (value.is_floating_point() or value.is_complex()) or value.layout != torch.strided:
            return _FINITE
        plain = value.detach()
        if bool(torch.isfinite(plain).all()):
            return _FINITE
        return _Kind(bool(torch.isnan(plain).any()), bool(torch.isinf(plain).any()))

    def text(self) -> str:
        return "NaN" if self.nan else "an infinity"


_FINITE = _Kind()


@dataclass(frozen=True)
class _Made:
    """A node with a value that is not finite, and none of its inputs' is so."""

    node: torch.fx.Node
    kind: _Kind
    inputs: Mapping[torch.fx.Node, str]
    """What each of its inputs holds, in words."""


class _Replay(torch.fx.Interpreter):
    """A run of a graph in torch that notes which nodes make values that are not finite."""

    def __init__(self, graph_module: torch.fx.GraphModule) -> None:
        super().__init__(graph_module)
        self._kinds: dict[torch.fx.Node, _Kind] = {}
        self._made: list[_Made] = []

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node, and look at its result."""
        # NOTE: before it runs: it may write to what it is given.
        values = {i: self.env[i] for i in n.all_input_nodes} if n.op == "call_function" else {}
        result = super().run_node(n)
        if n.op == "output":
            return result
        found = [_Kind.of(leaf) for leaf in tree_leaves(result)]
        kind = _Kind(any(k.nan for k in found), any(k.inf for k in found))
        self._kinds[n] = kind
        if kind != _FINITE and n.op == "call_function":
            self._note(n, kind, result, values)
        return result

    def _note(
        self, n: torch.fx.Node, kind: _Kind, result: Any, values: Mapping[torch.fx.Node, Any]
    ) -> None:
        before = [self.kind_of(i) for i in values]
        before += [_Kind.of(v) for v in tree_leaves((n.args, n.kwargs)) if isinstance(v, float)]
        makes_nan = kind.nan and not any(k.nan for k in before)
        makes_inf = kind.inf and not any(k.nan or k.inf for k in before)
        if makes_nan or makes_inf:
            place = _first_place(result, nan=makes_nan)
            inputs = {i: _summary(v, place) for i, v in values.items()}
            self._made.append(_Made(n, _Kind(makes_nan, makes_inf), inputs))

    def first_made(self, needed: set[torch.fx.Node], *, nan: bool) -> _Made | None:
        """The first of some nodes that made NaN, or infinity, of other values."""
        made = (m for m in self._made if m.node in needed)
        return next((m for m in made if (m.kind.nan if nan else m.kind.inf)), None)

    def kind_of(self, leaf: Any) -> _Kind:
        """Which values of the result of a node are not finite."""
        return self._kinds.get(leaf, _FINITE)


def _first_place(result: Any, *, nan: bool) -> tuple[int, ...] | None:
    """Where a tensor has its first value that is not finite."""
    if not isinstance(result, torch.Tensor):
        return None
    wrong = torch.isnan(result) if nan else torch.isinf(result)
    return tuple(int(i) for i in wrong.nonzero()[0]) if bool(wrong.any()) else None


def _summary(value: Any, place: tuple[int, ...] | None) -> str:
    """A tensor in words: type, sizes, range, and what it has where the result is not finite."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    dtype, shape = str(value.dtype).removeprefix("torch."), list(value.shape)
    plain = value.detach()
    ordered = not plain.is_complex() and plain.layout == torch.strided and plain.numel()
    if not ordered:
        return f"({dtype}{shape})"
    low, high = (_number(v) for v in (plain.min(), plain.max()))
    there = ""
    if place is not None and len(shape) <= len(place):
        at = place[len(place) - len(shape) :]
        if all(n == 1 or i < n for i, n in zip(at, shape, strict=True)):
            index = tuple(0 if n == 1 else i for i, n in zip(at, shape, strict=True))
            there = f", {_number(plain[index])} there"
    return f"({dtype}{shape}, {low} to {high}{there})"


def _number(value: torch.Tensor) -> str:
    return f"{value.item():.4g}" if value.is_floating_point() else str(value.item())


def _placeholders(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [n for n in graph_module.graph.nodes if n.op == "placeholder"]


def _source(node: torch.fx.Node) -> str:
    """What the program calls an argument of a graph of Dynamo; an empty text if that is unknown:
    ``x``, ``self.layers.0.weight``."""
    source = getattr(node, "_dynamo_source", None) or getattr(
        node.meta.get("grapharg"), "source", None
    )
    name = getattr(source, "name", None)
    text = str(name() if callable(name) else name or "")
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", r".\1", text)
    return re.sub(r"^[LG]\['([^']+)'\]", r"\1", text)
