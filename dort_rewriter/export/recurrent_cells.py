"""Cells of recurrent layers: what torch calls for a step of an LSTM or a GRU on CUDA.

A cell is one kernel there, forward and backward; on the CPU it is made of others. A workspace goes
from forward to backward, which is laid out as the kernel does it: the gates, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["cell_decompositions"]

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
