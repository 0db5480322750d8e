"""What torch's transformer modules call in inference: one operator for a layer, or an attention.

``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` in ``eval`` without gradients give all
of it to one kernel, which is decomposed here as that kernel computes it. A row that is masked
wholly is NaN there, which ``scaled_dot_product_attention`` makes zeros of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["encoder_decompositions"]

_OF_QUERIES, _OF_KEYS = 0, 1
"""What a mask is of, ``mask_type`` of the kernels; anything else is one for each score."""


def encoder_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of both operators."""
    return {
        torch.ops.aten._native_multi_head_attention.default: _multi_head_attention,
        torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """A layer: attention and two products, each added to what it is given."""

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = F.linear(x, qkv_weight, qkv_bias).chunk(3, -1)
        context, _ = _attend(q, k, v, num_heads, _spread(mask, mask_type))
        return F.linear(context, proj_weight, proj_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(_activation(hidden, use_gelu), ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = attend(norm_1(src)) + src
        return feed_forward(norm_2(x)) + x
    x = norm_1(attend(src) + src)
    return norm_2(feed_forward(x) + x)


def _activation(x: torch.Tensor, use_gelu: bool) -> torch.Tensor:
    """NOTE: the product of CUDA that has the activation in it knows only the gelu of tanh."""
    if not use_gelu:
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if x.device.type == "cuda" else "none")


def _multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An attention with its projections, and its probabilities or None."""
    if query.numel() == 0:
        return query.new_empty(query.shape), None
    if query is key and key is value:
        q, k, v = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        q, k, v = map(F.linear, (query, key, value), weights, biases)
    context, probabilities = _attend(q, k, v, num_head, _spread(mask, mask_type))
    result = F.linear(context, proj_weight, proj_bias)
    if not need_weights:
        return result, None
    return result, probabilities.sum(1) / num_head if average_attn_weights else probabilities


def _spread(mask: torch.Tensor | None, mask_type: int | None) -> torch.Tensor | None:
    """A mask with four axes, as scores have; where it is not zero a key is hidden."""
    if mask is None:
        return None
    hidden = mask.to(torch.bool)
    if mask_type == _OF_KEYS:
        return hidden[:, None, None, :]
    return hidden[None, None] if mask_type == _OF_QUERIES else hidden


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, hidden: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values weighed by probabilities, and these: of three axes and of four."""
    batch, length, width = q.shape
    q, k, v = (x.view(batch, length, heads, width // heads).transpose(1, 2) for x in (q, k, v))
    scores = torch.matmul(q * (1.0 / math.sqrt(width // heads)), k.transpose(-2, -1))
    if hidden is not None:
        zero = scores.new_zeros(())
        scores = scores + torch.where(hidden, -math.inf, zero)
    probabilities = torch.softmax(scores, -1)
    context = torch.matmul(probabilities, v)
    return context.transpose(1, 2).reshape(batch, length, width), probabilities
