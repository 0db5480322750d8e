"""Scaled dot product attention as torch's CUDA kernels return it, and its backward.

They compute what ``attention`` computes, and return more: the seed and offset of the random numbers
(which an attention without dropout does not read), and lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.export.converters.attention import attend, attend_backward
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph.values import Value

_PADDED_TO = 32
"""The efficient kernel rounds the length of its logsumexp up to a multiple of this."""

Masks = Sequence[bool]


def _without_content(op: Recorder, fake: Any) -> Any:
    """A result that only an attention with dropout reads: a number, zeros, or nothing."""
    if not isinstance(fake, torch.Tensor):
        return fake
    shape = op.constant([int(d) for d in fake.shape], ir.DataType.INT64)
    zero = ir.tensor([0], dtype=to_onnx_type(fake.dtype))
    return op.ConstantOfShape(shape, value=zero)


def _length(op: Recorder, x: Value) -> Any:
    size = op.size(x, 2)
    return size if isinstance(size, int) else op.Squeeze(size, [0])


@converter("aten::_scaled_dot_product_flash_attention")
def flash_attention(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """_scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)"""
    output, log_sum = attend(op, query, key, value, None, is_causal, scale)
    return (output, log_sum, *_bookkeeping(op, query, key))


def _bookkeeping(op: Recorder, query: Value, key: Value) -> tuple[Any, ...]:
    """The last seven results of the CUDA kernels."""
    first, second, _, _, *random = op.result[2:]
    lengths = _length(op, query), _length(op, key)
    contents = [_without_content(op, fake) for fake in (first, second, *random)]
    return (*contents[:2], *lengths, *contents[2:])


@converter("aten::_scaled_dot_product_flash_attention_backward")
def flash_attention_backward(
    op: Recorder,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Value,
    philox_offset: Value,
    *,
    scale: float | None = None,
) -> tuple[Value, ...]:
    """_scaled_dot_product_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"""
    return attend_backward(
        op, grad_out, query, key, value, None, out, logsumexp, is_causal, scale
    )[:3]


@converter("aten::_scaled_dot_product_cudnn_attention")
def cudnn_attention(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """_scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0.0, bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor philox_offset, Tensor debug_attn_mask)"""
    output, log_sum = attend(op, query, key, value, attn_bias, is_causal, scale)
    fake = op.result[1]
    if not compute_log_sumexp:
        returned = _without_content(op, fake)
    else:
        returned = op.Unsqueeze(log_sum, [-1]) if fake.dim() == 4 else log_sum
    return (output, returned, *_bookkeeping(op, query, key))


@converter("aten::_scaled_dot_product_cudnn_attention_backward")
def cudnn_attention_backward(
    op: Recorder,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    philox_seed: Value,
    philox_offset: Value,
    attn_bias: Value | None,
    cum_seq_q: Value | None,
    cum_seq_k: Value | None,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Value, ...]:
    """_scaled_dot_product_cudnn_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, Tensor attn_bias, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, *, float? scale=None) -> (Tensor, Tensor, Tensor)"""
    log_sum = op.Squeeze(logsumexp, [-1]) if logsumexp.rank == 4 else logsumexp
    mask = attn_bias
    return attend_backward(op, grad_out, query, key, value, mask, out, log_sum, is_causal, scale)[
        :3
    ]


@converter("aten::_scaled_dot_product_efficient_attention")
def efficient_attention(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """_scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0.0, bool is_causal=False, *, float? scale=None) -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)"""
    output, log_sum = attend(op, query, key, value, attn_bias, is_causal, scale)
    if compute_log_sumexp:
        log_sum = _pad(op, log_sum)
    else:
        log_sum = op.Slice(log_sum, [0], [0], [2])
    return (output, log_sum, *(_without_content(op, fake) for fake in op.result[2:]))


def _pad(op: Recorder, log_sum: Value) -> Value:
    length = op.size(log_sum, 2)
    missing: Any
    if isinstance(length, int):
        if not (missing := -length % _PADDED_TO):
            return log_sum
    else:
        missing = op.Mod(op.Neg(length), _PADDED_TO)
    return op.Pad(log_sum, op.vector([0, 0, 0, 0, 0, missing]), 0.0)


@converter("aten::_scaled_dot_product_efficient_attention_backward")
def efficient_attention_backward(
    op: Recorder,
    grad_out_: Value,
    query: Value,
    key: Value,
    value: Value,
    attn_bias: Value | None,
    out: Value,
    logsumexp: Value,
    philox_seed: Value,
    philox_offset: Value,
    dropout_p: float,
    grad_input_mask: Masks,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Value | None, ...]:
    """_scaled_dot_product_efficient_attention_backward(Tensor grad_out_, Tensor query, Tensor key, Tensor value, Tensor attn_bias, Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, float dropout_p, bool[4] grad_input_mask, bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)"""
    log_sum = op.Slice(logsumexp, [0], op.vector([op.size(query, 2)]), [2])
    *grads, grad_scores = attend_backward(
        op, grad_out_, query, key, value, attn_bias, out, log_sum, is_causal, scale
    )
    grad_bias = None
    if grad_input_mask[3] and attn_bias is not None:
        grad_bias = op.CastLike(_sum_to(op, grad_scores, attn_bias), attn_bias)
    return (*grads, grad_bias)


def _sum_to(op: Recorder, x: Value, like: Value) -> Value:
    """Sum over the dimensions along which `like` was broadcast."""
    padded = (1,) * (x.rank - like.rank) + like.dims
    axes = [i for i, (d, p) in enumerate(zip(x.dims, padded, strict=True)) if p == 1 and d != 1]
    total = op.ReduceSum(x, axes, keepdims=1) if axes else x
    return op.Reshape(total, op.sizes(like)) if like.rank < x.rank else total
