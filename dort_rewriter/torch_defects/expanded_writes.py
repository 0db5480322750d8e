"""Writes through an expanded view that has no more elements than what it is a view of.

AOTAutograd adds to the base what the view has more than before: a difference that is rounded, and
NaN for an infinity. A view that repeats nothing is traced as another one, which is put back as it
is: eager mode refuses to write to those that repeat.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.python_kernels import AUTOGRAD_KEYS, replaced

DEFECT = Defect(
    operators="in-place mutation of `x.expand_as(x)`, `x.expand(1, n)`, `torch.broadcast_to`",
    effect="What is written is rounded to the digits of what was there; NaN if it was infinite.",
    seen_in=("2.8", "2.13"),
    remedy=(
        "an expansion that repeats nothing is traced as a view of another kind, for the thread "
        "that traces"
    ),
    upstream="`reports/expanded_writes.md`",
)

_EXPAND = torch.ops.aten.expand.default
_AUTOGRAD = AUTOGRAD_KEYS[:1]


def put_back_whole() -> contextlib.AbstractContextManager[None]:
    """Trace expansions so that writes through them are exact."""
    return replaced({_EXPAND: _expand}, _AUTOGRAD)


def _expand(x: torch.Tensor, size: Sequence[Any], *, implicit: bool = False) -> torch.Tensor:
    new = len(size) - x.dim()
    # NOTE: what AOTAutograd learns before it traces is how to make views again, for autograd.
    if (
        get_proxy_mode() is None
        or new < 0
        or not (_is_one(size[:new]) and _is_same(size[new:], x.shape))
    ):
        return _EXPAND._op_dk(_AUTOGRAD[0], x, size, implicit=implicit)
    if not new:
        return torch.ops.aten.alias.default(x)
    view = x
    for _ in range(new):
        view = view.unsqueeze(0)
    if view.requires_grad:  # the gradient of an expansion is a sum, which begins with 0.0
        view.register_hook(lambda gradient: gradient + 0.0)
    return view


def _is_one(sizes: Sequence[Any]) -> bool:
    return all(statically_known_true(n == 1) for n in sizes)


def _is_same(sizes: Sequence[Any], shape: Sequence[Any]) -> bool:
    return all(
        (isinstance(n, int) and n == -1) or statically_known_true(n == m)
        for n, m in zip(sizes, shape, strict=True)
    )


def present() -> bool:
    """Whether a write through such a view is rounded."""
    x = torch.tensor([1e8])
    torch.compile(_mutate, backend="aot_eager")(x)
    return x.item() != 1


def _mutate(x: torch.Tensor) -> torch.Tensor:
    x.expand_as(x).mul_(1e-8)
    return x + 1
