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

from dort_rewriter.export.registry import Arguments, arguments

_OF_QUERIES, _OF_KEYS = 0, 1
"""What a mask is of, ``mask_type`` of the kernels; anything else is one for each score."""


def encoder_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of both operators."""
    functions = {
        torch.ops.aten._native_multi_head_attention.default: _multi_head_attention,
        torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }
    return {op: _with_record(op, function) for op, function in functions.items()}


def _with_record(op: Any, function: Callable[[Arguments], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(arguments(op, args, kwargs))


def _encoder_layer(given: Arguments) -> torch.Tensor:
    """A layer: attention and two products, each added to what it is given."""
    size = (given.embed_dim,)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, size, given.norm_weight_1, given.norm_bias_1, given.eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, size, given.norm_weight_2, given.norm_bias_2, given.eps)

    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = F.linear(x, given.qkv_weight, given.qkv_bias).chunk(3, -1)
        context, _ = _attend(q, k, v, given.num_heads, _spread(given))
        return F.linear(context, given.proj_weight, given.proj_bias)

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        hidden = F.linear(x, given.ffn_weight_1, given.ffn_bias_1)
        activated = _activation(hidden, given.use_gelu)
        return F.linear(activated, given.ffn_weight_2, given.ffn_bias_2)

    if given.norm_first:
        x = attend(norm_1(given.src)) + given.src
        return feed_forward(norm_2(x)) + x
    x = norm_1(attend(given.src) + given.src)
    return norm_2(feed_forward(x) + x)


def _activation(x: torch.Tensor, use_gelu: bool) -> torch.Tensor:
    """NOTE: the product of CUDA that has the activation in it knows only the gelu of tanh."""
    if not use_gelu:
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if x.device.type == "cuda" else "none")


def _multi_head_attention(given: Arguments) -> tuple[torch.Tensor, torch.Tensor | None]:
    """An attention with its projections, and its probabilities or None."""
    query, key, value = given.query, given.key, given.value
    if query.numel() == 0:
        return query.new_empty(query.shape), None
    if query is key and key is value:
        q, k, v = F.linear(query, given.qkv_weight, given.qkv_bias).chunk(3, -1)
    else:
        weights, biases = given.qkv_weight.chunk(3), given.qkv_bias.chunk(3)
        q, k, v = map(F.linear, (query, key, value), weights, biases)
    context, probabilities = _attend(q, k, v, given.num_head, _spread(given))
    result = F.linear(context, given.proj_weight, given.proj_bias)
    if not given.need_weights:
        return result, None
    mean = given.average_attn_weights
    return result, probabilities.sum(1) / given.num_head if mean else probabilities


def _spread(given: Arguments) -> torch.Tensor | None:
    """A mask with four axes, as scores have; where it is not zero a key is hidden."""
    if given.mask is None:
        return None
    hidden: torch.Tensor = given.mask.to(torch.bool)
    if given.mask_type == _OF_KEYS:
        return hidden[:, None, None, :]
    return hidden[None, None] if given.mask_type == _OF_QUERIES else hidden


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
