"""How torch traces for us: corrected, with random and resizing operators whole.

torch replaces the resizing operators by index arithmetic before its decomposition table is asked,
through Python kernels for autograd: the gradient is then a chain of ``index_put``, which is slow.
These kernels are put aside during the tracing, for operators that the table leaves alone. Random
operators keep their draw apart from the arithmetic: torch computes it, since it owns the
generator.

NOTE: ``.vec`` overloads keep a Python kernel, one that only works the sizes out: torch's own in
C++ cannot when they are symbolic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from dort_rewriter.aten import hint_of
from dort_rewriter.torch_defects import norm_sizes, quotient_types
from dort_rewriter.torch_defects.count_types import correct_count_types
from dort_rewriter.torch_defects.expanded_writes import put_back_whole
from dort_rewriter.torch_defects.lost_checks import keep_checks
from dort_rewriter.torch_defects.lost_tokens import keep_tokens
from dort_rewriter.torch_defects.margin_loss import correct_margin_loss
from dort_rewriter.torch_defects.python_kernels import AUTOGRAD_KEYS, KERNELS_LOCK, replaced
from dort_rewriter.torch_defects.scalar_arguments import keep_scalar_writes

aten = torch.ops.aten


def _native_dropout(input: torch.Tensor, p: float, train: bool | None) -> Any:
    """Draw the mask as eager does on the CPU: same seed, same mask.

    NOTE: nothing is drawn for no elements, and what has none is returned itself. The kernel of
    another device has random numbers of its own: it stays, and the plan of the graph splits it.
    """
    if any(isinstance(size, int) and size == 0 for size in input.shape):
        return input, torch.empty_like(input)
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(input), torch.zeros_like(input, dtype=torch.bool)
    if _has_a_kernel_for_both(input):
        return NotImplemented
    keep = 1.0 - p
    mask = aten.bernoulli.p(torch.empty_like(input, dtype=torch.bool), keep)
    return input * mask * (1.0 / keep), mask


def _has_a_kernel_for_both(input: torch.Tensor) -> bool:
    """Whether one kernel makes a random mask and multiplies by it, which on the CPU are two."""
    return input.device.type == "cuda"


RANDOM_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: _native_dropout,
}
"""Decompositions that keep the draw apart from the arithmetic."""

_NAMES = (
    *(f"{how}{n}d" for how in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
)
_META = torch._C.DispatchKey.Meta


@contextlib.contextmanager
def keep_resizing(decompositions: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Trace resizing operators as they are, except those with a decomposition."""
    kept = {n: p for n in _NAMES if (p := getattr(aten, n)).default not in decompositions}
    kernels: dict[Any, Callable[..., Any] | None] = dict.fromkeys(p.default for p in kept.values())
    kernels |= {p.vec: _by_sizes(p) for p in kept.values()}
    gradients = [getattr(aten, f"{name}_backward").default for name in kept]
    # What is in C++ only is for known sizes.
    unknown = {op: _like_input for op in gradients if _META not in op.py_kernels}
    with KERNELS_LOCK, replaced(kernels), replaced(unknown, (_META,)):
        yield


def _by_sizes(packet: Any) -> Callable[..., Any]:
    """The kernel of a ``.vec`` overload: the operator called with the sizes worked out."""
    op = packet.default
    decomposed = next(
        (packet.vec.py_kernels[k] for k in AUTOGRAD_KEYS if k in packet.vec.py_kernels), None
    )

    def call(input: torch.Tensor, output_size: Any, *options: Any) -> Any:
        # NOTE: torch's meta kernels refuse a batch of nothing, by an error of types.
        if decomposed is not None and hint_of(input.shape[0]) == 0 and input.shape[0] == 0:
            return decomposed(input, output_size, *options)
        *align, factors = options
        if output_size is not None:
            return op(input, output_size, *align, *[None] * (input.dim() - 2))
        sizes = [
            torch.sym_int(size * factor)
            for size, factor in zip(input.shape[2:], factors, strict=True)
        ]
        return op(input, sizes, *align, *factors)

    return call


def _like_input(
    grad_output: torch.Tensor, output_size: Any, input_size: Any, *options: Any
) -> torch.Tensor:
    """What a gradient looks like."""
    layout = torch._prims_common.suggest_memory_format(grad_output)
    return grad_output.new_empty(input_size).to(memory_format=layout)


@contextlib.contextmanager
def through_compiled_parts() -> Iterator[None]:
    """Trace what parts of a model compute that ``torch.compile`` has compiled, which torch refuses
    (before 2.13 also where it exports)."""
    with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
        yield


@contextlib.contextmanager
def correct_tracing(traced: torch.fx.GraphModule | None = None) -> Iterator[None]:
    """Trace with the records that torch's kernels bear out.

    ``traced`` is the graph that is traced again, if it is one.
    """
    with KERNELS_LOCK, contextlib.ExitStack() as stack:
        stack.enter_context(correct_margin_loss())
        stack.enter_context(correct_count_types())
        if norm_sizes.present():
            stack.enter_context(norm_sizes.correct_norm_sizes())
        if quotient_types.present():
            stack.enter_context(quotient_types.correct_quotient_types(traced))
        stack.enter_context(keep_checks())
        stack.enter_context(keep_tokens())
        stack.enter_context(put_back_whole())
        stack.enter_context(keep_scalar_writes())
        yield
