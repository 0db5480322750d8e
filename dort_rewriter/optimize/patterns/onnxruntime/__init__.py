"""Rules that may emit operators of ``com.microsoft``, where the provider has a kernel for them."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.patterns.onnxruntime.activations import FastGelu, GeluErf
from dort_rewriter.optimize.patterns.onnxruntime.attention import MultiHeadAttention
from dort_rewriter.optimize.patterns.onnxruntime.gradients import SoftmaxGrad
from dort_rewriter.optimize.patterns.onnxruntime.groups import (
    GroupQueryAttention,
    GroupQueryRotary,
)
from dort_rewriter.optimize.patterns.onnxruntime.norms import (
    SimplifiedLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
from dort_rewriter.optimize.patterns.onnxruntime.products import (
    FusedMatMul,
    FusedMatMulScale,
    FusedMatMulTranspose,
)
from dort_rewriter.optimize.patterns.onnxruntime.rotary import ContribRotaryEmbedding

__all__ = ["RULES"]

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
