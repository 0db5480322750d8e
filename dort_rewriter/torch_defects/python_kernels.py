"""Other Python kernels than torch's for an operator, while one thread traces.

torch keeps them in tables of the process. What is put there calls torch's own in all other
threads: one that compiles with another backend meanwhile sees torch as it is.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.forks import SafeLock

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
def swapped(
    table: dict[Any, Any],
    others: Mapping[Any, Callable[[Any], Callable[..., Any]]],
    forget: Sequence[dict[Any, Any]] = (),
) -> Iterator[None]:
    """Put functions in the place of those of a table of torch's, for the calling thread.

    ``others`` makes each of the one that is there, None if none is. What was recorded of them in
    caches of fake tensors is forgotten, before and after: other compilers stay with torch's.
    NOTE: callers hold :data:`KERNELS_LOCK`, and so with :func:`replaced`.
    """
    found = {key: table[key] for key in others if key in table}
    _forget(forget, others)
    made = {key: make(found.get(key)) for key, make in others.items()}
    for key, kernel in made.items():
        table[key] = in_this_thread(kernel, found.get(key, _no_kernel))
    try:
        yield
    finally:
        for key in others:
            del table[key]
        table.update(found)
        _forget(forget, others)


def _no_kernel(*_: Any, **__: Any) -> Any:
    return NotImplemented


def _forget(caches: Sequence[dict[Any, Any]], ops: Container[Any]) -> None:
    for cache in caches:
        for key in [k for k in cache if getattr(k, "key", (None,))[0] in ops]:
            del cache[key]


@contextlib.contextmanager
def replaced(
    kernels: Mapping[torch._ops.OpOverload, Callable[..., Any] | None],
    keys: Sequence[Any] = AUTOGRAD_KEYS,
) -> Iterator[None]:
    """Put kernels (or none) in the place of the Python kernels of operators.

    NOTE: without one, other threads have none either: nothing says "as if there was none" to
    torch from inside of a kernel.
    """
    found = {op: {k: op.py_kernels[k] for k in keys if k in op.py_kernels} for op in kernels}
    for op, kernel in kernels.items():
        for key in keys:
            before = op.py_kernels.pop(key, functools.partial(op._op_dk, key))
            if kernel is not None:
                op.py_kernels[key] = in_this_thread(kernel, before)
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, own in found.items():
            for key in keys:
                op.py_kernels.pop(key, None)
            op.py_kernels.update(own)
            op._dispatch_cache.clear()
