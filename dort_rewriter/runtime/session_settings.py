"""The settings of onnxruntime that go with the options of a backend."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.providers import CPU, ProviderSpec, normalize
from dort_rewriter.runtime.session import session_options
from dort_rewriter.runtime.stored_model import uses_torch_kernels
from dort_rewriter.runtime.threads import ThreadPolicy

__all__ = ["new_settings", "session_settings"]


def session_settings(
    options: OrtBackendOptions, model: Any, providers: Iterable[ProviderSpec]
) -> Any:
    """The ``SessionOptions`` that a user gave, or new ones.

    NOTE: threads that spin while a kernel of torch computes in the threads of OpenMP take half of
    its time.
    """
    if options.ort_session_options is not None:
        return options.ort_session_options
    spinning = options.spinning
    if spinning == "stop" and uses_torch_kernels(model):
        spinning = "off"
    policy = ThreadPolicy(intra_op_threads=options.intra_op_threads, spinning=spinning)
    arena = options.arena
    if arena == "shared" and any(p.name != CPU for p in normalize(providers)):
        arena = "session"  # that of the device plans its memory once, which sharing forbids
    return session_options(
        optimization_level=options.ort_optimization_level, threads=policy, arena=arena
    )


def new_settings(
    options: OrtBackendOptions, model: Any, providers: Iterable[ProviderSpec]
) -> Callable[[], Any] | None:
    """What makes such settings again, for a session that is kept on disk; None where none is to
    be, or the user gave the settings."""
    if not options.cache or options.ort_session_options is not None:
        return None
    return functools.partial(session_settings, options, model, providers)
