"""Recurrent layers that programs of ``torch.export`` have whole, unrolled over time.

torchlib converts a plain LSTM or GRU to one node. What it has no converter for is decomposed: the
layers of an ``nn.RNN``, projections, float64 (which onnxruntime's LSTM has no kernel for). Dropout
between layers in training is an error: torchlib ignores it, and torch's decompositions do, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["layer_decompositions"]

aten = torch.ops.aten
Tensor = torch.Tensor


def layer_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of every layer that torch has one of."""
    known = torch._decomp.decomposition_table
    ops = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
    has_node = ops[:2]
    return {op: _unrolled(known[op], op in has_node) for op in ops if op in known}


def _unrolled(decompose: Callable[..., Any], has_node: bool) -> Callable[..., Any]:
    """Unroll layers, but for those that are a node of ONNX."""

    def decomposed(
        input: Tensor,
        hx: Tensor | Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        plain = num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
        if train and dropout > 0 and num_layers > 1:
            raise NotImplementedError(
                f"The dropout of {dropout} between the layers of recurrent modules in training is "
                "not exported: export it after eval(), or with dropout=0."
            )
        if has_node and len(params) == plain and input.dtype is not torch.float64:
            return NotImplemented
        settings = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
        out, *states = decompose(input, hx, params, *settings)
        # NOTE: the states of torch 2.8's LSTM have a dimension too many.
        return out, *(s.squeeze(1) if s.dim() > 3 else s for s in states)

    return decomposed
