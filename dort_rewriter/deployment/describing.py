"""What a captured call is, for the folder: where the arguments of the graph come from, what has to
hold of them, and what the results are made of."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch

from dort_rewriter.aten import storage_order
from dort_rewriter.deployment.capturing import Captured, ComputedNumber
from dort_rewriter.deployment.compiled import signature_of
from dort_rewriter.deployment.folder import StoredTensor
from dort_rewriter.deployment.interface import (
    FLIPPED,
    Interface,
    Parameter,
    Relation,
    TensorSpec,
    from_size,
)
from dort_rewriter.deployment.pytree_specs import describe_arguments, describe_results, leaves
from dort_rewriter.errors import CaptureError
from dort_rewriter.plan.outputs import ArgumentSizes
from dort_rewriter.runtime.argument_encoding import arguments_needed
from dort_rewriter.signature import InputDim, Size

_KINDS: Mapping[Any, Any] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "any",
    inspect.Parameter.KEYWORD_ONLY: "named",
    inspect.Parameter.VAR_POSITIONAL: "more",
    inspect.Parameter.VAR_KEYWORD: "more named",
}


class State:
    """The tensors that calls use besides their arguments: each once, whichever calls use it."""

    def __init__(self, module: torch.nn.Module | None) -> None:
        self.stored: list[StoredTensor] = []
        self.tensors: list[torch.Tensor] = []
        self._places: dict[int, int] = {}
        self._alive: list[torch.Tensor] = []
        """Those whose identities are known, so that no other tensor gets one."""
        self._named: dict[int, tuple[Any, str]] = {}
        if module is not None:
            for name, buffer in module.named_buffers():
                self._named[id(buffer)] = ("buffer", name)
            for name, parameter in module.named_parameters():
                self._named[id(parameter)] = ("parameter", name)

    def copy(self) -> State:
        """The same, to add to."""
        made = State(None)
        made.stored, made.tensors = list(self.stored), list(self.tensors)
        made._places, made._alive = dict(self._places), list(self._alive)
        made._named = self._named
        return made

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether it is one of them, or a parameter or buffer of the module."""
        return id(tensor) in self._named or id(tensor) in self._places

    def keep(self, tensor: torch.Tensor, *, written: bool, derived: bool) -> int:
        """The place of a tensor among them; whether a call writes to it, and derives it."""
        place = self._places.get(id(tensor), len(self.tensors))
        kind, name = self._named.get(id(tensor), ("constant", f"constant {place}"))
        if kind == "constant" and written:
            raise CaptureError(
                "It writes to a tensor that is neither an argument nor a buffer of the module "
                f"(of shape {tuple(tensor.shape)}): register it with register_buffer()."
            )
        if place < len(self.tensors):
            known = self.stored[place]
            self.stored[place] = dataclasses.replace(known, written=known.written or written)
            return place
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise CaptureError(f"The {kind} {name!r} is a {type(tensor).__name__}, not a Tensor.")
        self._places[id(tensor)] = place
        self._alive.append(tensor)
        self.tensors.append(tensor.detach().requires_grad_(derived and tensor.requires_grad))
        self.stored.append(
            StoredTensor(
                name=name,
                kind=kind,
                dtype=tensor.dtype,
                shape=tuple(tensor.shape),
                device=tensor.device,
                written=written,
                order=storage_order(tensor) or tuple(range(tensor.dim())),
            )
        )
        return place


def describe_call(
    captured: Captured,
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    state: State,
) -> tuple[Interface, Any]:
    """The arguments and the result of a call and its graph; the tensors that it uses besides are
    added to a state. Raises :class:`CaptureError` for what cannot be saved."""
    parameters, tensors, names = read_arguments(target, args, kwargs)
    places = _Places(captured, tensors, state)
    inputs = places.inputs()
    result = describe_results(captured.value, places.of_result)
    relations = _relations(places.placeholders, places.sizes, captured.args)
    kept = {place for kind, place in leaves(result) if kind == "argument"}
    arguments = Interface(
        parameters=tuple(parameters),
        tensors=tuple(places.spec(k, names[k], kept) for k in range(len(tensors))),
        inputs=tuple(inputs),
        relations=tuple(relations),
        same=tuple(
            (i, j) for j, b in enumerate(tensors) for i, a in enumerate(tensors[:j]) if a is b
        ),
        apart=tuple(sorted(places.written_arguments())),
    )
    return arguments, result


def read_arguments(
    target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Parameter], list[torch.Tensor], list[str]]:
    """The parameters of what was compiled and what each is given; the tensors in it and their
    names."""
    signature = signature_of(target)
    bound = signature.bind(*args, **kwargs)
    given = set(bound.arguments)
    bound.apply_defaults()
    parameters: list[Parameter] = []
    names: list[str] = []
    tensors: list[torch.Tensor] = []
    for p in signature.parameters.values():
        has_default = p.default is not p.empty
        plain = has_default and (p.default is None or type(p.default) in (bool, int, float, str))
        if has_default and not plain and p.name not in given:
            tree: Any = {"object": type(p.default).__name__}
        else:
            tree = describe_arguments(bound.arguments[p.name], tensors, p.name)
        names += [p.name] * (len(tensors) - len(names))
        default = {"value": p.default} if plain else None
        parameters.append(Parameter(p.name, _KINDS[p.kind], tree, default))
    return parameters, tensors, names


class _Places:
    """Where the tensors of a graph come from."""

    def __init__(self, captured: Captured, tensors: list[torch.Tensor], state: State) -> None:
        self.captured = captured
        self.tensors = tensors
        self.state = state
        graph = captured.block.graph_module.graph
        self.placeholders = [n for n in graph.nodes if n.op == "placeholder"]
        fakes = {n: n.meta.get("val") for n in self.placeholders}
        self.sizes = ArgumentSizes(
            {n: i for i, n in enumerate(fakes) if isinstance(fakes[n], torch.Tensor)}
        )
        """How the sizes of the graph follow from those of the tensors that it takes."""
        self._needed = frozenset(arguments_needed(captured.block.signature))
        self._leaves = {id(t): k for k, t in reversed([*enumerate(tensors)])}
        self._written = {id(captured.args[i]) for i in captured.updates}

    def inputs(self) -> list[tuple[Any, Any]]:
        """Where each argument of the graph comes from."""
        self._check_memory()
        values = zip(self.placeholders, self.captured.args, strict=True)
        return [
            self._input(node, value, unused=i in self.captured.frozen and i not in self._needed)
            for i, (node, value) in enumerate(values)
        ]

    def _input(self, node: torch.fx.Node, value: Any, *, unused: bool) -> tuple[Any, Any]:
        if unused or value is None:
            return "nothing", 0
        if isinstance(value, torch.Tensor):
            if (leaf := self._leaves.get(id(value))) is not None:
                return "argument", leaf
            return "state", self._keep(value)
        if type(value) is int:
            symbolic = node.meta.get("val")
            size = self.sizes.find(symbolic)
            # A number that no tensor of the graph has is that of this call: so is its argument.
            return "size", value if size is None else size
        raise CaptureError(
            f"The graph takes a {type(value).__name__}, which cannot be saved: only tensors and "
            "sizes can."
        )

    def _keep(self, tensor: torch.Tensor) -> int:
        """The place of a tensor among those that are saved."""
        derived = self.captured.backward is not None
        return self.state.keep(tensor, written=id(tensor) in self._written, derived=derived)

    def _check_memory(self) -> None:
        """Refuse writes to memory that another argument of the graph shows."""
        owners: dict[int, list[int]] = {}
        for i, value in enumerate(self.captured.args):
            if isinstance(value, torch.Tensor) and value.numel():
                owners.setdefault(value.untyped_storage().data_ptr(), []).append(i)
        for places in owners.values():
            if len(places) > 1 and not set(places).isdisjoint(self.captured.updates):
                raise CaptureError(
                    "It writes to a tensor that shares its memory with another one that it "
                    "reads: give each memory of its own (clone())."
                )

    def written_arguments(self) -> set[int]:
        """The tensors of the call that are written to."""
        return {k for k, t in enumerate(self.tensors) if id(t) in self._written}

    def spec(self, k: int, name: str, kept: set[int]) -> TensorSpec:
        """What a tensor of the call has to be."""
        tensor = self.tensors[k]
        shape: list[int | None] = list(tensor.shape)
        strides: tuple[Size, ...] | None = None
        shared = k in kept or id(tensor) in self._written
        index = next((i for i, a in enumerate(self.captured.args) if a is tensor), None)
        if index is not None:
            fake = self.placeholders[index].meta["val"]
            shape = [_number_of(d) for d in fake.shape]
            shared = shared or index in self._needed
            if not tensor.is_contiguous():
                strides = tuple(self._stride(name, s) for s in fake.stride())
        return TensorSpec(
            name=name,
            dtype=tensor.dtype,
            device=tensor.device,
            shape=tuple(shape),
            dense=tensor.is_contiguous(),
            strides=strides,
            shared=shared,
        )

    def _stride(self, name: str, stride: Any) -> Size:
        size = self.sizes.find(stride)
        if size is None:
            raise CaptureError(f"The strides of {name} are unknown: pass a contiguous tensor.")
        return size

    def of_result(self, value: Any, where: str) -> Any:
        """Where a part of the result comes from; None for what has no place in the graph."""
        if isinstance(value, ComputedNumber):
            return {"result": value.place}
        if type(value) is int:
            self._check_number(value, where)
        if not isinstance(value, torch.Tensor):
            return None
        for place, result in enumerate(self.captured.results):
            if result is value and id(value) not in self._written:
                return {"result": place}
        if (leaf := self._leaves.get(id(value))) is not None:
            return {"argument": leaf}
        if self.state.knows(value):
            return {"state": self._keep(value)}
        raise CaptureError(
            f"The result{where} is a tensor that the graph does not compute: neither an argument, "
            "nor a parameter or buffer of the module."
        )

    def _check_number(self, value: int, where: str) -> None:
        """Refuse a number that may be a size: it would be another at the next call."""
        if any(size.node.hint == value for _, size in _varying(self.placeholders)):
            raise CaptureError(
                f"The result{where} is the number {value}, which a size of an argument is too, "
                "and sizes may vary: return what is computed from tensors."
            )


# -- how sizes that may vary relate to each other -----------------------------------------------

_RELATIONS: Mapping[Any, str] = {
    sympy.Eq: "eq",
    sympy.Ne: "ne",
    sympy.Lt: "lt",
    sympy.Le: "le",
    sympy.Gt: "gt",
    sympy.Ge: "ge",
}

_LARGE = 2**31
"""Bounds from here on bind no tensor."""


def _number_of(value: Any) -> int | None:
    """A size that is a number, also by what was found out about its symbol."""
    if isinstance(value, torch.SymInt):
        value = value.node.expr
        return int(value) if isinstance(value, sympy.Integer) else None
    return int(value)


def _varying(placeholders: Sequence[torch.fx.Node]) -> Iterator[tuple[InputDim, Any]]:
    """Yield the sizes of the tensors that a graph takes that are no numbers, and their places."""
    for i, node in enumerate(placeholders):
        fake = node.meta.get("val")
        for dim, size in enumerate(fake.shape if isinstance(fake, torch.Tensor) else ()):
            if _number_of(size) is None:
                yield InputDim(i, dim), size


def _relations(
    placeholders: Sequence[torch.fx.Node], sizes: ArgumentSizes, args: Sequence[Any]
) -> list[Relation]:
    """What has to hold of the sizes of the arguments, besides those that are fixed.

    NOTE: to be asked when the model is made: exporting it asks about sizes, too.
    """
    found: dict[Relation, None] = {}
    environments: dict[int, Any] = {}
    for place, size in _varying(placeholders):
        environments[id(size.node.shape_env)] = size.node.shape_env
        known = sizes.find(size)
        if known is None:
            raise CaptureError(f"The size {size} of an argument is unknown.")
        if known != place:
            found[Relation("eq", place, known)] = None
    for environment in environments.values():
        for relation in _knowledge(environment, sizes, args):
            found[relation] = None
    return list(found)


def _knowledge(environment: Any, sizes: ArgumentSizes, args: Sequence[Any]) -> Iterator[Relation]:
    """Yield the bounds of the symbols, and what was assumed of them while the graph was made."""

    def fixed(expression: Any) -> Iterator[Relation]:
        """What cannot be written down holds for the sizes of this call alone."""
        for symbol in sorted(expression.free_symbols, key=str):
            if (size := sizes.express(symbol)) is not None:
                yield Relation("eq", size, from_size(size, args))

    for symbol, bounds in environment.var_to_range.items():
        size = sizes.express(symbol)
        if size is None:
            continue
        if isinstance(bounds.lower, sympy.Integer) and bounds.lower > 0:
            yield Relation("ge", size, int(bounds.lower))
        if isinstance(bounds.upper, sympy.Integer) and bounds.upper < _LARGE:
            yield Relation("le", size, int(bounds.upper))
    for guard in environment.guards:
        yield from _related(environment.replace(guard.expr), sizes, fixed)


def _of_one_symbol(op: str, left: Any, right: Any) -> tuple[str, tuple[Any, Any]]:
    """A comparison with the symbol alone on the left, where it is of one: ``s - 1 != 1`` is
    ``s != 2``."""
    difference = sympy.expand(left - right)
    if len(difference.free_symbols) == 1 and difference.is_Add:
        (symbol,) = difference.free_symbols
        factor = difference.coeff(symbol, 1)
        rest = difference - factor * symbol
        if factor in (1, -1) and isinstance(rest, sympy.Integer):
            return (op if factor == 1 else FLIPPED.get(op, op)), (symbol, -rest * factor)
    return op, (left, right)


def _related(
    expression: Any, sizes: ArgumentSizes, fixed: Callable[[Any], Iterator[Relation]]
) -> Iterator[Relation]:
    if expression in (sympy.true, True):
        return
    if isinstance(expression, sympy.And):
        for part in expression.args:
            yield from _related(part, sizes, fixed)
        return
    op = _RELATIONS.get(type(expression))
    if op is not None:
        op, sides = _of_one_symbol(op, *expression.args)
        left, right = map(sizes.express, sides)
        if left is not None and right is not None:
            yield Relation(op, left, right)
            return
    yield from fixed(expression)
