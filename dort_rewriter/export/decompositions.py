"""Decomposition tables: which operators torch rewrites into simpler ones before conversion.

The default is everything torch can decompose except what has a converter: a converter gives a
smaller graph than a decomposition, and an exact one where the decomposition is not.

Operators on lists of tensors (``_foreach_add``), of which torch's optimizers are made, are the
same operator on one tensor at a time. A list argument is read position by position, another one is
the same for all; torch computes them that way too where it has no fused kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dort_rewriter.errors import OptionError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.encoder_layers import encoder_decompositions
from dort_rewriter.export.linear_algebra import linear_algebra_decompositions
from dort_rewriter.export.pairwise import pairwise_decompositions
from dort_rewriter.export.recurrent import cell_decompositions, layer_decompositions

aten = torch.ops.aten

_NAMES = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy cos cosh div erf "
    "erfc exp expm1 floor frac lerp lgamma log log10 log1p log2 maximum minimum mul neg pow "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc"
).split()
"""Operators whose ``_foreach_`` form has the same arguments, lists or not."""


def foreach_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of every operator on lists that this torch has."""
    table: dict[Any, Callable[..., Any]] = {}
    for name in _NAMES:
        packet = getattr(aten, f"_foreach_{name}", None)
        for overload in [] if packet is None else packet.overloads():
            op = getattr(packet, overload)
            if not op._schema.is_mutable and (name, overload) not in _FROM_TENSOR:
                table[op] = functools.partial(_one_by_one, _on_one(name, op._schema))
    zero = functools.partial(_one_by_one, torch.zeros_like)
    return {**table, aten._foreach_zero.default: zero, aten._foreach_norm.Scalar: _norm}


_FROM_TENSOR = {("addcdiv", "Tensor"), ("addcmul", "Tensor")}
"""These read Python numbers out of a tensor, one for each position."""


def _on_one(name: str, schema: torch._C.FunctionSchema) -> Callable[..., Tensor]:
    """What the operator does to one tensor."""
    if name in ("addcdiv", "addcmul"):
        function = getattr(aten, name)
        return lambda x, one, two, value=1: function(x, one, two, value=value)
    if name in ("maximum", "minimum") and schema.overload_name.startswith("Scalar"):
        return aten.clamp_min if name == "maximum" else aten.clamp_max
    return getattr(aten, name)


def _one_by_one(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    count = len(next(a for a in args if isinstance(a, list | tuple)))
    each = [a if isinstance(a, list | tuple) else [a] * count for a in args]
    return [function(*own, **kwargs) for own in zip(*each, strict=True)]


def _norm(
    tensors: Sequence[Tensor], ord: float = 2, dtype: torch.dtype | None = None
) -> list[Tensor]:
    return [torch.linalg.vector_norm(t, ord, dtype=dtype) for t in tensors]


_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd

Decomposition = Callable[..., Any]
Table = dict[Any, Decomposition]

_WRONG_LAYOUT = frozenset({"aten::zero"})
"""Operators that torch traces with another layout than they give (2.8), and that are decomposed
into others that it traces right, whoever converts them."""

_WRITING = frozenset(
    {
        "aten::constant_pad_nd",
        "aten::diagonal_scatter",
        "aten::fill_.Scalar",
        "aten::fill_.Tensor",
        "aten::zero_",
    }
)
"""Operators that torch decomposes into ``prims::copy_to``, a write in place: neither AOTAutograd
nor ``torch.export`` takes it."""

TABLE_NAMES = ("all", "core", "default", "none")


@functools.cache
def _full_table() -> Table:
    # NOTE: core alone lacks var, var_mean, squeeze.dims, cumprod and functional batch norm.
    return {**_registered_table(), **_core_table(), **_own_table()}


def _own_table() -> Table:
    """What torch does not decompose, or only behind a kernel."""
    return {
        **foreach_decompositions(),
        **encoder_decompositions(),
        **cell_decompositions(),
        **layer_decompositions(),
        aten._new_zeros_with_same_feature_meta.default: _zeros_beside,
        aten._weight_norm_interface_backward.default: _weight_norm_backward,
    }


def _zeros_beside(
    self: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0
) -> torch.Tensor:
    """The tangent that forward mode begins with."""
    return other.new_zeros((*self.shape[:self_num_batch_dims], *other.shape))


def _weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """The gradients of a direction and a length, in the type of the norms, as the kernel does."""
    grad, v, g = (t.to(saved_norms.dtype) for t in (grad_w, saved_v, saved_g))
    others = [axis for axis in range(v.dim()) if axis != dim]
    along = (grad * v).sum(others, keepdim=True) if others else grad * v
    grad_g = along / saved_norms
    grad_v = g / saved_norms * (grad - v * (grad_g / saved_norms))
    return grad_v.to(saved_v.dtype).contiguous(), grad_g.to(saved_g.dtype)


@functools.cache
def _registered_table() -> Table:
    return _of_real_numbers(torch._decomp.decomposition_table)


@functools.cache
def _core_table() -> Table:
    return _of_real_numbers(torch._decomp.core_aten_decompositions())


def _of_real_numbers(table: Mapping[Any, Callable[..., Any]]) -> Table:
    """Leave out what makes complex numbers, and has a converter.

    NOTE: torch writes the parts of a complex result in place, which AOTAutograd then refuses.
    Draws are left out too: made of uniform numbers they are others than eager's for one seed.
    So are writes in place, and transforms are decomposed as eager mode does it, to three
    operators; the table has others.
    """
    complex_ones = ("aten::complex", "aten::polar")
    found = {
        op: function
        for op, function in table.items()
        if isinstance(op, torch._ops.OpOverload)
        and not op.name().startswith(complex_ones)
        and op.name() not in _WRITING
        and torch.Tag.nondeterministic_seeded not in op.tags
    }
    for op in found.keys() & _CORRECTED.keys():
        found[op] = functools.partial(_CORRECTED[op], found[op])
    for op in found:
        if op.name().startswith("aten::fft_") and op.has_kernel_for_dispatch_key(_IMPLICIT):
            found[op] = _implicitly(op)
    return found


def _implicitly(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """What eager mode makes of an operator that has no kernel of its own.

    A function in Python: graphs are kept by what stands in a table.
    """

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        return op._op_dk(_IMPLICIT, *args, **kwargs)

    return decomposed


def _cross_entropy_of_logits(
    decompose: Decomposition,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = 1,
) -> Any:
    """The kernel computes in place of the target, and gives its type: torch 2.8 the wider one."""
    return _reduced(decompose(x, target, weight, pos_weight, 0).to(target.dtype), reduction)


def _loss_of_input(
    decompose: Decomposition,
    x: Tensor,
    target: Tensor,
    reduction: int = 1,
    *rest: Any,
    **named: Any,
) -> Any:
    """The kernel gives the type of its input, torch's decomposition the wider one."""
    return _reduced(decompose(x, target, 0, *rest, **named).to(x.dtype), reduction)


def _where_it_is_defined(
    decompose: Decomposition, x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0
) -> Any:
    """The kernel refuses a threshold below zero, which the decomposition computes with."""
    return NotImplemented if beta < 0 else decompose(x, target, reduction, beta)


def _of_soft_margin(
    decompose: Decomposition, grad: Tensor, x: Tensor, target: Tensor, reduction: int
) -> Any:
    """The kernel has no gradient where a power is infinite, the decomposition a number."""
    power = torch.exp(-target * x)
    share = 1.0 / x.numel() if reduction == 1 else 1.0
    return -target * power / (1 + power) * share * grad


def _of_smooth_l1(
    decompose: Decomposition, grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Any:
    """The gradient of NaN is NaN, in torch's decomposition a number."""
    away = x - target
    known = decompose(grad, x, target, reduction, beta)
    return torch.where(away.isnan(), away * grad, known).contiguous()


def _in_format(decompose: Decomposition, x: Tensor, *args: Any, **named: Any) -> Any:
    """The kernel gives a tensor of its own in the format of the first argument, the decomposition
    a view of it where there is nothing to shuffle."""
    memory_format = torch._prims_common.suggest_memory_format(x)
    return decompose(x, *args, **named).clone(memory_format=memory_format)


def _row_major(decompose: Decomposition, *args: Any, **named: Any) -> Any:
    """The kernel gives a row-major result, whatever it reads."""
    return decompose(*args, **named).contiguous()


def _of_logit(decompose: Decomposition, grad: Tensor, x: Tensor, eps: float | None = None) -> Any:
    """The same."""
    known = decompose(grad, x, eps)
    if eps is None:  # the zero has no sign
        known = torch.where((x == 0) | (x == 1), grad * float("inf"), known)
    return torch.where(x.isnan(), x * grad, known)


def _by_powers(decompose: Decomposition, x: Tensor, other: Tensor) -> Any:
    """The powers have the type of the exponent, in torch 2.13's decomposition that of the rest."""
    return x * torch.pow(2.0, other)


def _of_windows_apart(
    decompose: Decomposition,
    grad: Tensor,
    input_size: Sequence[Any],
    dimension: int,
    size: int,
    step: int,
) -> Any:
    """The kernel copies what is in one window alone, and adds to zeros only where they overlap:
    -0.0 is kept."""
    if not input_size or step < size:
        return decompose(grad, input_size, dimension, size, step)
    dim = dimension % len(input_size)
    index = torch.arange(input_size[dim], device=grad.device).unfold(0, size, step).flatten()
    source = grad.movedim(-1, dim + 1).flatten(dim, dim + 1)
    return torch.index_copy(grad.new_zeros(input_size), dim, index, source)


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    if reduction == 0:
        return loss
    return loss.mean() if reduction == 1 else loss.sum()


def _of_one_sample(
    decompose: Decomposition,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Any:
    """The kernel adds up one sample as well, which makes 0.0 of a zero of either sign."""
    if x.dim() == 1 and reduction == 0:
        reduction = _SUM
    return decompose(x, target, weight, reduction, ignore_index)


_SUM = 2

_CORRECTED: dict[Any, Decomposition] = {
    torch.ops.aten.binary_cross_entropy_with_logits.default: _cross_entropy_of_logits,
    torch.ops.aten.channel_shuffle.default: _in_format,
    torch.ops.aten.huber_loss.default: _loss_of_input,
    torch.ops.aten.huber_loss_backward.default: _row_major,
    torch.ops.aten.ldexp.Tensor: _by_powers,
    torch.ops.aten.logit_backward.default: _of_logit,
    torch.ops.aten.nll_loss_forward.default: _of_one_sample,
    torch.ops.aten.smooth_l1_loss.default: _where_it_is_defined,
    torch.ops.aten.smooth_l1_loss_backward.default: _of_smooth_l1,
    torch.ops.aten.soft_margin_loss.default: _loss_of_input,
    torch.ops.aten.soft_margin_loss_backward.default: _of_soft_margin,
    torch.ops.aten.unfold_backward.default: _of_windows_apart,
}
"""What computes instead of a decomposition of torch, which it is given, where that gives other
types than the kernel, or other numbers for those that are not finite."""


def filter_decomposition_table(
    existing_table: Mapping[Any, Callable[..., Any]] | None = None,
    filter_fct: Callable[[Any], bool] | None = None,
) -> Table:
    """The entries of a table of decompositions whose operator a filter accepts.

    Args:
        existing_table: the table; None is torch's full one.
        filter_fct: is called with each operator; None leaves out those that have a converter.

    Returns:
        A new mapping from operators to functions.
    """
    table = _full_table() if existing_table is None else existing_table
    if filter_fct is None:
        dispatcher = Dispatcher()
        return {op: f for op, f in table.items() if not dispatcher.converts(_name(op))}
    return {op: f for op, f in table.items() if filter_fct(op)}


def get_decomposition_table(dispatcher: Dispatcher | None = None) -> Table:
    """The table that fits a dispatcher: all torch decomposes but what it converts."""
    if dispatcher is None:
        return dict(_default_table())
    return filter_decomposition_table(filter_fct=lambda op: not dispatcher.prefers(_name(op)))


def get_standard_table(dispatcher: Dispatcher) -> Table:
    """The table of models that run without torch: operators for which compiled models call
    torch's kernels are decomposed, except those that the dispatcher converts."""
    others = {**linear_algebra_decompositions(), **pairwise_decompositions()}
    found = {op: f for op, f in others.items() if not dispatcher.converts(_name(op))}
    return {**get_decomposition_table(dispatcher), **found}


def get_tracing_table(dispatcher: Dispatcher) -> Table:
    """What AOTAutograd needs of the table that fits a dispatcher.

    NOTE: torch's core table adds operators that are composed of others, of which AOTAutograd sees
    the parts only. To collect them takes longer than to trace a small model.
    """
    known = dispatcher.description()
    if known is None:  # functions of a user
        return _filter_tracing_table(dispatcher)
    if known not in _tracing_tables:
        _tracing_tables[known] = _filter_tracing_table(dispatcher)
    return dict(_tracing_tables[known])


_tracing_tables: dict[str, Table] = {}


def _filter_tracing_table(dispatcher: Dispatcher) -> Table:
    table = {**_registered_table(), **_own_table()}
    return {
        op: f
        for op, f in table.items()
        if _name(op) in _WRONG_LAYOUT or not dispatcher.prefers(_name(op))
    }


@functools.cache
def _default_table() -> Table:
    return filter_decomposition_table()


def get_decomposition_table_by_name(name: str) -> Table:
    """A table by its name.

    Args:
        name: ``"none"``, ``"core"``, ``"all"`` or ``"default"``.

    Raises:
        OptionError: there is no such table.
    """
    tables: dict[str, Callable[[], Table]] = {
        "all": _full_table,
        "core": _core_table,
        "default": _default_table,
        "none": dict,
    }
    if name not in tables:
        raise OptionError(f"Unknown decomposition table {name!r}: choose from {TABLE_NAMES}.")
    return dict(tables[name]())


def resolve_decomposition_table(
    table: str | Mapping[Any, Callable[..., Any]] | None,
    dispatcher: Dispatcher,
    default: Callable[[Dispatcher], Table] = get_decomposition_table,
) -> Table:
    """The table an option stands for."""
    if table is None:
        return default(dispatcher)
    if isinstance(table, str):
        return get_decomposition_table_by_name(table)
    return dict(table)


def _name(op: Any) -> str:
    return op.name() if isinstance(op, torch._ops.OpOverload) else str(op)
