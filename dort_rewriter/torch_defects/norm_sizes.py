"""The sizes of a norm over dimensions of one counted from the last, which torch 2.8 keeps.

Its record takes such a dimension for none of those that go. While AOTAutograd traces, the
dimensions are counted from the first: also where it looks at results before it traces.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._subclasses import FakeTensorMode, fake_impls

from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.python_kernels import swapped

DEFECT = Defect(
    operators="linalg.vector_norm",
    effect=(
        "A dimension of one element that is counted from the last stays in the traced result."
    ),
    seen_in=("2.8",),
    remedy=(
        "torch's kernel of fake tensors and its decomposition count from the first, for the "
        "thread that traces, while it does"
    ),
    upstream="pytorch#182181; fixed by pytorch#182405",
)


_NORM = torch.ops.aten.linalg_vector_norm.default


@contextlib.contextmanager
def correct_norm_sizes() -> Iterator[None]:
    """Trace norms with the sizes that kernels give, where torch does not (:func:`present`)."""
    kernels, caches = fake_impls.op_implementations_dict, [FakeTensorMode.cache]
    # What has symbolic sizes asks the table, before it asks for a kernel.
    decompose = {_NORM: lambda own: functools.partial(_decomposed, own)}
    with (
        swapped(kernels, {_NORM: lambda _: _call}, caches),
        swapped(decomposition_table, decompose),
    ):
        yield


def _call(mode: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
    with mode:
        return _over_counted(*args, **kwargs)


def _decomposed(decompose: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    result = _over_counted(*args, **kwargs)
    return decompose(*args, **kwargs) if result is NotImplemented else result


def _over_counted(
    x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, **named: Any
) -> Any:
    """A norm over dimensions that are counted from the first, where some are not."""
    rank = x.dim()
    if not dim or all(d >= 0 for d in dim) or any(not -rank <= d < rank for d in dim):
        return NotImplemented
    return _NORM(x, ord, [d % rank for d in dim], keepdim, **named)


@functools.cache
def present() -> bool:
    """Whether this torch keeps a dimension of one that is counted from the last."""
    with FakeTensorMode():
        return torch.linalg.vector_norm(torch.empty(2, 1), 1, -1).dim() != 1
