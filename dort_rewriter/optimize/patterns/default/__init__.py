"""Rules from standard operators to standard operators."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.default.casts import CastCast
from dort_rewriter.optimize.patterns.default.duplicates import CommonSubexpressions
from dort_rewriter.optimize.patterns.default.gemms import (
    GemmTranspose,
    MatMulAdd,
    TransposeMatMul,
)
from dort_rewriter.optimize.patterns.default.identities import Identity
from dort_rewriter.optimize.patterns.default.neutrals import (
    NeutralElement,
    NotNot,
    NotWhere,
    WhereConstant,
)
from dort_rewriter.optimize.patterns.default.powers import PowToMul
from dort_rewriter.optimize.patterns.default.transposes import TransposeTranspose
from dort_rewriter.optimize.patterns.default.views import ReshapeReshape, ShapeBasedIdentity

__all__ = ["RULES"]

RULES: tuple[type[Rule] | type[GraphPass], ...] = (
    Identity,
    CastCast,
    NeutralElement,
    NotNot,
    NotWhere,
    WhereConstant,
    ShapeBasedIdentity,
    ReshapeReshape,
    TransposeTranspose,
    GemmTranspose,
    TransposeMatMul,
    MatMulAdd,
    PowToMul,
    CommonSubexpressions,
)
"""In the order they are tried."""
