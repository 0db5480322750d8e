"""Whether the exporter may write operators that have kernels of our own."""

from __future__ import annotations

from dort_rewriter.optimize.selection import asks_for_kernels
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.custom_kernels import is_available

__all__ = ["uses_own_kernels"]


def uses_own_kernels(options: OptimizationOptions) -> bool:
    """Whether the rules that are chosen ask for them, and they can be compiled here."""
    wanted = asks_for_kernels(options.patterns)
    return wanted and options.processor == "CPU" and is_available()
