"""Scaled dot product attention, in each form torch dispatches to, and its backward.

All forms share two functions: the forward pass returns the logarithm of the sum of exponentials,
from which the backward pass finds the probabilities again. The causal mask is aligned to the top
left corner. A row that masks everything gives zeros, and zero as its logsumexp, as torch's CPU
kernel does.

NOTE: float16 and bfloat16 are computed in float32, as torch's kernels accumulate: scores rounded
to half would be off by more than the tolerance of the type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.export.converters.axes import zeros
from dort_rewriter.export.converters.opmath import HALVES
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, arguments, by_name, converter
from dort_rewriter.graph import shapes
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import hides_all

_SWAP = [0, 1, 3, 2]


@dataclass(frozen=True)
class _Attention:
    """The inputs of one attention, ready to compute: float32 or wider, keys as many as queries."""

    query: Value
    """Scaled."""
    key: Value
    value: Value
    dtype: ir.DataType
    bias: tuple[Value, ...]
    """Added to the scores: 0 or -inf for a mask."""
    scale: float
    repeats: int | Value
    """Heads of queries that share a head of keys."""


def _prepare(op: Recorder, given: Arguments, mask: Value | None) -> _Attention:
    query = given.query
    dtype = ir.DataType.FLOAT if query.dtype in HALVES else query.dtype
    q, k, v = (op.cast(x, dtype) for x in (query, given.key, given.value))
    repeats = _repeats(op, q, k)
    bias = []
    if given.is_causal:
        lengths = op.vector([op.size(q, 2), op.size(k, 2)])
        low = ir.tensor([-math.inf], dtype=dtype)
        bias.append(op.Trilu(op.ConstantOfShape(lengths, value=low), 1, upper=1))
    if mask is not None:
        is_bool = mask.dtype is ir.DataType.BOOL
        zero = op.constant(0.0, dtype)
        bias.append(op.Where(mask, zero, -math.inf) if is_bool else op.cast(mask, dtype))
    factor = _scale(op, q, given.scale)
    return _Attention(
        query=op.Mul(q, factor),
        key=_repeat_heads(op, k, repeats),
        value=_repeat_heads(op, v, repeats),
        dtype=dtype,
        bias=tuple(bias),
        scale=factor,
        repeats=repeats,
    )


def _scale(op: Recorder, query: Value, scale: float | None) -> Any:
    if scale is not None:
        return scale
    size = op.size(query, 3)
    if isinstance(size, int):
        return 1.0 / math.sqrt(size) if size else 1.0
    return op.Reciprocal(op.Sqrt(op.cast(size, query.dtype or ir.DataType.FLOAT)))


def _repeats(op: Recorder, query: Value, key: Value) -> int | Value:
    heads, groups = query.dims[1], key.dims[1]
    if shapes.same(heads, groups):
        return 1
    if isinstance(heads, int) and isinstance(groups, int):
        return heads // groups
    return op.Div(op.sizes(query, [1]), op.sizes(key, [1]))


def _repeat_heads(op: Recorder, x: Value, repeats: int | Value) -> Value:
    if isinstance(repeats, int) and repeats == 1:
        return x
    batch, _, length, size = (op.size(x, axis) for axis in range(4))
    wide = op.Expand(op.Unsqueeze(x, [2]), op.vector([1, 1, repeats, 1, 1]))
    return op.Reshape(wide, op.vector([batch, -1, length, size]))


def _sum_heads(op: Recorder, x: Value, repeats: int | Value) -> Value:
    if isinstance(repeats, int) and repeats == 1:
        return x
    batch, _, length, size = (op.size(x, axis) for axis in range(4))
    split = op.vector([batch, -1, repeats, length, size])
    return op.ReduceSum(op.Reshape(x, split), [2], keepdims=0)


def _scores(op: Recorder, attention: _Attention) -> Value:
    scores = op.MatMul(attention.query, op.Transpose(attention.key, perm=_SWAP))
    for bias in attention.bias:
        scores = scores + bias
    return scores


def attend(op: Recorder, given: Arguments, mask: Value | None = None) -> tuple[Value, Value]:
    """The output, and the logsumexp of shape [batch, heads, queries]."""
    attention = _prepare(op, given, mask)
    scores = _scores(op, attention)
    probabilities = op.Softmax(scores, axis=-1)
    highest = op.ReduceMax(scores, [-1], keepdims=1)
    # The largest probability is exp(highest - logsumexp): cheaper than a sum of exponentials.
    log_sum = highest - op.Log(op.ReduceMax(probabilities, [-1], keepdims=1))
    if mask is not None:
        is_hidden = hides_all(op, scores)
        probabilities, log_sum = (op.Where(is_hidden, 0.0, x) for x in (probabilities, log_sum))
    output = op.MatMul(probabilities, attention.value)
    return op.CastLike(output, given.query), op.Squeeze(log_sum, [-1])


def _probabilities(op: Recorder, attention: _Attention, log_sum: Value, is_masked: bool) -> Value:
    scores = _scores(op, attention)
    if log_sum.dtype is not attention.dtype:  # seen with float64 inputs (torch 2.8)
        probabilities = op.Softmax(scores, axis=-1)
        return op.Where(hides_all(op, scores), 0.0, probabilities) if is_masked else probabilities
    if is_masked:  # a row that masks everything: another forward may say -inf or inf
        log_sum = op.Where(op.IsInf(log_sum), 0.0, log_sum)
    return op.Exp(scores - op.Unsqueeze(log_sum, [-1]))


def attend_backward(
    op: Recorder, given: Arguments, grad: Value, mask: Value | None, log_sum: Value
) -> tuple[Value, Value, Value, Value]:
    """The gradients of query, key, value, and of the scores."""
    attention = _prepare(op, given, mask)
    grad, output = (op.cast(x, attention.dtype) for x in (grad, given.out))
    probabilities = _probabilities(op, attention, log_sum, mask is not None)
    grad_p = op.MatMul(grad, op.Transpose(attention.value, perm=_SWAP))
    delta = op.ReduceSum(grad * output, [-1], keepdims=1)
    grad_scores = probabilities * (grad_p - delta)
    grad_query = op.MatMul(grad_scores, attention.key) * attention.scale
    grad_key = op.MatMul(op.Transpose(grad_scores, perm=_SWAP), attention.query)
    grad_value = op.MatMul(op.Transpose(probabilities, perm=_SWAP), grad)
    return (
        op.CastLike(grad_query, given.query),
        op.CastLike(_sum_heads(op, grad_key, attention.repeats), given.key),
        op.CastLike(_sum_heads(op, grad_value, attention.repeats), given.value),
        grad_scores,
    )


def has_four_axes(node: torch.fx.Node) -> bool:
    """its inputs have not batch, heads, positions and sizes, or it drops some"""
    given = arguments(node.target, node.args, node.kwargs)
    ranks = {x.meta["val"].ndim for x in (given.query, given.key, given.value)}
    return ranks == {4} and not given.dropout_p


@converter("aten::scaled_dot_product_attention", when=has_four_axes)
@by_name
def scaled_dot_product_attention(op: Recorder, given: Arguments) -> Value:
    """scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"""
    return attend(op, given, given.attn_mask)[0]


@converter("aten::_scaled_dot_product_flash_attention_for_cpu")
@by_name
def flash_attention_for_cpu(op: Recorder, given: Arguments) -> tuple[Value, Value]:
    """_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"""
    return attend(op, given, given.attn_mask)


@converter("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
@by_name
def flash_attention_for_cpu_backward(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"""
    return attend_backward(op, given, given.grad_out, given.attn_mask, given.logsumexp)[:3]


# -- CUDA ----------------------------------------------------------------------------------------

# Its kernels return more: the seed and offset of the random numbers (which an attention without
# dropout does not read), and lengths.

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
