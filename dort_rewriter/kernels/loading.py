"""The library of our kernels in sessions: operators of the domain ``dort_rewriter``."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.library import kernel_library
from dort_rewriter.ort_module import bindings, describe, load_onnxruntime

if TYPE_CHECKING:
    import onnxruntime

logger = logging.getLogger(__name__)

_registered: weakref.WeakSet[onnxruntime.SessionOptions] = weakref.WeakSet()
"""Options that know the library: registering it twice makes them useless."""


def custom_ops_library() -> str:
    """The path of the library, for ``SessionOptions.register_custom_ops_library``.

    It is compiled if it was not when the package was installed.

    Raises:
        ExecutionError: that cannot be done.
    """
    return str(kernel_library())


@functools.cache
def is_available() -> bool:
    """Whether the library can be had and loaded; why not is said once."""
    try:
        register(load_onnxruntime().SessionOptions())
    except ExecutionError as error:
        logger.warning("No rule that needs a kernel of our own is applied: %s", error)
        return False
    return True


@functools.cache
def address_key() -> int:
    """What the nodes of a model say that are given addresses: no file knows it."""
    ask = ctypes.CDLL(custom_ops_library()).address_key
    ask.restype = ctypes.c_int64
    return int(ask())


@contextlib.contextmanager
def kernels_for(threads: int, *, beside_torch: bool = False) -> Iterator[None]:
    """Let the kernels that are made meanwhile share their work between that many threads of a
    session, or between torch's: those of a session with kernels of torch in it."""
    say = ctypes.CDLL(custom_ops_library()).make_kernels_for
    say(ctypes.c_int64(threads), int(beside_torch))
    try:
        yield
    finally:
        say(ctypes.c_int64(1), 0)


def register(options: onnxruntime.SessionOptions) -> None:
    """Make the operators known to the sessions built with these options."""
    if options in _registered:
        return
    path, state = custom_ops_library(), bindings()
    try:
        options.register_custom_ops_library(path)
    except (state.Fail, state.InvalidArgument, state.RuntimeException, RuntimeError) as error:
        raise ExecutionError(f"{describe()} cannot load {path}: {error}") from error
    _registered.add(options)
