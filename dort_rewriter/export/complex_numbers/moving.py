"""What moves elements about does to pairs what it does to reals, with one dimension more."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.export.complex_numbers.pairs import Complex, is_complex, pairs_of
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Converter, Refused, builtin_converters
from dort_rewriter.graph.values import Value

__all__ = ["moving_converters"]

Given = Sequence[Any]
Moved = Callable[[int, Given], Given]
"""The arguments of an operator on pairs, for those on complex numbers of so many dimensions."""


def _moving(name: str, moved: Moved) -> Converter:
    """The converter of an operator that does to pairs what it does to reals."""

    def convert(op: Recorder, *args: Any, **kwargs: Any) -> Any:
        node = op.fx_node
        assert node is not None
        given, *_ = (n.meta["val"] for n in node.all_input_nodes if is_complex(n.meta["val"]))
        first = given[0] if isinstance(given, list | tuple) else given
        dtype = to_onnx_type(first.dtype.to_real())
        lifted = [_lifted(op, a, v, dtype) for a, v in zip(node.args, args, strict=True)]
        seen = SimpleNamespace(meta={**node.meta, "val": _of_pairs(node.meta["val"])})
        op.fx_node = seen  # type: ignore[assignment]  # converters ask it for the result alone
        try:
            return builtin_converters()[name].function(op, *moved(first.dim(), lifted), **kwargs)
        finally:
            op.fx_node = node

    return dataclasses.replace(builtin_converters()[name], function=convert)


def _lifted(op: Recorder, argument: Any, value: Any, dtype: ir.DataType) -> Any:
    """An argument whose tensors of floating point are pairs."""
    if isinstance(argument, list | tuple):
        return [_lifted(op, a, v, dtype) for a, v in zip(argument, value, strict=True)]
    if not isinstance(argument, torch.fx.Node) or not isinstance(value, Value):
        return value
    meta = argument.meta["val"]
    if not isinstance(meta, torch.Tensor) or not (meta.is_floating_point() or meta.is_complex()):
        return value
    return pairs_of(op, Complex(value) if meta.is_complex() else value, dtype)


def _of_pairs(meta: Any) -> Any:
    """The (fake) pairs for a (fake) result."""
    if isinstance(meta, list | tuple):
        return [_of_pairs(m) for m in meta]
    return torch.view_as_real(meta.resolve_conj()) if is_complex(meta) else meta


def _axis(position: int, default: int | None = None, *, new: int = 0) -> Moved:
    """A dimension, counted from the front; ``new`` ones are counted with those there are."""

    def moved(rank: int, given: Given) -> Given:
        args = list(given)
        if position == len(args) and default is not None:
            args.append(default)
        if rank + new == 0:
            raise Refused("of a number")
        rank, axes = rank + new, args[position]
        if isinstance(axes, list | tuple):
            args[position] = [a % rank for a in axes]
        else:
            args[position] = axes % rank
        return args

    return moved


def _axes_or_all(rank: int, given: Given) -> Given:
    """Dimensions; all of them where none is named."""
    x, dims, *rest = given
    if rank == 0:
        raise Refused("of a number")
    return x, [d % rank for d in dims] if dims else list(range(rank)), *rest


def _two_axes(rank: int, given: Given) -> Given:
    x, dim0, dim1 = given
    if rank == 0:
        raise Refused("of a number")
    return x, dim0 % rank, dim1 % rank


def _size(rank: int, given: Given) -> Given:
    x, size = given
    return x, [*size, 2]


def _permuted(rank: int, given: Given) -> Given:
    x, dims = given
    return x, [*(d % rank for d in dims), rank]


def _rolled(rank: int, given: Given) -> Given:
    x, shifts, *dims = given
    if not dims or not dims[0]:
        raise Refused("of all elements in a row")
    return x, shifts, [d % rank for d in dims[0]]


def _padded(rank: int, given: Given) -> Given:
    x, pad, *value = given
    if any(v != 0 for v in value):
        raise Refused("with something else than zeros")
    return x, [0, 0, *pad]


def _size_and_axis(rank: int, given: Given) -> Given:
    x, sizes, dim, *rest = given
    return x, [*sizes, 2], dim % len(sizes), *rest


def _same(rank: int, given: Given) -> Given:
    return given


_MOVED: Mapping[str, Moved] = {
    **dict.fromkeys(
        (
            *("aten::alias", "aten::clone", "aten::detach", "aten::lift_fresh"),
            *("aten::lift_fresh_copy", "aten::neg", "aten::squeeze", "aten::index.Tensor"),
            *("prims::view_of", "aten::alias_copy", "aten::detach_copy"),
        ),
        _same,
    ),
    **dict.fromkeys(("aten::view", "aten::_unsafe_view", "aten::expand"), _size),
    **dict.fromkeys(
        (
            *("aten::squeeze.dim", "aten::squeeze.dims", "aten::select.int", "aten::flip"),
            *("aten::index_select", "aten::slice.Tensor", "aten::cat", "aten::unbind.int"),
            "aten::sym_size.int",
        ),
        _axis(1, 0),
    ),
    **dict.fromkeys(
        (
            *("aten::slice_scatter", "aten::select_scatter"),
            *("aten::split.Tensor", "aten::split_with_sizes"),
        ),
        _axis(2, 0),
    ),
    **dict.fromkeys(("aten::sum.dim_IntList", "aten::mean.dim"), _axes_or_all),
    "aten::unsqueeze": _axis(1, new=1),
    "aten::stack": _axis(1, 0, new=1),
    "aten::permute": _permuted,
    "aten::transpose.int": _two_axes,
    "aten::roll": _rolled,
    "aten::constant_pad_nd": _padded,
    **dict.fromkeys(("aten::slice_backward", "aten::select_backward"), _size_and_axis),
}


def moving_converters() -> dict[str, Converter]:
    """The converters of operators that move complex numbers about, by name."""
    return {name: _moving(name, moved) for name, moved in _MOVED.items()}
