"""Look-ups of rows in a table, alone or bag by bag as sums and means, and their backward.

The backward operators of bags receive offset2bag from the forward one, empty on the fast path of
torch's kernel: it is computed again from the offsets, which are always there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.aten import is_same_size
from dort_rewriter.export.converters.axes import refuse_negative, zeros
from dort_rewriter.export.converters.opmath import cast_like, returned, store, widen
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, arguments, by_name, converter
from dort_rewriter.graph.values import Value


@converter("aten::embedding")
@by_name
def embedding(op: Recorder, given: Arguments) -> Value:
    """embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"""
    return op.Gather(given.weight, refuse_negative(op, given.indices), axis=0)


@converter("aten::embedding_dense_backward")
@by_name
def embedding_dense_backward(op: Recorder, given: Arguments) -> Value:
    """embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor"""
    width = op.size(given.grad_output, given.grad_output.rank - 1)
    rows = op.Reshape(op.cast(given.indices, ir.DataType.INT64), op.vector([-1, 1]))
    grads = op.Reshape(given.grad_output, op.vector([-1, width]))
    if given.scale_grad_by_freq:
        counts = op.Gather(_count_rows(op, op.Squeeze(rows, [1]), given.num_weights), rows)
        grads = grads / op.cast(counts, op.dtype)
    if isinstance(given.padding_idx, ir.Value) or given.padding_idx >= 0:
        grads = op.Where(op.Equal(rows, given.padding_idx), op.constant(0.0, grads.dtype), grads)
    none = zeros(op, [given.num_weights, width], grads.dtype)
    return op.ScatterND(none, rows, grads, reduction="add")


def _count_rows(op: Recorder, indices: Value, num_weights: Any) -> Value:
    """How often each row is looked up by int64 indices of rank 1."""
    none = zeros(op, [num_weights], ir.DataType.INT64)
    ones = op.Expand(op.constant(1), op.Shape(indices))
    return op.ScatterElements(none, indices, ones, axis=0, reduction="add")


_MEAN, _MAX = 1, 2


def _is_linear(node: torch.fx.Node) -> bool:
    """mode='max': only sums and means are converted"""
    return bool(arguments(node.target, node.args, node.kwargs).mode != _MAX)


@dataclass(frozen=True)
class _Bags:
    """Where the indices go."""

    indices: Value
    """int64, of shape [N]."""
    bag: Value
    """The bag of each index, of shape [N]."""
    is_padding: Value | None
    """Of shape [N, 1]."""


def _open(op: Recorder, given: Arguments) -> _Bags:
    padding_idx = given.padding_idx
    indices, starts = (op.cast(v, ir.DataType.INT64) for v in (given.indices, given.offsets))
    count = op.sizes(indices)
    # A bag starts at each offset, several at the same when some are empty, the last at the end.
    positions = zeros(op, op.Add(count, 1), ir.DataType.INT64)
    ones = op.Expand(op.constant(1), op.Shape(starts))
    marks = op.ScatterElements(positions, starts, ones, axis=0, reduction="add")
    bag = op.Sub(op.Slice(op.CumSum(marks, op.constant(0)), [0], count, [0]), 1)
    bag = refuse_negative(op, bag)  # what is before the first offset is in none: torch raises
    is_padding = None
    if isinstance(padding_idx, ir.Value) or padding_idx >= 0:
        is_padding = op.Unsqueeze(op.Equal(indices, padding_idx), [1])
    return _Bags(indices, bag, is_padding)


def _without_padding(op: Recorder, rows: Value, bags: _Bags) -> Value:
    if bags.is_padding is None:
        return rows
    return op.Where(bags.is_padding, op.constant(0, rows.dtype), rows)


def _add_rows(op: Recorder, rows: Value, where: Value, count: Any) -> Value:
    """A table of `count` rows, each the sum of the rows that go there."""
    none = zeros(op, [count, op.size(rows, 1)], rows.dtype)
    return op.ScatterND(none, op.Unsqueeze(where, [1]), rows, reduction="add")


def _bag_sizes(op: Recorder, bags: _Bags, count: Any) -> Value:
    """How many indices each bag has, padding left out, of shape [bags]."""
    column = op.Unsqueeze(op.Expand(op.constant(1), op.Shape(bags.indices)), [1])
    sizes = _add_rows(op, _without_padding(op, column, bags), bags.bag, count)
    return op.Squeeze(sizes, [1])


def _weighed(op: Recorder, rows: Value, weights: Value | None) -> Value:
    return rows if weights is None else rows * op.Unsqueeze(widen(op, weights), [1])


@converter("aten::_embedding_bag", "aten::_embedding_bag_forward_only", when=_is_linear)
@by_name
def embedding_bag(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)"""
    bags = _open(op, given)
    count: Any = op.size(given.offsets, 0)
    if given.include_last_offset:
        count = count - 1
    rows = widen(op, op.Gather(given.weight, refuse_negative(op, bags.indices), axis=0))
    rows = _weighed(op, rows, given.per_sample_weights)
    output = _add_rows(op, _without_padding(op, rows, bags), bags.bag, count)
    # torch counts for means only, and returns the counts again in place of the largest indices.
    sizes = zeros(op, [count], ir.DataType.INT64)
    if given.mode == _MEAN:
        sizes = _bag_sizes(op, bags, count)
        output = output / op.Unsqueeze(cast_like(op, op.Max(sizes, 1), output), [1])
    counts = (_as_recorded(op, sizes, fake) for fake in op.result[2:])
    return returned(op, store(op, output), bags.bag, *counts)


def _as_recorded(op: Recorder, counts: Value, fake: torch.Tensor) -> Value:
    """Counts of bags; where no gradient is wanted torch may count the last offset as one more."""
    if is_same_size(fake.shape[0], op.result[0].shape[0]):
        return counts
    return op.Concat(counts, op.constant([0]), axis=0)


@converter("aten::_embedding_bag_backward", when=_is_linear)
@by_name
def embedding_bag_backward(op: Recorder, given: Arguments) -> Value:
    """_embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, Tensor offset2bag, Tensor bag_size, Tensor maximum_indices, SymInt num_weights, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, int padding_idx=-1) -> Tensor"""
    if given.scale_grad_by_freq:  # torch's CPU kernel divides by the frequency of another index
        raise Refused("scale_grad_by_freq")
    bags, grad = _open(op, given), widen(op, given.grad)
    if given.mode == _MEAN:
        sizes = op.Max(_bag_sizes(op, bags, op.size(grad, 0)), 1)
        grad = grad / op.Unsqueeze(cast_like(op, sizes, grad), [1])
    rows = _weighed(op, op.Gather(grad, bags.bag, axis=0), given.per_sample_weights)
    total = _add_rows(op, _without_padding(op, rows, bags), bags.indices, given.num_weights)
    return store(op, total)


@converter("aten::_embedding_bag_per_sample_weights_backward", when=_is_linear)
@by_name
def embedding_bag_per_sample_weights_backward(op: Recorder, given: Arguments) -> Value:
    """_embedding_bag_per_sample_weights_backward(Tensor grad, Tensor weight, Tensor indices, Tensor offsets, Tensor offset2bag, int mode, int padding_idx=-1) -> Tensor"""
    bags = _open(op, given)
    rows = widen(op, op.Gather(given.weight, bags.indices, axis=0))
    products = widen(op, op.Gather(given.grad, bags.bag, axis=0)) * rows
    return store(op, op.ReduceSum(_without_padding(op, products, bags), [1], keepdims=0))
