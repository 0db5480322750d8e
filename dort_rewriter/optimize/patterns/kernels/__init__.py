"""Rules that emit operators with kernels of our own."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import Rewrite
from dort_rewriter.optimize.patterns.kernels import (
    attention,
    casts,
    convolutions,
    elementwise,
    reductions,
    transposes,
)

RULES: tuple[type[Rewrite], ...] = (
    attention.Rotary,
    reductions.ConstantOfShapeScatterND,
    convolutions.DepthwiseConv,
    convolutions.DirectConv,
    convolutions.TransposeDirectConv,
    convolutions.Epilogue,
    convolutions.PaddedConv,
    reductions.BatchNormInference,
    reductions.ReluBatchNormGrad,
    reductions.CrossEntropyGrad,
    reductions.RmsNormGrad,
    casts.NarrowNorms,
    casts.NarrowSoftmax,
    casts.KernelCasts,
    transposes.TransposeCast,
    reductions.Sums,
    attention.TorchSharedHeads,
    transposes.TransposeTorch,
    transposes.TorchTranspose,
    attention.TransposeRotary,
    elementwise.ElementwiseChains,
    elementwise.ElementwiseLists,
)
"""In the order they are tried; measured on whole models. What they compute differs from the
operators they stand for by rounding, if at all."""
