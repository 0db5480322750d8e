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

from dort_rewriter.capture.python_kernels import KERNELS_LOCK, forget_records

__all__ = ["correct_norm_sizes"]

_NORM = torch.ops.aten.linalg_vector_norm.default


@contextlib.contextmanager
def correct_norm_sizes() -> Iterator[None]:
    """Trace norms with the sizes that kernels give."""
    with KERNELS_LOCK:
        if not _is_wrong():
            yield
            return
        # What has symbolic sizes asks the table, before it asks for a kernel.
        kernels, decompose = fake_impls.op_implementations_dict, decomposition_table[_NORM]
        forget_records(FakeTensorMode.cache, _NORM)
        kernels[_NORM] = _call
        decomposition_table[_NORM] = functools.partial(_decomposed, decompose)
        try:
            yield
        finally:
            del kernels[_NORM]
            decomposition_table[_NORM] = decompose
            # Other compilers stay with torch's sizes, all of them.
            forget_records(FakeTensorMode.cache, _NORM)


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
def _is_wrong() -> bool:
    with FakeTensorMode():
        return torch.linalg.vector_norm(torch.empty(2, 1), 1, -1).dim() != 1
