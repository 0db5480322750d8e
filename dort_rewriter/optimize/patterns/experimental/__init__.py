"""Rules that change rounding, or emit operators with kernels of our own."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.experimental.chains import ElementwiseChains

__all__ = ["RULES"]

RULES: tuple[type[Rule] | type[GraphPass], ...] = (ElementwiseChains,)
"""In the order they are tried."""
