"""Complex numbers in a model: pairs of reals, along a last dimension of two.

ONNX Runtime has no complex tensors. What only moves elements about is what it is for reals, with
one dimension more; arithmetic takes the pairs apart. Both work in files, too. What has no
converter here a session calls in torch, which sees complex numbers again.

Fourier transforms are ONNX's DFT, one dimension after the other. In models that run here torch
transforms: its libraries are many times faster than DFT.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.export.converters.axes import broadcast_sizes
from dort_rewriter.export.converters.creation import fillers
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Converter, Refused, builtin_converters, make_converter
from dort_rewriter.graph.values import Value


class _Complex(NamedTuple):
    """The pairs that stand for a complex tensor."""

    pairs: Value

    @property
    def rank(self) -> int:
        """How many dimensions the complex tensor has."""
        return self.pairs.rank - 1


def has_complex(node: torch.fx.Node) -> bool:
    """Whether a node reads or makes complex tensors."""
    return any(_is_complex(n.meta.get("val")) for n in (node, *node.all_input_nodes))


def _is_complex(meta: Any) -> bool:
    """Whether a (fake) result has complex tensors."""
    if isinstance(meta, list | tuple):
        return any(map(_is_complex, meta))
    return isinstance(meta, torch.Tensor) and meta.is_complex()


def _pairs_of(op: Recorder, x: Any, dtype: ir.DataType) -> Value:
    """A complex tensor, a tensor of reals or a number as pairs."""
    if isinstance(x, _Complex):
        return op.cast(x.pairs, dtype)
    if isinstance(x, Value):
        reals = op.Unsqueeze(op.cast(x, dtype), [x.rank])
        return op.Concat(reals, op.Expand(op.constant(0, dtype), op.sizes(reals)), axis=-1)
    if isinstance(x, complex | float | int):
        return op.constant([complex(x).real, complex(x).imag], dtype)
    raise Refused(f"beside a {type(x).__name__}")


def _parts_of(op: Recorder, pairs: Value) -> tuple[Value, Value]:
    """The real and the imaginary parts."""
    return op.Gather(pairs, 0, axis=-1), op.Gather(pairs, 1, axis=-1)


def _join(op: Recorder, real: Value, imaginary: Value) -> Value:
    """Pairs of parts of the same sizes."""
    parts = (op.Unsqueeze(p, [p.rank]) for p in (real, imaginary))
    return op.Concat(*parts, axis=-1)


def _add(op: Recorder, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return op.Add(_pairs_of(op, x, op.dtype), _scaled(op, y, alpha))


def _sub(op: Recorder, x: Any, y: Any, *, alpha: Any = 1) -> Value:
    return op.Sub(_pairs_of(op, x, op.dtype), _scaled(op, y, alpha))


def _scaled(op: Recorder, x: Any, alpha: Any) -> Value:
    pairs = _pairs_of(op, x, op.dtype)
    if not isinstance(alpha, int | float):
        raise Refused("with a factor that is complex or computed")
    return pairs if alpha == 1 else op.Mul(pairs, op.constant(alpha, op.dtype))


def _multiplied(times: Callable[[Value, Value], Value]) -> Callable[[Recorder, Any, Any], Value]:
    """NOTE: a real factor has an imaginary part of zero, which makes nan of inf, as in torch."""

    def convert(op: Recorder, x: Any, y: Any) -> Value:
        (a, b), (c, d) = (_parts_of(op, _pairs_of(op, v, op.dtype)) for v in (x, y))
        return _join(op, times(a, c) - times(b, d), times(a, d) + times(b, c))

    return convert


_product = _multiplied(operator.matmul)


def _added_product(
    op: Recorder, x: Any, y: Any, z: Any, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    if alpha != 1 or beta != 1:
        raise Refused("with factors")
    return op.Add(_pairs_of(op, x, op.dtype), _product(op, y, z))


def _conj(op: Recorder, x: Any) -> Value:
    return op.Mul(_pairs_of(op, x, op.dtype), op.constant([1, -1], op.dtype))


def _real(op: Recorder, x: Any) -> Value:
    return _parts_of(op, x.pairs)[0] if isinstance(x, _Complex) else x


def _to_copy(op: Recorder, x: Any, dtype: Any = None) -> Value:
    result = op.result
    if not result.is_complex():
        return op.cast(_real(op, x), op.dtype)
    return _pairs_of(op, x, op.dtype)


def _of_parts(op: Recorder, real: Value, imaginary: Value) -> Value:
    sizes = op.vector(broadcast_sizes(op, (real, imaginary)))
    return _join(op, op.Expand(real, sizes), op.Expand(imaginary, sizes))


def _abs(op: Recorder, x: _Complex) -> Value:
    return builtin_converters()["aten::hypot"].function(op, *_parts_of(op, x.pairs))


def _angle(op: Recorder, x: _Complex) -> Value:
    real, imaginary = _parts_of(op, x.pairs)
    return builtin_converters()["aten::atan2"].function(op, imaginary, real)


def _sgn(op: Recorder, x: _Complex) -> Value:
    length = op.Unsqueeze(_abs(op, x), [x.rank])
    return op.Where(op.Equal(length, 0.0), 0.0, x.pairs / length)


def _where(op: Recorder, condition: Value, x: Any, y: Any) -> Value:
    chosen = op.Unsqueeze(op.cast(condition, ir.DataType.BOOL), [condition.rank])
    return op.Where(chosen, _pairs_of(op, x, op.dtype), _pairs_of(op, y, op.dtype))


def _reduced(onnx_op: str) -> Callable[[Recorder, _Complex], Value]:
    def convert(op: Recorder, x: _Complex) -> Value:
        if not x.rank:
            return x.pairs
        return op.call(onnx_op, x.pairs, list(range(x.rank)), keepdims=0)

    return convert


def _sym_stride(op: Recorder, x: _Complex, dim: int) -> Value:
    stride = builtin_converters()["aten::sym_stride.int"]
    if (reason := stride.refusal(op.fx_node)) is not None:
        raise Refused(reason)
    return op.Div(stride.function(op, x.pairs, dim % x.rank), 2)


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("aten::_conj", "aten::_conj_physical", "aten::conj_physical"), _conj),
    **dict.fromkeys(("aten::add.Tensor", "aten::add.Scalar"), _add),
    **dict.fromkeys(("aten::sub.Tensor", "aten::sub.Scalar"), _sub),
    **dict.fromkeys(("aten::mul.Tensor", "aten::mul.Scalar"), _multiplied(operator.mul)),
    **dict.fromkeys(("aten::mm", "aten::bmm"), _product),
    **dict.fromkeys(
        ("aten::masked_fill.Scalar", "aten::masked_fill.Tensor"),
        lambda op, x, mask, value: _where(op, mask, value, x),
    ),
    "aten::_to_copy": _to_copy,
    "aten::abs": _abs,
    "aten::addmm": _added_product,
    "aten::angle": _angle,
    "aten::complex": _of_parts,
    "aten::imag": lambda op, x: _parts_of(op, x.pairs)[1],
    "aten::mean": _reduced("ReduceMean"),
    "aten::polar": lambda op, x, angle: _join(op, x * op.Cos(angle), x * op.Sin(angle)),
    "aten::real": _real,
    "aten::sgn": _sgn,
    "aten::sum": _reduced("ReduceSum"),
    "aten::sym_numel": lambda op, x: op.Div(op.Size(x.pairs), 2),
    "aten::sym_stride.int": _sym_stride,
    "aten::t": lambda op, x: op.Transpose(x.pairs, perm=[1, 0, 2]) if x.rank == 2 else x.pairs,
    "aten::view_as_complex": lambda op, x: x,
    "aten::view_as_real": lambda op, x: x.pairs,
    "aten::where.self": _where,
    "prims::convert_element_type": _to_copy,
}


def _sizes(op: Recorder, x: Any) -> list[int | Value]:
    value, rank = (x.pairs, x.rank) if isinstance(x, _Complex) else (x, x.rank)
    return [op.size(value, axis) for axis in range(rank)]


def _filled(op: Recorder, like: Any, number: Any) -> Value:
    sizes = _sizes(op, like) if isinstance(like, _Complex | Value) else like
    return op.Expand(_pairs_of(op, number, op.dtype), op.vector([*sizes, 2]))


Given = Sequence[Any]
Moved = Callable[[int, Given], Given]
"""The arguments of an operator on pairs, for those on complex numbers of so many dimensions."""


def _moving(name: str, moved: Moved) -> Converter:
    """The converter of an operator that does to pairs what it does to reals."""

    def convert(op: Recorder, *args: Any, **kwargs: Any) -> Any:
        node = op.fx_node
        given, *_ = (n.meta["val"] for n in node.all_input_nodes if _is_complex(n.meta["val"]))
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
    return _pairs_of(op, _Complex(value) if meta.is_complex() else value, dtype)


def _of_pairs(meta: Any) -> Any:
    """The (fake) pairs for a (fake) result."""
    if isinstance(meta, list | tuple):
        return [_of_pairs(m) for m in meta]
    return torch.view_as_real(meta.resolve_conj()) if _is_complex(meta) else meta


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


_MOVED: Mapping[str, Moved] = {
    **dict.fromkeys(
        (
            *("aten::alias", "aten::clone", "aten::detach", "aten::lift_fresh"),
            *("aten::lift_fresh_copy", "aten::neg", "aten::squeeze", "aten::index.Tensor"),
            *("prims::view_of", "aten::alias_copy", "aten::detach_copy"),
        ),
        lambda rank, given: given,
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
    "aten::permute": _permuted,
    "aten::transpose.int": lambda rank, given: _axis(2)(rank, _axis(1)(rank, given)),
    "aten::roll": _rolled,
    "aten::constant_pad_nd": _padded,
    **dict.fromkeys(("aten::slice_backward", "aten::select_backward"), _size_and_axis),
}


def _of_complex(
    op: Recorder, x: _Complex, dim: Sequence[int], normalization: int, forward: bool
) -> Value:
    axes = [d % x.rank for d in dim]
    pairs = x.pairs
    for axis in axes:
        pairs = _transform(op, pairs, axis, inverse=not forward)
    return _normalized(
        op, pairs, [x.pairs.dims[a] for a in axes], normalization, undone=not forward
    )


def _of_reals(
    op: Recorder, x: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    *others, last = [d % x.rank for d in dim]
    pairs = _transform(op, op.Unsqueeze(x, [x.rank]), last, onesided=onesided)
    for axis in others:
        pairs = _transform(op, pairs, axis)
    return _normalized(op, pairs, [x.dims[a] for a in (*others, last)], normalization)


def _to_reals(
    op: Recorder, x: _Complex, dim: Sequence[int], normalization: int, last_dim_size: Any
) -> Value:
    """Half of the spectrum is given: the other one is its mirror image, conjugated."""
    *others, last = [d % x.rank for d in dim]
    pairs, dims = x.pairs, x.pairs.dims
    for axis in others:
        pairs = _transform(op, pairs, axis, inverse=True)
    length, given = last_dim_size, dims[last]
    if not isinstance(length, int) or not isinstance(given, int) or given != length // 2 + 1:
        raise Refused("of a size that is known when it runs, or padded")
    mirrored = op.Slice(pairs, [(length - 1) // 2], [0], [last], [-1])
    mirrored = op.Mul(mirrored, op.constant([1, -1], op.dtype))
    whole = op.Concat(pairs, mirrored, axis=last) if length > 2 else pairs
    whole.shape = ir.Shape([*dims[:last], length, *dims[last + 1 :]])
    whole = _transform(op, whole, last, inverse=True)
    sizes = [*(dims[a] for a in others), length]
    return op.Gather(_normalized(op, whole, sizes, normalization, undone=True), 0, axis=-1)


def _transform(
    op: Recorder, x: Value, axis: int, *, inverse: bool = False, onesided: bool = False
) -> Value:
    """Transform one dimension; the inverse divides by its size. The first one is ONNX's batch."""
    shifted = op.Unsqueeze(x, [0])
    how = {"inverse": int(inverse), "onesided": int(onesided)}
    if op.opset >= 20:
        found = op.DFT(shifted, None, op.constant(axis + 1), **how)
    else:
        found = op.DFT(shifted, axis=axis + 1, **how)
    return op.Squeeze(found, [0])


def _normalized(
    op: Recorder, x: Value, sizes: Sequence[Any], normalization: int, *, undone: bool = False
) -> Value:
    """Divide as torch's numbers say: by nothing, the root of the elements, or them all.

    ``undone`` when DFT has divided by them all already.
    """
    if not all(isinstance(s, int) for s in sizes):
        raise Refused("of a size that is known when it runs")
    count = math.prod(sizes)
    factor = (1.0, count**-0.5, 1.0 / count)[normalization] * (count if undone else 1)
    return x if factor == 1 else op.Mul(x, op.constant(factor, op.dtype))


_FOURIER: Mapping[str, Callable[..., Any]] = {
    "aten::_fft_c2c": _of_complex,
    "aten::_fft_c2r": _to_reals,
    "aten::_fft_r2c": _of_reals,
}


@functools.cache
def complex_converters() -> Mapping[str, Converter]:
    """The converters of operators on complex numbers, by name."""
    computing = {**_ARITHMETIC, **fillers(_filled), "aten::copy": _filled, **_FOURIER}
    return {
        **{name: _moving(name, moved) for name, moved in _MOVED.items()},
        **{name: _computing(name, function) for name, function in computing.items()},
    }


def _computing(name: str, function: Callable[..., Any]) -> Converter:
    """The converter of an operator whose complex arguments are to be told from the others."""

    def convert(op: Recorder, *args: Any, **kwargs: Any) -> Any:
        return function(op, *map(_told, op.fx_node.args, args), **kwargs)

    return dataclasses.replace(make_converter(name, function), function=convert)


def _told(argument: Any, value: Any) -> Any:
    is_node = isinstance(argument, torch.fx.Node) and isinstance(value, Value)
    return _Complex(value) if is_node and _is_complex(argument.meta["val"]) else value
