"""Rules that change rounding, or emit operators with kernels of our own."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.experimental.chains import ElementwiseChains
from dort_rewriter.optimize.patterns.experimental.losses import CrossEntropyGrad
from dort_rewriter.optimize.patterns.experimental.norms import RmsNormGrad
from dort_rewriter.optimize.patterns.experimental.operators import OwnOperators
from dort_rewriter.optimize.patterns.experimental.rotary import Rotary
from dort_rewriter.optimize.patterns.experimental.scatter import (
    ConstantOfShapeScatterND,
    MaskedShapeScatterND,
)
from dort_rewriter.optimize.patterns.experimental.sums import Sums
from dort_rewriter.optimize.patterns.experimental.transposes import (
    AddMulTranspose,
    TransposeCast,
)
from dort_rewriter.optimize.patterns.experimental.tri_matrix import TriMatrix

__all__ = ["KERNELS", "RULES"]

KERNELS: tuple[type[Rule] | type[GraphPass], ...] = (
    OwnOperators,
    Rotary,
    ConstantOfShapeScatterND,
    MaskedShapeScatterND,
    TriMatrix,
    CrossEntropyGrad,
    RmsNormGrad,
    TransposeCast,
    Sums,
    ElementwiseChains,
    AddMulTranspose,
)
"""Those with kernels of our own, measured on whole models: what they compute differs from the
operators they stand for by rounding, if at all."""

RULES: tuple[type[Rule] | type[GraphPass], ...] = KERNELS
"""In the order they are tried."""
