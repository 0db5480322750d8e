"""Decide what of a graph's results has to be computed, and what is only looked at differently.

A result that is an argument, another result, a view of either, a constant or a size is made by
the executor in torch, at no cost. So is a view of something computed: the model computes what owns
the memory, and the executor takes the view, so that strides, offsets and who shares memory with
whom are what torch would have given. Where all sizes are known the views between what is computed
and what is returned are one: each costs microseconds.

Results whose layout is not observed (saved for a backward graph, gradients) are computed as they
are, dense: a part of something large does not keep all of it.

Sizes that follow from the arguments alone are data that the executor can compute.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch
from torch.utils._sympy import functions

from dort_rewriter.aten import (
    covers,
    is_contiguous,
    is_dense,
    is_layout_free,
    is_same_size,
    is_tracked,
    lies_as_ordered,
    lineage,
    overlaps,
    reads_storage,
    results_of,
    rewriting,
    storage_order,
)
from dort_rewriter.signature import (
    InputDim,
    InputSize,
    OutputSlot,
    Size,
    SizeExpression,
    ViewStep,
    as_returned,
    describe_value,
    inverse_order,
)

_OPERATIONS: dict[Any, Literal["add", "mul", "floordiv", "mod", "min", "max"]] = {
    sympy.Add: "add",
    sympy.Mul: "mul",
    functions.FloorDiv: "floordiv",
    functions.CleanDiv: "floordiv",
    functions.Mod: "mod",
    functions.PythonMod: "mod",
    functions.Min: "min",
    functions.Max: "max",
}


class ArgumentSizes:
    """What the arguments of a graph tell about sizes: the way from a symbolic size to them."""

    def __init__(self, arguments: Mapping[torch.fx.Node, int]) -> None:
        self._known: dict[Any, Size] = {}
        values: dict[int, Any] = {i: node.meta.get("val") for node, i in arguments.items()}
        for index, value in values.items():
            if isinstance(value, torch.SymInt):
                self._known.setdefault(value.node.expr, InputSize(index))
        for index, value in values.items():
            if not isinstance(value, torch.Tensor):
                continue
            sizes: Sequence[Any] = value.shape
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt):
                    self._known.setdefault(size.node.expr, InputDim(index, dim))

    def find(self, size: Any) -> Size | None:
        """How to compute an integer (or the one that a node gives) from the arguments;
        None if they do not tell it."""
        if isinstance(size, torch.fx.Node):
            size = size.meta.get("val")
        if isinstance(size, torch.SymInt):
            return self.express(size.node.expr)
        return size if isinstance(size, int) and not isinstance(size, bool) else None

    def find_all(self, sizes: Any) -> tuple[Size, ...] | None:
        """How to compute each of several integers; None if one is not known."""
        found = tuple(s for size in sizes if (s := self.find(size)) is not None)
        return found if len(found) == len(sizes) else None

    def express(self, expression: Any) -> Size | None:
        """How to compute a symbolic expression from the arguments; None if they do not tell."""
        if (known := self._known.get(expression)) is not None:
            return known
        if isinstance(expression, sympy.Integer):
            return int(expression)
        if isinstance(expression, sympy.Pow):
            base, exponent = expression.args
            if not isinstance(exponent, sympy.Integer) or not 1 < exponent < 8:
                return None
            return self._combine("mul", [base] * int(exponent))
        if isinstance(expression, functions.ModularIndexing):
            base, divisor, modulus = expression.args
            return self._combine("mod", [functions.FloorDiv(base, divisor), modulus])
        operation = _OPERATIONS.get(expression.func)
        return None if operation is None else self._combine(operation, expression.args)

    def _combine(
        self, operation: Literal["add", "mul", "floordiv", "mod", "min", "max"], operands: Any
    ) -> Size | None:
        found = tuple(s for o in operands if (s := self.express(o)) is not None)
        return SizeExpression(operation, found) if len(found) == len(operands) else None


class _Unknown(Exception):
    """The arguments of a graph do not tell how a view of it is taken."""

    def __init__(self, node: torch.fx.Node) -> None:
        self.node = node
        super().__init__(node.name)


def _replay(chain: Sequence[torch.fx.Node], sizes: ArgumentSizes) -> tuple[ViewStep, ...]:
    """How to make the first node of a lineage out of the last: by the same operators."""
    return tuple(_step(node, sizes) for node in reversed(chain[:-1]))


def _step(node: torch.fx.Node, sizes: ArgumentSizes) -> ViewStep:
    if node.target is operator.getitem:
        return ViewStep("getitem", (node.args[1],))
    if node.target is torch.ops.prims.view_of.default:
        return ViewStep("aten::alias")
    assert isinstance(node.target, torch._ops.OpOverload)
    args = tuple(_argument(node, a, sizes) for a in node.args[1:])
    kwargs = tuple((k, _argument(node, a, sizes)) for k, a in node.kwargs.items())
    return ViewStep(node.target.name(), args, kwargs)


def _argument(node: torch.fx.Node, argument: Any, sizes: ArgumentSizes) -> Any:
    if isinstance(argument, list | tuple):
        return tuple(_argument(node, a, sizes) for a in argument)
    if isinstance(argument, torch.fx.Node):
        size = sizes.find(argument)
        if size is None:
            raise _Unknown(node)
        return size
    return argument


def _strided(base: torch.Tensor, view: torch.Tensor, sizes: ArgumentSizes) -> ViewStep | None:
    """How a view is seen in the memory of a base, by sizes and strides.

    None where these do not tell it, or the arguments do not tell these.
    """
    same_bits = base.is_conj() == view.is_conj() and base.is_neg() == view.is_neg()
    if base.dtype is not view.dtype or not same_bits:
        return None
    shape, strides = sizes.find_all(view.shape), sizes.find_all(view.stride())
    offset = sizes.find(view.storage_offset() - base.storage_offset())
    if shape is None or strides is None or offset is None:
        return None
    return ViewStep("aten::as_strided", (shape, strides, offset))


def _is_static(step: ViewStep) -> bool:
    """Whether all sizes of a strided view are numbers."""
    shape, strides, offset = step.args
    assert isinstance(shape, tuple)
    assert isinstance(strides, tuple)
    return all(isinstance(n, int) for n in (*shape, *strides, offset))


def _lay_out(
    node: torch.fx.Node, sizes: ArgumentSizes, *, as_view: bool = False
) -> tuple[ViewStep, ...]:
    """How what the model computed for a node becomes what torch would have computed.

    The model gives it in the order it is stored in. Its memory is new, so that the layout can be
    changed in place: the caller gets no view of a hidden tensor, unless ``as_view`` allows it.
    """
    value = node.meta["val"]
    order = storage_order(value)
    dense = order is not None or is_contiguous(value)
    if dense and order is None and (as_view or lies_as_ordered(value, None)):
        return ()  # strides of dimensions of size one are not visible in what may be a view
    step = _strided(value, value, sizes)
    if dense and (step is None or (as_view and not _is_static(step))):
        permute = "aten::permute" if as_view else "permute_"
        # At most the strides of dimensions of size one differ.
        return () if order is None else (ViewStep(permute, (inverse_order(order),)),)
    if dense and step is not None:
        return (ViewStep("aten::as_strided_", step.args),)
    strides = sizes.find_all(value.stride())
    if strides is None or overlaps(value):
        raise _Unknown(node)
    return (ViewStep("lay_out", (strides,)),)


SHARED = "a result shares its memory, and only torch can tell how"
"""Why a view, or what owns its memory, is not in a model."""


@dataclass(frozen=True)
class ModelOutput:
    """A result that ONNX Runtime computes."""

    node: torch.fx.Node
    order: tuple[int, ...] | None = None
    """A permutation to apply before it is returned; None for none."""


@dataclass(frozen=True)
class OutputPlan:
    """What the model computes, and how the results of the graph are made of it."""

    model_outputs: tuple[ModelOutput, ...]
    slots: tuple[OutputSlot, ...]
    left: tuple[torch.fx.Node, ...] = ()
    """What has to stay in torch: results depend on it that cannot be made otherwise."""


def plan_outputs(graph_module: torch.fx.GraphModule) -> OutputPlan:
    """Plan the results of an ATen graph whose nodes carry ``meta["val"]``."""
    graph = graph_module.graph
    arguments = {n: i for i, n in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    return _Planner(arguments, results_of(graph)).plan()


class _Planner:
    def __init__(self, arguments: dict[torch.fx.Node, int], leaves: Sequence[Any]) -> None:
        self.arguments = arguments
        self.leaves = leaves
        self.sizes = ArgumentSizes(arguments)
        self.first: dict[torch.fx.Node, int] = {}
        """Where each node is returned first."""
        self.computed: dict[torch.fx.Node, int] = {}
        """The position of each node among the outputs of the model."""
        self.outputs: list[ModelOutput] = []
        self.left: list[torch.fx.Node] = []
        nodes = [n for n in leaves if isinstance(n, torch.fx.Node)]
        self.free = frozenset(filter(is_layout_free, nodes))
        """The results of which only the values matter."""
        self.chains = self._chains(nodes)

    def _chains(
        self, nodes: Sequence[torch.fx.Node]
    ) -> dict[torch.fx.Node, Sequence[torch.fx.Node]]:
        """Each result that is a tensor and made of something computed, down to that."""
        tensors = [n for n in nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        found: dict[torch.fx.Node, Sequence[torch.fx.Node]] = {n: lineage(n) for n in tensors}
        found = {n: c for n, c in found.items() if c[-1] not in self.arguments}
        kept = {c[-1] for n, c in found.items() if n not in self.free}
        for node, chain in found.items():
            if node in self.free:
                found[node] = _worth_keeping(chain, kept)
                kept.add(found[node][-1])
        return found

    def plan(self) -> OutputPlan:
        slots = []
        for i, leaf in enumerate(self.leaves):
            try:
                slots.append(self._slot(leaf))
            except _Unknown as e:
                # What torch computes begins where the copies before it do.
                self.left += [e.node, *rewriting(e.node)[1:-1]]
            if isinstance(leaf, torch.fx.Node):
                self.first.setdefault(leaf, i)
        return OutputPlan(tuple(self.outputs), tuple(slots), tuple(dict.fromkeys(self.left)))

    def _slot(self, leaf: Any) -> OutputSlot:
        if not isinstance(leaf, torch.fx.Node):
            return OutputSlot(**describe_value(leaf), source="constant", value=leaf)
        value = leaf.meta.get("val")
        described = describe_value(value)
        if value is None:
            return OutputSlot(**described, source="constant")
        if leaf in self.first:
            return OutputSlot(**described, source="output", index=self.first[leaf])
        if leaf in self.arguments:
            return OutputSlot(**described, source="input", index=self.arguments[leaf])
        if (chain := self.chains.get(leaf)) is not None:
            index, steps = self._compute(chain[-1]), self._views(chain)
            steps = (*as_returned(chain[-1].meta["val"]), *steps)
            return OutputSlot(**described, source="model", index=index, views=steps)
        if isinstance(value, torch.Tensor):
            chain = lineage(leaf)
            at, steps = self.arguments[chain[-1]], _replay(chain, self.sizes)
            return OutputSlot(**described, source="input", index=at, views=steps)
        if (size := self.sizes.find(value)) is not None:
            return OutputSlot(**described, source="size", size=size)
        return OutputSlot(**described, source="model", index=self._compute(leaf))

    def _compute(self, node: torch.fx.Node) -> int:
        """The position of a node among the outputs of the model."""
        if node not in self.computed:
            self.computed[node] = len(self.outputs)
            self.outputs.append(ModelOutput(node, storage_order(node.meta.get("val"))))
        return self.computed[node]

    def _views(self, chain: Sequence[torch.fx.Node]) -> tuple[ViewStep, ...]:
        """What makes the first node of a chain of what the model computes for the last."""
        node, owner = chain[0], chain[-1]
        if node in self.free and not is_dense(owner.meta["val"]):
            return ()
        seen, steps = self._seen(owner)
        if node is seen:
            return steps
        above = chain[: chain.index(seen) + 1]
        step = _strided(owner.meta["val"], node.meta["val"], self.sizes)
        if steps and steps[0].op == "lay_out":
            step = None
        if node not in self.free and not all(map(is_tracked, above[:-1])):
            step = None
        guessed = node not in self.free and _is_guessed(above)
        if step is not None and _is_static(step) and not guessed:
            undone = node in self.free and _is_as_computed(step, owner.meta["val"])
            # The steps of another result change the tensor that they share in place.
            shared = steps and any(
                c[-1] is owner and c[0] is not node for c in self.chains.values()
            )
            return () if undone and not shared else (step,)
        try:
            return (*steps, *_replay(above, self.sizes))
        except _Unknown:
            if step is None:
                raise
            return (step,)

    def _seen(self, owner: torch.fx.Node) -> tuple[torch.fx.Node, tuple[ViewStep, ...]]:
        """The node that all results of one memory are views of, and how it is made.

        The owner of the memory itself, or what torch shows it as without calling that a view.
        """
        chains = [c for c in self.chains.values() if c[-1] is owner]
        free = all(c[0] in self.free for c in chains)
        value = owner.meta["val"]
        if not free and not is_same_size(value.storage_offset(), 0):
            raise _Unknown(owner)
        laid_out = _lay_out(owner, self.sizes, as_view=free)
        for node in chains[0]:
            if node is owner:
                break
            if is_tracked(node) or any(node not in c for c in chains):
                continue
            if not isinstance(node.meta["val"], torch.Tensor):
                continue
            step = _strided(value, node.meta["val"], self.sizes)
            if step is None:
                continue
            gaps = [s for s in laid_out if s.op == "lay_out"]
            if not gaps and _is_as_computed(step, value):
                return node, ()
            return node, (*gaps, ViewStep("aten::as_strided_", step.args))
        return owner, laid_out


def _is_guessed(chain: Sequence[torch.fx.Node]) -> bool:
    """Whether torch may give dimensions of size one other strides than its fake tensors."""
    return any(n.target is torch.ops.aten.view.default and 1 in n.meta["val"].shape for n in chain)


def _is_as_computed(step: ViewStep, owner: torch.Tensor) -> bool:
    """Whether a view of known sizes shows what the model gives as it is."""
    layout = (tuple(owner.shape), tuple(owner.stride()), 0)
    return step.args == layout and lies_as_ordered(owner, None)


def _worth_keeping(
    chain: Sequence[torch.fx.Node], kept: Container[torch.fx.Node]
) -> Sequence[torch.fx.Node]:
    """Cut the lineage of a result that may have any layout where keeping more costs memory."""
    length = 1
    for count, node in enumerate(chain[1:], 2):
        if reads_storage(chain[count - 2]):
            break
        value = node.meta["val"]
        if is_dense(value) and (node in kept or covers(value, chain[0].meta["val"])):
            length = count
    return chain[:length]
