"""Recurrent layers.

torch unrolls them over time before a graph gets here, except the LSTM that oneDNN runs in
inference (and in training when its input needs no gradient).
"""

from __future__ import annotations

import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.export.converters.axes import zeros
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.values import Value

_LSTM = 2
"""The number of the LSTM among the modes of torch's recurrent kernels."""


def _is_inference(node: torch.fx.Node) -> bool:
    """training: the backward pass reads a workspace that only oneDNN writes"""
    return node.args[-1] is False


def _reorder_gates(op: Recorder, x: Value) -> Value:
    """The gates in ONNX's order (i, o, f, c) from torch's (i, f, c, o)."""
    i, f, c, o = op.Split(x, num_outputs=4, axis=0)
    return op.Concat(i, o, f, c, axis=0)


@converter("aten::mkldnn_rnn_layer", when=_is_inference)
@by_name
def mkldnn_rnn_layer(op: Recorder, given: Arguments) -> tuple[Value, ...]:
    """mkldnn_rnn_layer(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx_, Tensor cx_, bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases, bool bidirectional, bool batch_first, bool train) -> (Tensor, Tensor, Tensor, Tensor)"""
    if (
        given.mode != _LSTM
        or given.batch_sizes
        or given.bidirectional
        or given.batch_first
        or given.num_layers != 1
    ):
        raise Refused("only one direction of one LSTM layer over whole sequences is converted")
    gates = [op.Unsqueeze(_reorder_gates(op, w), [0]) for w in (given.weight0, given.weight1)]
    bias = None
    if given.has_biases:
        both = [_reorder_gates(op, b) for b in (given.weight2, given.weight3)]
        bias = op.Unsqueeze(op.Concat(*both, axis=0), [0])
    states = [
        op.Reshape(s, op.vector([1, op.size(given.input, 1), given.hidden_size]))
        for s in (given.hx_, given.cx_)
    ]
    y, h, c = op.LSTM(
        given.input,
        *gates,
        bias,
        None,
        *states,
        hidden_size=given.hidden_size,
        direction="reverse" if given.reverse else "forward",
    )
    last = [op.Reshape(s, op.Shape(like)) for s, like in ((h, given.hx_), (c, given.cx_))]
    workspace = op.result[3]
    return op.Squeeze(y, [1]), *last, zeros(op, workspace.shape, to_onnx_type(workspace.dtype))
