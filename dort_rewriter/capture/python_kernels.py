"""Other Python kernels than torch's for an operator, for a while.

torch has such kernels for some operators, which AOTAutograd runs while it traces, before its
decomposition table is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dort_rewriter.forks import SafeLock

__all__ = ["AUTOGRAD_KEYS", "KERNELS_LOCK", "forget_records", "replaced"]

AUTOGRAD_KEYS = (
    torch._C.DispatchKey.Autograd,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)

KERNELS_LOCK = SafeLock()
"""Held while kernels are replaced, since torch keeps them in tables of the process. One for all
operators: with two, threads that take them in another order would wait for each other."""


@contextlib.contextmanager
def replaced(
    op: torch._ops.OpOverload,
    kernel: Callable[..., Any] | None,
    keys: Sequence[Any] = AUTOGRAD_KEYS,
) -> Iterator[None]:
    """Put a kernel (or none) in the place of an operator's Python kernels."""
    found = {key: op.py_kernels[key] for key in keys if key in op.py_kernels}
    for key in keys:
        op.py_kernels.pop(key, None)
        if kernel is not None:
            op.py_kernels[key] = kernel
    op._dispatch_cache.clear()
    try:
        yield
    finally:
        for key in keys:
            op.py_kernels.pop(key, None)
        op.py_kernels.update(found)
        op._dispatch_cache.clear()


def forget_records(cache: dict[Any, Any], op: torch._ops.OpOverload) -> None:
    """Forget what was recorded of an operator in a cache of fake tensors."""
    for key in [k for k in cache if getattr(k, "key", (None,))[0] is op]:
        del cache[key]
