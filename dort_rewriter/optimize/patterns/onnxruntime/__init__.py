"""Rules that may emit operators of ``com.microsoft``, where the provider has a kernel for them."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.onnxruntime.attention import (
    ContribRotaryEmbedding,
    GroupQueryAttention,
    GroupQueryRotary,
    MultiHeadAttention,
)
from dort_rewriter.optimize.patterns.onnxruntime.layers import (
    FastGelu,
    GeluErf,
    SimplifiedLayerNormalization,
    SkipSimplifiedLayerNormalization,
    SoftmaxGrad,
)
from dort_rewriter.optimize.patterns.onnxruntime.products import (
    FusedMatMul,
    FusedMatMulScale,
    FusedMatMulTranspose,
)

RULES: tuple[type[Rule] | type[GraphPass], ...] = (
    SimplifiedLayerNormalization,
    SkipSimplifiedLayerNormalization,
    GeluErf,
    FastGelu,
    ContribRotaryEmbedding,
    GroupQueryAttention,
    GroupQueryRotary,
    MultiHeadAttention,
    FusedMatMulScale,
    FusedMatMul,
    FusedMatMulTranspose,
    SoftmaxGrad,
)
"""In the order they are tried."""
