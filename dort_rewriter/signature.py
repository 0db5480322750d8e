"""What a compiled graph takes and gives: travels from capture and export to the runtime.

Positions, not names, carry the meaning: names are a convention for whoever reads the model.
Everything here is plain data, so that it can be stored beside a model and read back.

Complex numbers are pairs in a model, which has no such type: a tensor of real and imaginary parts
along a last dimension of two.

A call of an operator of torch that a model has inside is said here too: what is called, and on
what.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch


@dataclass(frozen=True)
class Given:
    """Stands for an input of the node among the arguments of a call."""

    index: int
    kind: Literal["tensor", "complex", "int", "float", "bool"] = "tensor"
    """What it is for torch: complex tensors, and numbers that the graph computes, are tensors of
    reals in a model."""
    order: tuple[int, ...] | None = None
    """Its axes from the largest stride to the smallest; None where that is the order of its
    sizes."""
    has_gaps: bool = False
    """Whether it is not dense: its elements are not next to each other in any order."""


@dataclass(frozen=True)
class Result:
    """What is known of a result."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    """None for a size that is known when it runs."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchCall:
    """A call without effects, whose results are new tensors."""

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    """As torch takes them, with a :class:`Given` for each input."""
    kwargs: dict[str, Any]
    results: tuple[Result | None, ...]
    """None for one that torch does not make."""
    where: str = ""
    """The Python line it comes from."""
    ordered: bool = False
    """Whether the first result is the token, an empty tensor, by which calls keep their order."""

    @property
    def name(self) -> str:
        """``aten::linalg_inv_ex``."""
        return str(self.target.name())


Scalar = int | float | bool
Dim = int | str
"""A size: a number, or the name of a symbol (``s0``, ``2*s0``)."""

SlotKind = Literal["tensor", "int", "float", "bool", "none", "object"]
"""What Python sees at this position; ``int``, ``float``, ``bool``: rank-0 tensors in the model;
``object``: what no model knows (a mesh of devices, a generator): it is handed on or not read."""


@dataclass(frozen=True, kw_only=True)
class InputSlot:
    """One argument of the compiled callable."""

    name: str | None
    """The ONNX input it feeds; None when the model does not read this argument."""
    kind: SlotKind
    dtype: torch.dtype | None = None
    """What the argument has: int64, float64 and bool for scalars, None for ``none``."""
    shape: tuple[Dim, ...] = ()
    """What the argument has; see ``order``."""
    device: torch.device | None = None
    order: tuple[int, ...] | None = None
    """How the model reads the argument: its dimensions from the slowest to the fastest in memory;
    None when they are as they come."""

    @property
    def is_complex(self) -> bool:
        """Whether the model reads pairs."""
        return self.dtype is not None and self.dtype.is_complex

    @property
    def read_dtype(self) -> torch.dtype | None:
        """The element type of the ONNX input."""
        return None if self.dtype is None else self.dtype.to_real()

    @property
    def read_order(self) -> tuple[int, ...] | None:
        """How the dimensions of the ONNX input, pairs included, come from the argument's."""
        return order_of_pairs(self.order) if self.order and self.is_complex else self.order

    @property
    def read_shape(self) -> tuple[Dim, ...]:
        """The shape of the ONNX input."""
        shape = self.shape if self.order is None else tuple(self.shape[i] for i in self.order)
        return (*shape, 2) if self.is_complex else shape

    def accepts(self, argument: object) -> bool:
        """Whether an argument has the type, the rank and the fixed sizes of this slot."""
        if self.kind == "tensor":
            return (
                isinstance(argument, torch.Tensor)
                and argument.dtype is self.dtype
                and (self.device is None or argument.device == self.device)
                and len(self.shape) == argument.dim()
                and all(
                    isinstance(a, str) or a == b
                    for a, b in zip(self.shape, argument.shape, strict=True)
                )
            )
        return self.kind in ("none", "object") or describe_value(argument)["kind"] == self.kind


@dataclass(frozen=True)
class InputSize:
    """A size known only at run time: the value of the scalar argument at ``index``."""

    index: int


@dataclass(frozen=True)
class InputDim:
    """A size known only at run time: dimension ``dim`` of the tensor argument at ``index``."""

    index: int
    dim: int


@dataclass(frozen=True)
class SizeExpression:
    """Integer arithmetic on sizes, with Python's meaning: ``floordiv`` and ``mod`` round down."""

    op: Literal["add", "sub", "mul", "floordiv", "mod", "min", "max"]
    args: tuple[Size, ...]
    """Two or more operands, applied from left to right."""


Size = int | InputSize | InputDim | SizeExpression
"""An integer the runtime computes from the arguments alone."""


def places_in(value: object) -> Iterator[InputSize | InputDim]:
    """Yield the sizes of arguments that sizes, steps and tuples of them are computed from."""
    match value:
        case InputSize() | InputDim():
            yield value
        case SizeExpression(_, args):
            yield from places_in(args)
        case ViewStep(_, args, kwargs):
            yield from places_in((args, kwargs))
        case tuple() | list():
            for part in value:
                yield from places_in(part)


@dataclass(frozen=True)
class ViewStep:
    """A view taken in torch, after the session ran: ``op`` called on the previous tensor."""

    op: str
    """An ATen overload that aliases its first argument: ``aten::view``. ``getitem`` takes one of
    several views; ``lay_out`` copies to a new memory, with gaps: its arguments are the strides;
    ``permute_`` changes the tensor itself; ``from_pairs`` gives complex numbers."""
    args: tuple[object, ...] = ()
    """The arguments after the tensor: numbers, types, None, a :data:`Size`, or tuples of them."""
    kwargs: tuple[tuple[str, object], ...] = ()
    """The arguments given by name."""


FROM_PAIRS = "from_pairs"
"""The first view of what a model gives as pairs."""


@dataclass(frozen=True, kw_only=True)
class OutputSlot:
    """One result of the compiled callable, and where it comes from."""

    kind: SlotKind
    source: Literal["model", "input", "output", "constant", "size"]
    """``model``: computed by ONNX Runtime; ``input``: an argument, as it is or viewed;
    ``output``: an earlier result, as it is or viewed; ``constant``: a Python value (or None);
    ``size``: an integer computed from the arguments."""
    index: int = 0
    """Position among the model's outputs, the arguments or the earlier results (``source``)."""
    name: str = ""
    """The ONNX output for ``model``, a reader's name otherwise (``output_NONE_2``)."""
    dtype: torch.dtype | None = None
    shape: tuple[Dim, ...] = ()
    device: torch.device | None = None
    views: tuple[ViewStep, ...] = ()
    """Applied in order to the source."""
    value: Scalar | None = None
    """The value of a ``constant``."""
    size: Size | None = None
    """What to compute when the source is ``size``."""

    @property
    def made_dtype(self) -> torch.dtype | None:
        """The element type of what the views are taken of: for ``model``, the ONNX output."""
        if (dtype := self.dtype) is None:
            return None
        for step in reversed(self.views):
            if step.op == "aten::view_as_real":
                dtype = dtype.to_complex()
            elif step.op in (FROM_PAIRS, "aten::view_as_complex"):
                dtype = dtype.to_real()
        return dtype

    @property
    def made_shape(self) -> tuple[Dim, ...]:
        """The shape of the ONNX output, where no view changes it."""
        is_pairs = bool(self.views) and self.views[0].op == FROM_PAIRS
        return (*self.shape, 2) if is_pairs else self.shape


@dataclass(frozen=True, kw_only=True)
class Writes:
    """Results of a model that may be written where arguments are, if those do not overlap."""

    arguments: Mapping[str, int] = field(default_factory=dict)
    """The position of the argument for each output of the model, by name."""
    checks: frozenset[str] = frozenset()
    """The nodes that may fail, by name: when one of them does, nothing is written yet."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """What a model takes the addresses of, in one tensor: some arguments, and all of its results.

    Each result is written to an argument, where :class:`Writes` lets it, or to a new tensor.
    """

    input: str
    """What takes them."""
    places: tuple[int | str, ...]
    """Arguments by position and results by name, in the order of the addresses."""
    done: tuple[str, ...]
    """What the model gives: that it is done."""


SCALAR_TYPES: tuple[tuple[tuple[type, ...], SlotKind, torch.dtype], ...] = (
    ((bool, torch.SymBool), "bool", torch.bool),
    ((int, torch.SymInt), "int", torch.int64),
    ((float, torch.SymFloat), "float", torch.float64),
)
"""How Python numbers travel through a model: exactly, whatever torch's default dtype is."""


def as_returned(value: object) -> tuple[ViewStep, ...]:
    """What makes a (fake) tensor or number of what a model gives for it."""
    is_complex = isinstance(value, torch.Tensor) and value.is_complex()
    return (ViewStep(FROM_PAIRS),) if is_complex else ()


def order_of_pairs(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation of pairs that is one of complex numbers."""
    return (*order, len(order))


def inverse_order(order: Sequence[int]) -> tuple[int, ...]:
    """The permutation that takes an order of dimensions back."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def describe_value(value: object) -> dict[str, Any]:
    """The kind of a value; of a (fake) tensor or number also dtype, shape and device."""
    if value is None:
        return {"kind": "none"}
    if isinstance(value, torch.Tensor):
        shape = tuple(d if isinstance(d, int) else str(d.node.expr) for d in value.shape)
        return {"kind": "tensor", "dtype": value.dtype, "shape": shape, "device": value.device}
    for types, kind, dtype in SCALAR_TYPES:
        if isinstance(value, types):
            return {"kind": kind, "dtype": dtype}
    return {"kind": "object"}


def input_slots(
    placeholders: Sequence[torch.fx.Node],
    names: Sequence[str],
    fed: Container[str],
    orders: Mapping[str, tuple[int, ...]],
) -> tuple[InputSlot, ...]:
    """The arguments of a graph, for a model just made or read from a file.

    `names` has what each is called in a model, `fed` the inputs that this model has, `orders` the
    placeholders that it reads in another order.
    """
    slots = []
    for node, name in zip(placeholders, names, strict=True):
        described = describe_value(node.meta.get("val"))
        if name not in fed or described["kind"] == "none":
            slots.append(InputSlot(name=None, **described))
        else:
            slots.append(InputSlot(name=name, **described, order=orders.get(node.name)))
    return tuple(slots)


@dataclass(frozen=True, kw_only=True)
class GraphSignature:
    """The calling convention of one compiled graph."""

    inputs: tuple[InputSlot, ...]
    outputs: tuple[OutputSlot, ...]
    input_names: tuple[str, ...] = field(init=False)
    """The ONNX inputs in the order of the model."""
    output_names: tuple[str, ...] = field(init=False)
    """The ONNX outputs in the order of the model."""

    def accepts(self, arguments: Sequence[object]) -> bool:
        """Whether the graph was compiled for arguments like these."""
        return len(arguments) == len(self.inputs) and all(
            slot.accepts(a) for slot, a in zip(self.inputs, arguments, strict=True)
        )

    def __post_init__(self) -> None:
        fed = tuple(slot.name for slot in self.inputs if slot.name is not None)
        computed = sorted((s for s in self.outputs if s.source == "model"), key=lambda s: s.index)
        names = dict.fromkeys(slot.name for slot in computed)
        object.__setattr__(self, "input_names", fed)
        object.__setattr__(self, "output_names", tuple(names))


def find_operator(name: str) -> torch._ops.OpOverload | None:
    """The overload with a whole name, as ``aten::add.Tensor``, the default one if none is named.

    None where this torch has none.
    """
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    known = getattr(getattr(torch.ops, namespace, None), packet, None)
    found = getattr(known, overload or "default", None)
    return found if isinstance(found, torch._ops.OpOverload) else None
