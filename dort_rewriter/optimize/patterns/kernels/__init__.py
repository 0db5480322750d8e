"""Rules that emit operators with kernels of our own."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.kernels.attention import (
    Rotary,
    TorchSharedHeads,
    TransposeRotary,
)
from dort_rewriter.optimize.patterns.kernels.casts import (
    KernelCasts,
    NarrowNorms,
    NarrowSoftmax,
)
from dort_rewriter.optimize.patterns.kernels.convolutions import (
    DepthwiseConv,
    DirectConv,
    PaddedConv,
    TransposeDirectConv,
)
from dort_rewriter.optimize.patterns.kernels.elementwise import ElementwiseChains, ElementwiseLists
from dort_rewriter.optimize.patterns.kernels.reductions import (
    BatchNormProduct,
    CrossEntropyGrad,
    RmsNormGrad,
    Sums,
)
from dort_rewriter.optimize.patterns.kernels.scatter import ConstantOfShapeScatterND
from dort_rewriter.optimize.patterns.kernels.torch_inputs import TorchTranspose, TransposeTorch
from dort_rewriter.optimize.patterns.kernels.transposes import TransposeCast

RULES: tuple[type[Rule] | type[GraphPass], ...] = (
    Rotary,
    ConstantOfShapeScatterND,
    DepthwiseConv,
    DirectConv,
    TransposeDirectConv,
    PaddedConv,
    BatchNormProduct,
    CrossEntropyGrad,
    RmsNormGrad,
    NarrowNorms,
    NarrowSoftmax,
    KernelCasts,
    TransposeCast,
    Sums,
    TorchSharedHeads,
    TransposeTorch,
    TorchTranspose,
    TransposeRotary,
    ElementwiseChains,
    ElementwiseLists,
)
"""In the order they are tried; measured on whole models. What they compute differs from the
operators they stand for by rounding, if at all."""
