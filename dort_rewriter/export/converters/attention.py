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

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.graph import shapes
from dort_rewriter.graph.hidden_rows import hides_all
from dort_rewriter.graph.values import Value

_SWAP = [0, 1, 3, 2]
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


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


def _prepare(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    is_causal: bool,
    scale: float | None,
) -> _Attention:
    dtype = ir.DataType.FLOAT if query.dtype in _HALVES else query.dtype
    assert dtype is not None
    q, k, v = (op.cast(x, dtype) for x in (query, key, value))
    repeats = _repeats(op, q, k)
    bias = []
    if is_causal:
        lengths = op.vector([op.size(q, 2), op.size(k, 2)])
        low = ir.tensor([-math.inf], dtype=dtype)
        bias.append(op.Trilu(op.ConstantOfShape(lengths, value=low), 1, upper=1))
    if mask is not None:
        is_bool = mask.dtype is ir.DataType.BOOL
        zero = op.constant(0.0, dtype)
        bias.append(op.Where(mask, zero, -math.inf) if is_bool else op.cast(mask, dtype))
    factor = _scale(op, q, scale)
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


def attend(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Value, Value]:
    """The output, and the logsumexp of shape [batch, heads, queries]."""
    attention = _prepare(op, query, key, value, mask, is_causal, scale)
    scores = _scores(op, attention)
    probabilities = op.Softmax(scores, axis=-1)
    highest = op.ReduceMax(scores, [-1], keepdims=1)
    # The largest probability is exp(highest - logsumexp): cheaper than a sum of exponentials.
    log_sum = highest - op.Log(op.ReduceMax(probabilities, [-1], keepdims=1))
    if mask is not None:
        is_hidden = hides_all(op, scores)
        probabilities, log_sum = (op.Where(is_hidden, 0.0, x) for x in (probabilities, log_sum))
    output = op.MatMul(probabilities, attention.value)
    return op.CastLike(output, query), op.Squeeze(log_sum, [-1])


def _probabilities(op: Recorder, attention: _Attention, log_sum: Value, is_masked: bool) -> Value:
    scores = _scores(op, attention)
    if log_sum.dtype is not attention.dtype:  # seen with float64 inputs (torch 2.8)
        probabilities = op.Softmax(scores, axis=-1)
        return op.Where(hides_all(op, scores), 0.0, probabilities) if is_masked else probabilities
    if is_masked:  # a row that masks everything: another forward may say -inf or inf
        log_sum = op.Where(op.IsInf(log_sum), 0.0, log_sum)
    return op.Exp(scores - op.Unsqueeze(log_sum, [-1]))


def attend_backward(
    op: Recorder,
    grad: Value,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    output: Value,
    log_sum: Value,
    is_causal: bool,
    scale: float | None,
) -> tuple[Value, Value, Value, Value]:
    """The gradients of query, key, value, and of the scores."""
    attention = _prepare(op, query, key, value, mask, is_causal, scale)
    grad, output = (op.cast(x, attention.dtype) for x in (grad, output))
    probabilities = _probabilities(op, attention, log_sum, mask is not None)
    grad_p = op.MatMul(grad, op.Transpose(attention.value, perm=_SWAP))
    delta = op.ReduceSum(grad * output, [-1], keepdims=1)
    grad_scores = probabilities * (grad_p - delta)
    grad_query = op.MatMul(grad_scores, attention.key) * attention.scale
    grad_key = op.MatMul(op.Transpose(grad_scores, perm=_SWAP), attention.query)
    grad_value = op.MatMul(op.Transpose(probabilities, perm=_SWAP), grad)
    return (
        op.CastLike(grad_query, query),
        op.CastLike(_sum_heads(op, grad_key, attention.repeats), key),
        op.CastLike(_sum_heads(op, grad_value, attention.repeats), value),
        grad_scores,
    )


def has_four_axes(node: torch.fx.Node) -> bool:
    """its inputs have not batch, heads, positions and sizes, or it drops some"""
    inputs = [a.meta["val"] for a in node.args[:3] if isinstance(a, torch.fx.Node)]
    dropped = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0.0)
    return all(x.ndim == 4 for x in inputs) and not dropped


@converter("aten::scaled_dot_product_attention", when=has_four_axes)
def scaled_dot_product_attention(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"""
    return attend(op, query, key, value, attn_mask, is_causal, scale)[0]


@converter("aten::_scaled_dot_product_flash_attention_for_cpu")
def flash_attention_for_cpu(
    op: Recorder,
    query: Value,
    key: Value,
    value: Value,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, Value]:
    """_scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor output, Tensor logsumexp)"""
    return attend(op, query, key, value, attn_mask, is_causal, scale)


@converter("aten::_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_for_cpu_backward(
    op: Recorder,
    grad_out: Value,
    query: Value,
    key: Value,
    value: Value,
    out: Value,
    logsumexp: Value,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Value | None = None,
    scale: float | None = None,
) -> tuple[Value, ...]:
    """_scaled_dot_product_flash_attention_for_cpu_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)"""
    mask = attn_mask
    return attend_backward(
        op, grad_out, query, key, value, mask, out, logsumexp, is_causal, scale
    )[:3]
