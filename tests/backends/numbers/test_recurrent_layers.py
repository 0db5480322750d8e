"""Recurrent layers in files: one node where ONNX has it, unrolled over time otherwise."""

from __future__ import annotations

import onnxruntime
import pytest
import torch
from torch import nn

from dort_rewriter import to_onnx
from dort_rewriter.errors import CaptureError

pytestmark = [
    pytest.mark.filterwarnings("ignore:The tensor attributes self.layer._flat_weights"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN"),
]

LAYERS: dict[str, tuple[nn.RNNBase, bool]] = {
    "lstm": (nn.LSTM(4, 6, 2, bidirectional=True), True),
    "gru": (nn.GRU(4, 6, batch_first=True), True),
    "tanh": (nn.RNN(4, 6, 2, bidirectional=True, batch_first=True), False),
    "relu": (nn.RNN(4, 6, nonlinearity="relu", bias=False), False),
    "projections": (nn.LSTM(4, 6, 2, proj_size=3, bidirectional=True), False),
    "projections, no bias": (nn.LSTM(4, 6, proj_size=3, bias=False, batch_first=True), False),
    "lstm of float64": (nn.LSTM(4, 6, 2).double(), False),
    "gru of float64": (nn.GRU(4, 6, bidirectional=True).double(), False),
}


class Flat(nn.Module):
    """The results of a layer in a row."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, states = self.layer(x)
        return (out, *states) if isinstance(states, tuple) else (out, states)


@pytest.mark.parametrize("shape", [(3, 5, 4), (3, 4)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_exported(name: str, shape: tuple[int, ...]) -> None:
    layer, is_node = LAYERS[name]
    x = torch.randn(shape, dtype=next(layer.parameters()).dtype)
    model = to_onnx(Flat(layer).eval(), (x,))
    assert any(n.op_type in ("LSTM", "GRU") for n in model.graph.node) is is_node
    session = onnxruntime.InferenceSession(model.SerializeToString())
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    with torch.no_grad():
        expected = layer(x)[0], *Flat(layer)(x)[1:]
    torch.testing.assert_close([*map(torch.from_numpy, got)], [*expected], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_dropout_between_layers_is_refused_in_training(kind: type[nn.RNNBase]) -> None:
    """It was left out: neither a node of ONNX nor torch's decomposition drops anything."""
    layer = kind(4, 6, 2, dropout=0.5)
    with pytest.raises(CaptureError, match="between the layers of recurrent modules"):
        to_onnx(Flat(layer).train(), (torch.randn(3, 5, 4),))
    to_onnx(Flat(layer).eval(), (torch.randn(3, 5, 4),))
