"""Other Python kernels than torch's for an operator, while one thread traces.

torch keeps them in tables of the process. What is put there calls torch's own in all other
threads: one that compiles with another backend meanwhile sees torch as it is.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dort_rewriter.forks import SafeLock

__all__ = ["AUTOGRAD_KEYS", "KERNELS_LOCK", "forget_records", "in_this_thread", "replaced"]

AUTOGRAD_KEYS = (
    torch._C.DispatchKey.Autograd,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)

KERNELS_LOCK = SafeLock()
"""Held while kernels are replaced, since torch keeps them in tables of the process. One for all
operators: with two, threads that take them in another order would wait for each other."""


def in_this_thread(
    kernel: Callable[..., Any], elsewhere: Callable[..., Any]
) -> Callable[..., Any]:
    """A function that is ``kernel`` for the calling thread and ``elsewhere`` for all others."""
    owner = threading.get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        chosen = kernel if threading.get_ident() == owner else elsewhere
        return chosen(*args, **kwargs)

    return call


@contextlib.contextmanager
def replaced(
    op: torch._ops.OpOverload,
    kernel: Callable[..., Any] | None,
    keys: Sequence[Any] = AUTOGRAD_KEYS,
) -> Iterator[None]:
    """Put a kernel (or none) in the place of an operator's Python kernels.

    NOTE: without one, other threads have none either: nothing says "as if there was none" to
    torch from inside of a kernel.
    """
    found = {key: op.py_kernels[key] for key in keys if key in op.py_kernels}
    for key in keys:
        before = op.py_kernels.pop(key, functools.partial(op._op_dk, key))
        if kernel is not None:
            op.py_kernels[key] = in_this_thread(kernel, before)
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
