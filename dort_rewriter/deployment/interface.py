"""From the arguments of a call to those of a graph, and what has to hold of them.

A graph is made for tensors of some types, devices and sizes. What of that is fixed stands in a
:class:`TensorSpec` for each tensor of a call; what may vary is bound by relations.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from dort_rewriter.deployment.pytree_specs import collect
from dort_rewriter.errors import CallMismatchError
from dort_rewriter.signature import InputDim, InputSize, Size, SizeExpression

MORE_SIZES = (
    "To save a graph of several sizes, compile with dynamic=True; to save one for each of some, "
    "save(compiled, path, calls=[...])."
)
"""What there is to do about sizes that what was saved does not take."""

_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}

_COMPARISONS: Mapping[str, tuple[Callable[[int, int], bool], str]] = {
    "eq": (operator.eq, "=="),
    "ne": (operator.ne, "!="),
    "lt": (operator.lt, "<"),
    "le": (operator.le, "<="),
    "gt": (operator.gt, ">"),
    "ge": (operator.ge, ">="),
}

FLIPPED: Mapping[str, str] = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
"""What comparisons are from the other side."""


def from_size(size: Size, args: Sequence[Any]) -> int:
    """Compute a size from the arguments of a graph."""
    match size:
        case InputSize(index):
            return int(args[index])
        case InputDim(index, dim):
            return int(args[index].shape[dim])
        case SizeExpression(op, operands):
            first, *rest = (from_size(o, args) for o in operands)
            for operand in rest:
                first = _OPERATIONS[op](first, operand)
            return first
    return int(size)


@dataclass(frozen=True)
class Relation:
    """Two sizes, and how they compare."""

    op: str
    """``eq``, ``ne``, ``lt``, ``le``, ``gt``, ``ge``."""
    left: Size
    right: Size

    def __post_init__(self) -> None:
        """Refuse comparisons that there are not."""
        if self.op not in _COMPARISONS:
            raise ValueError(f"sizes are compared by {self.op!r}")

    def holds(self, args: Sequence[Any]) -> bool:
        """Whether the arguments of a graph are so."""
        return _COMPARISONS[self.op][0](from_size(self.left, args), from_size(self.right, args))

    def describe(self, names: Mapping[int, str]) -> str:
        """The relation in words, with the names of the arguments."""
        left, right = (_spell(s, names) for s in (self.left, self.right))
        return f"{left} {_COMPARISONS[self.op][1]} {right}"


def _spell_shape(sizes: Sequence[int | str | None]) -> str:
    """A shape, ``?`` for what may vary."""
    texts = ["?" if d is None else str(d) for d in sizes]
    return f"({', '.join(texts)})"


class _Bounds:
    """What relations say about one size alone."""

    def __init__(self, relations: Sequence[Relation]) -> None:
        self._leaders: dict[Size, Size] = {}
        self._bounds: dict[Size, list[tuple[str, int]]] = {}
        for r in relations:
            match r.op, r.left, r.right:
                case "eq", InputDim(), InputDim():
                    self._leaders[r.left] = r.right
                case op, InputDim(), int(bound):
                    self._bounds.setdefault(r.left, []).append((op, bound))
                case op, int(bound), InputDim():
                    self._bounds.setdefault(r.right, []).append((FLIPPED.get(op, op), bound))

    def text(self, size: Size) -> str:
        """The bounds of a size: ``2+``, ``2-64``, ``?``."""
        for _ in self._leaders:
            size = self._leaders.get(size, size)
        bounds = self._bounds.get(size, [])
        least = max((b + (op == "gt") for op, b in bounds if op in ("ge", "gt", "eq")), default=0)
        most = min(
            (b - (op == "lt") for op, b in bounds if op in ("le", "lt", "eq")), default=None
        )
        while least and ("ne", least) in bounds:
            least += 1
        if most is None:
            return f"{least}+" if least else "?"
        return str(most) if least == most else f"{least}-{most}"


def _spell(size: Size, names: Mapping[int, str]) -> str:
    match size:
        case InputSize(index):
            return names.get(index, "?")
        case InputDim(index, dim):
            return f"{names.get(index, '?')}.shape[{dim}]"
        case SizeExpression(op, operands):
            return f"{op}({', '.join(_spell(o, names) for o in operands)})"
    return str(size)


@dataclass(frozen=True)
class Parameter:
    """A parameter of what was compiled."""

    name: str
    kind: Literal["positional", "any", "named", "more", "more named"]
    """``more`` is ``*args``, ``more named`` is ``**kwargs``."""
    tree: Any
    """The description of the argument."""
    default: Any = None
    """Its description, None where it has to be given; ``{"object": ...}`` for what none holds."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor among the arguments of a call has to be."""

    name: str
    """What it is called in errors: ``x``, ``batch['ids'][0]``."""
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int | None, ...]
    """Its sizes; None for those that may vary."""
    dense: bool
    """Whether it was contiguous: another is copied, unless that would be seen."""
    strides: tuple[Size, ...] | None
    """Its strides where it was not."""
    shared: bool = False
    """Whether it is written to, or results show its memory."""

    def fit(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as the graph takes it.

        Raises :class:`CallMismatchError` when it takes none like it.
        """
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise CallMismatchError(
                f"The argument {self.name} is a {type(tensor).__name__}, not a Tensor."
            )
        facts: Sequence[tuple[str, Any, Any]] = (
            ("of", tensor.dtype, self.dtype),
            ("on", tensor.device, self.device),
            ("of rank", tensor.dim(), len(self.shape)),
        )
        for what, given, wanted in facts:
            if given != wanted:
                raise CallMismatchError(
                    f"The argument {self.name} is {what} {given}; what was saved takes {wanted}."
                )
        if not all(b is None or a == b for a, b in zip(tensor.shape, self.shape, strict=True)):
            raise CallMismatchError(
                f"The argument {self.name} is of shape {tuple(tensor.shape)}; what was saved "
                f"takes {_spell_shape(self.shape)}. {MORE_SIZES}"
            )
        if tensor.is_neg() or tensor.is_conj():
            tensor = tensor.resolve_neg().resolve_conj()
        if not self.dense or tensor.is_contiguous():
            return tensor
        if self.shared:
            raise CallMismatchError(
                f"The argument {self.name} is not contiguous, as it was when it was saved, and "
                "its memory is written to or shown by a result."
            )
        return tensor.contiguous()


@dataclass(frozen=True)
class Interface:
    """How a call is taken apart for a graph."""

    parameters: tuple[Parameter, ...]
    tensors: tuple[TensorSpec, ...]
    inputs: tuple[tuple[Literal["argument", "state", "size", "nothing"], Size], ...]
    """Where each argument of the graph is: ``argument`` (a place among the tensors), ``state`` (a
    place among what was saved), ``size`` (computed), ``nothing``."""
    relations: tuple[Relation, ...]
    same: tuple[tuple[int, int], ...]
    """Tensors that were one tensor."""
    apart: tuple[int, ...]
    """Tensors that share their memory with no other: they are written to."""

    def tensors_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of a call, in the order of the specifications."""
        given = self._bind(args, kwargs)
        tensors: list[torch.Tensor] = []
        for p in self.parameters:
            if p.name in given:
                collect(p.tree, given[p.name], p.name, tensors)
            elif "object" not in p.tree:
                raise CallMismatchError(f"The argument {p.name} is missing.")
        return tensors

    def limits(self) -> list[str]:
        """The shape that each tensor has to have, in words.

        ``2+`` is a size of two or more, ``2-64`` one between these; ``?`` any, or one that
        follows from others.
        """
        places: dict[Any, int] = {
            k: i for i, (kind, k) in enumerate(self.inputs) if kind == "argument"
        }
        bounds = _Bounds(self.relations)
        return [
            _spell_shape(
                [
                    bounds.text(InputDim(places[k], dim)) if d is None and k in places else d
                    for dim, d in enumerate(t.shape)
                ]
            )
            for k, t in enumerate(self.tensors)
        ]

    def constants(self) -> dict[str, str]:
        """The arguments that are part of the graph, by the names of their parameters."""
        found = {}
        for p in self.parameters:
            (kind, value), *_ = p.tree.items()
            if kind in ("value", "torch"):
                found[p.name] = repr(value) if kind == "value" else str(value[1])
        return found

    def names(self) -> dict[int, str]:
        """What the arguments of the graph are called that are tensors of a call."""
        fed = ((i, k) for i, (kind, k) in enumerate(self.inputs) if kind == "argument")
        return {i: self.tensors[k].name for i, k in fed if isinstance(k, int)}

    def conditions(self) -> list[str]:
        """How the sizes of a call relate to each other, in words."""
        return [r.describe(self.names()) for r in self.relations]

    def check_sizes(self, fitted: Sequence[torch.Tensor], args: Sequence[Any]) -> None:
        """Raise :class:`CallMismatchError` when sizes relate to each other in another way."""
        names = self.names()
        for relation in self.relations:
            if not relation.holds(args):
                raise CallMismatchError(
                    f"What was saved takes arguments of which {relation.describe(names)}; these "
                    f"are of shapes {[tuple(t.shape) for t in fitted]}. {MORE_SIZES}"
                )
        for spec, tensor in zip(self.tensors, fitted, strict=True):
            if spec.strides is not None:
                _check_strides(spec, tensor, args)

    def check_memory(self, tensors: Sequence[torch.Tensor], state: Sequence[torch.Tensor]) -> None:
        """Raise :class:`CallMismatchError` when others share memory."""
        for a, b in self.same:
            if not shows_same(tensors[a], tensors[b]):
                names = f"{self.tensors[a].name} and {self.tensors[b].name}"
                raise CallMismatchError(
                    f"The arguments {names} were one tensor when it was saved."
                )
        for k in self.apart:
            mine = _memory(tensors[k])
            others = [t for i, t in enumerate(tensors) if i != k and (k, i) not in self.same]
            if mine and any(_memory(t) == mine for t in (*others, *state)):
                raise CallMismatchError(
                    f"The argument {self.tensors[k].name} is written to, and shares its memory "
                    "with another."
                )

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by their parameters, as Python finds them."""
        left, rest = list(args), dict(kwargs)
        given: dict[str, Any] = {}
        for p in self.parameters:
            if p.kind in ("positional", "any") and left:
                given[p.name] = left.pop(0)
            elif p.kind in ("any", "named") and p.name in rest:
                given[p.name] = rest.pop(p.name)
            elif p.kind == "more":
                given[p.name], left = tuple(left), []
            elif p.kind == "more named":
                given[p.name], rest = rest, {}
            elif p.default is not None and "value" in p.default:
                given[p.name] = p.default["value"]
        if left or rest:
            known = ", ".join(p.name for p in self.parameters)
            more = f"{len(left)} arguments" if left else ", ".join(map(repr, rest))
            raise CallMismatchError(f"There is no place for {more}: the arguments are {known}.")
        return given


def describe_calls(calls: Sequence[Interface]) -> list[str]:
    """What each of several calls takes, in words: its tensors, and the constants that differ."""
    constants = [call.constants() for call in calls]
    found = []
    for call, mine in zip(calls, constants, strict=True):
        parts = [f"{t.name}: {d}" for t, d in zip(call.tensors, call.limits(), strict=True)]
        parts += [
            f"{name}: {value}"
            for name, value in mine.items()
            if any(other.get(name) != value for other in constants)
        ]
        found.append(", ".join(parts))
    return found


def _check_strides(spec: TensorSpec, tensor: torch.Tensor, args: Sequence[Any]) -> None:
    assert spec.strides is not None
    wanted = tuple(from_size(s, args) for s in spec.strides)
    pairs = zip(tensor.shape, tensor.stride(), wanted, strict=True)
    if any(size > 1 and given != expected for size, given, expected in pairs):
        raise CallMismatchError(
            f"The argument {spec.name} has the strides {tensor.stride()}; what was saved takes "
            f"{wanted}."
        )


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def shows_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are one, or the same part of one memory."""
    if a is b:
        return True
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
    )
