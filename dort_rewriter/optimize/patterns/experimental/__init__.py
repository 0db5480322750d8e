"""Rules that change rounding, or emit operators with kernels of our own."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule

__all__ = ["RULES"]

RULES: tuple[type[Rule] | type[GraphPass], ...] = ()
"""In the order they are tried."""
