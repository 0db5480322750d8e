"""Rules from standard operators to standard operators."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.default.casts import CastCast
from dort_rewriter.optimize.patterns.default.duplicates import CommonSubexpressions
from dort_rewriter.optimize.patterns.default.identities import Identity
from dort_rewriter.optimize.patterns.default.powers import PowToMul
from dort_rewriter.optimize.patterns.default.transposes import TransposeTranspose

__all__ = ["RULES"]

RULES: tuple[type[Rule] | type[GraphPass], ...] = (
    Identity,
    CastCast,
    TransposeTranspose,
    PowToMul,
    CommonSubexpressions,
)
"""In the order they are tried."""
