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
