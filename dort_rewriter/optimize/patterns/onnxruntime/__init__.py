"""Rules that may emit operators of ``com.microsoft``, where the provider has a kernel for them."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import Rewrite
from dort_rewriter.optimize.patterns.onnxruntime import attention, layers, products

RULES: tuple[type[Rewrite], ...] = (
    layers.SimplifiedLayerNormalization,
    layers.SkipSimplifiedLayerNormalization,
    layers.GeluErf,
    layers.FastGelu,
    attention.ContribRotaryEmbedding,
    attention.GroupQueryAttention,
    attention.GroupQueryRotary,
    attention.MultiHeadAttention,
    products.FusedMatMulScale,
    products.FusedMatMul,
    products.FusedMatMulTranspose,
    layers.SoftmaxGrad,
)
"""In the order they are tried."""
