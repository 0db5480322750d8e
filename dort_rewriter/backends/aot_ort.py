"""make_aot_ort: the ``onnxrt`` backend as a pair, its options spelled as arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.backends.arguments import level_name, log_as_asked, select_patterns
from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions

__all__ = ["make_aot_ort"]

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def make_aot_ort(
    dynamic: bool = False,
    rewrite: bool = True,
    verbose: int = 0,
    ort_optimization_level: str | None = None,
    enable_pattern: str | Sequence[Any] | None = "default",
    disable_pattern: str | Sequence[str] | None = None,
    processor: str = "CPU",
    *,
    target_opset: int = 18,
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
    fallback: bool = True,
) -> tuple[OrtBackend, OrtBackend]:
    """A backend for ``torch.compile``, twice: for static and for dynamic use.

    Args:
        dynamic: whether the graphs will have symbolic sizes; the backend takes both, this only
            documents the intent (``torch.compile(..., dynamic=...)`` decides).
        rewrite: optimize the exported models; False leaves them as they are exported.
        verbose: 1 logs a summary of each model, more logs each rewriting rule.
        ort_optimization_level: ONNX Runtime's own optimizations: ``"disable"``, ``"basic"``,
            ``"extended"``, ``"layout"``, ``"all"``, or its names (``"ORT_DISABLE_ALL"``); None
            leaves its default.
        enable_pattern: the rules to apply (``"default+onnxruntime"``).
        disable_pattern: rules to leave out of them.
        processor: ``"CPU"`` or ``"CUDA"``.
        target_opset: the opset of the exported models.
        providers: execution providers to prefer.
        fallback: leave to torch what cannot be converted, or raise.

    """
    patterns = select_patterns(enable_pattern, disable_pattern) if rewrite else None
    log_as_asked(verbose)
    options = OrtBackendOptions(
        preferred_execution_providers=providers,
        ort_optimization_level=level_name(ort_optimization_level),
        target_opset=target_opset,
        fallback=fallback,
        optimization=OptimizationOptions(
            patterns=patterns, processor=processor, verbose=verbose, remove_unused=rewrite
        ),
    )
    backend = OrtBackend(options)
    return backend, backend
