"""Recurrent layers and their cells, as torch has them whole.

Programs of ``torch.export`` have layers whole, which are unrolled over time. torchlib converts a
plain LSTM or GRU to one node. What it has no converter for is decomposed: the layers of an
``nn.RNN``, projections, float64 (which onnxruntime's LSTM has no kernel for). Dropout between
layers in training is an error: torchlib ignores it, and torch's decompositions do, too.

Cells are what torch calls for a step of an LSTM or a GRU on CUDA. A cell is one kernel there,
forward and backward; on the CPU it is made of others. A workspace goes from forward to backward,
which is laid out as the kernel does it: the gates, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dort_rewriter.export.registry import arguments

aten = torch.ops.aten
Tensor = torch.Tensor


def cell_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of the four operators."""
    return {
        aten._thnn_fused_lstm_cell.default: _lstm,
        aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
        aten._thnn_fused_gru_cell.default: _gru,
        aten._thnn_fused_gru_cell_backward.default: _gru_backward,
    }


def _lstm(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The new state, the new cell, and the four gates."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def _lstm_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of the gates, of the cell, and of a bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    bent = cy.tanh()
    of_state = torch.zeros_like(cy) if grad_hy is None else grad_hy
    of_cell = of_state * o * (1 - bent * bent)
    if grad_cy is not None:
        of_cell = of_cell + grad_cy
    gates = torch.cat(
        [
            of_cell * g * (1 - i) * i,
            of_cell * cx * (1 - f) * f,
            of_cell * i * (1 - g * g),
            of_state * bent * (1 - o) * o,
        ],
        1,
    )
    return gates, of_cell * f, _of_bias(gates, has_bias)


def _gru(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The new state, and what the backward reads: gates, the old state, the hidden part."""
    reset_x, update_x, new_x = _biased(input_gates, input_bias).chunk(3, 1)
    reset_h, update_h, new_h = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    reset, update = (reset_x + reset_h).sigmoid(), (update_x + update_h).sigmoid()
    new = (new_x + reset * new_h).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, new_h], 1)


def _gru_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of both gates, of the state, and of both biases."""
    reset, update, new, hx, new_h = workspace.chunk(5, 1)
    of_update = grad_hy * (hx - new) * (1 - update) * update
    of_new = grad_hy * (1 - update) * (1 - new * new)
    of_reset = of_new * new_h * (1 - reset) * reset
    inputs = torch.cat([of_reset, of_update, of_new], 1)
    hidden = torch.cat([of_reset, of_update, of_new * reset], 1)
    biases = _of_bias(inputs, has_bias), _of_bias(hidden, has_bias)
    return inputs, hidden, grad_hy * update, *biases


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _of_bias(gates: Tensor, has_bias: bool) -> Tensor | None:
    return gates.sum(0) if has_bias else None


def layer_decompositions() -> dict[Any, Callable[..., Any]]:
    """A decomposition of every layer that torch has one of."""
    known = torch._decomp.decomposition_table
    ops = (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
    has_node = ops[:2]
    return {op: _unrolled(op, known[op], op in has_node) for op in ops if op in known}


def _unrolled(op: Any, decompose: Callable[..., Any], has_node: bool) -> Callable[..., Any]:
    """Unroll layers, but for those that are a node of ONNX."""

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        given = arguments(op, args, kwargs)
        weights = (4 if given.has_biases else 2) * (2 if given.bidirectional else 1)
        if given.train and given.dropout > 0 and given.num_layers > 1:
            raise NotImplementedError(
                f"The dropout of {given.dropout} between the layers of recurrent modules in "
                "training is not exported: export it after eval(), or with dropout=0."
            )
        is_plain = len(given.params) == given.num_layers * weights
        if has_node and is_plain and given.input.dtype is not torch.float64:
            return NotImplemented
        out, *states = decompose(*args, **kwargs)
        # NOTE: the states of torch 2.8's LSTM have a dimension too many.
        return out, *(s.squeeze(1) if s.dim() > 3 else s for s in states)

    return decomposed
