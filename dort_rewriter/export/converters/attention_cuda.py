"""Scaled dot product attention as torch's CUDA kernels return it, and its backward.

They compute what ``attention`` computes, and return more: the seed and offset of the random numbers
(which an attention without dropout does not read), and lengths.
"""

from __future__ import annotations

from typing import Any

import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.export.converters.attention import attend, attend_backward
from dort_rewriter.export.converters.axes import zeros
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, by_name, converter
from dort_rewriter.graph.values import Value

_PADDED_TO = 32
"""The efficient kernel rounds the length of its logsumexp up to a multiple of this."""


def _without_content(op: Recorder, fake: Any) -> Any:
    """A result that only an attention with dropout reads: a number, zeros, or nothing."""
    if not isinstance(fake, torch.Tensor):
        return fake
    return zeros(op, [int(d) for d in fake.shape], to_onnx_type(fake.dtype))


def _length(op: Recorder, x: Value) -> Any:
    size = op.size(x, 2)
    return size if isinstance(size, int) else op.Squeeze(size, [0])


def _bookkeeping(op: Recorder, given: Arguments) -> tuple[Any, ...]:
    """The last seven results of the CUDA kernels."""
    first, second, _, _, *random = op.result[2:]
    lengths = _length(op, given.query), _length(op, given.key)
    contents = [_without_content(op, fake) for fake in (first, second, *random)]
    return (*contents[:2], *lengths, *contents[2:])


@converter("aten::_scaled_dot_product_flash_attention")
@by_name
def flash_attention(op: Recorder, given: Arguments) -> tuple[Any, ...]:
    """_scaled_dot_product_flash_attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor rng_state, Tensor unused, Tensor debug_attn_mask)"""
    return (*attend(op, given), *_bookkeeping(op, given))


@converter("aten::_scaled_dot_product_flash_attention_backward")
@by_name
def flash_attention_backward(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_scaled_dot_product_flash_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, Tensor philox_seed, Tensor philox_offset, *, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"""
    return attend_backward(op, given, given.grad_out, None, given.logsumexp)[:3]


@converter("aten::_scaled_dot_product_cudnn_attention")
@by_name
def cudnn_attention(op: Recorder, given: Arguments) -> tuple[Any, ...]:
    """_scaled_dot_product_cudnn_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0.0, bool is_causal=False, bool return_debug_mask=False, *, float? scale=None) -> (Tensor output, Tensor logsumexp, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, Tensor philox_seed, Tensor philox_offset, Tensor debug_attn_mask)"""
    output, log_sum = attend(op, given, given.attn_bias)
    fake = op.result[1]
    if not given.compute_log_sumexp:
        log_sum = _without_content(op, fake)
    elif fake.dim() == 4:
        log_sum = op.Unsqueeze(log_sum, [-1])
    return (output, log_sum, *_bookkeeping(op, given))


@converter("aten::_scaled_dot_product_cudnn_attention_backward")
@by_name
def cudnn_attention_backward(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_scaled_dot_product_cudnn_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, Tensor attn_bias, Tensor cum_seq_q, Tensor cum_seq_k, SymInt max_q, SymInt max_k, float dropout_p, bool is_causal, *, float? scale=None) -> (Tensor, Tensor, Tensor)"""
    log_sum = given.logsumexp
    log_sum = op.Squeeze(log_sum, [-1]) if log_sum.rank == 4 else log_sum
    return attend_backward(op, given, given.grad_out, given.attn_bias, log_sum)[:3]


@converter("aten::_scaled_dot_product_efficient_attention")
@by_name
def efficient_attention(op: Recorder, given: Arguments) -> tuple[Any, ...]:
    """_scaled_dot_product_efficient_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_bias, bool compute_log_sumexp, float dropout_p=0.0, bool is_causal=False, *, float? scale=None) -> (Tensor output, Tensor log_sumexp, Tensor philox_seed, Tensor philox_offset)"""
    output, log_sum = attend(op, given, given.attn_bias)
    if given.compute_log_sumexp:
        log_sum = _pad(op, log_sum)
    else:
        log_sum = op.Slice(log_sum, [0], [0], [2])
    return (output, log_sum, *(_without_content(op, fake) for fake in op.result[2:]))


def _pad(op: Recorder, log_sum: Value) -> Value:
    length = op.size(log_sum, 2)
    missing = -length % _PADDED_TO
    if isinstance(missing, int) and not missing:
        return log_sum
    return op.Pad(log_sum, op.vector([0, 0, 0, 0, 0, missing]), 0.0)


@converter("aten::_scaled_dot_product_efficient_attention_backward")
@by_name
def efficient_attention_backward(op: Recorder, given: Arguments) -> tuple[Value | None, ...]:
    """_scaled_dot_product_efficient_attention_backward(Tensor grad_out_, Tensor query, Tensor key, Tensor value, Tensor attn_bias, Tensor out, Tensor logsumexp, Tensor philox_seed, Tensor philox_offset, float dropout_p, bool[4] grad_input_mask, bool is_causal=False, *, float? scale=None) -> (Tensor, Tensor, Tensor, Tensor)"""
    bias = given.attn_bias
    log_sum = op.Slice(given.logsumexp, [0], op.vector([op.size(given.query, 2)]), [2])
    *grads, grad_scores = attend_backward(op, given, given.grad_out_, bias, log_sum)
    if not given.grad_input_mask[3] or bias is None:
        return (*grads, None)
    return (*grads, op.CastLike(_sum_to(op, grad_scores, bias), bias))


def _sum_to(op: Recorder, x: Value, like: Value) -> Value:
    """Sum over the dimensions along which `like` was broadcast."""
    padded = (1,) * (x.rank - like.rank) + like.dims
    axes = [i for i, (d, p) in enumerate(zip(x.dims, padded, strict=True)) if p == 1 and d != 1]
    total = op.ReduceSum(x, axes, keepdims=1) if axes else x
    return op.Reshape(total, op.sizes(like)) if like.rank < x.rank else total
