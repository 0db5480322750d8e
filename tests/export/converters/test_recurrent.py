from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.export.dispatcher import Dispatcher
from tests.export.cases import Case, T, overload, table_test

LAYER = "aten::mkldnn_rnn_layer"


def lstm(reverse: bool = False, biases: bool = True, train: bool = False) -> tuple[object, ...]:
    bias = (T(20), T(20) + 1) if biases else (torch.zeros(20), torch.zeros(20))
    tensors = T(4, 3, 6), T(20, 6), T(20, 5), *bias, T(1, 3, 5), T(1, 3, 5) + 1
    return *tensors, reverse, [], 2, 5, 1, biases, False, False, train


RESULTS: dict[str, Any] = {"outputs": (0, 1, 2), "reason": "the workspace is oneDNN's own"}

CASES = [
    Case(LAYER, lstm(), **RESULTS),
    Case(LAYER, lstm(reverse=True), **RESULTS),
    Case(LAYER, lstm(biases=False), **RESULTS),
]


test_op = table_test(CASES)


def test_training_is_refused() -> None:
    *tensors, _ = lstm()[:8]
    rest = lstm(train=True)[7:]
    graph = make_fx(lambda *t: overload(LAYER)(*t, *rest), tracing_mode="fake")(*tensors).graph
    node = next(n for n in graph.nodes if n.target is overload(LAYER))
    refusal = Dispatcher().refusal(node)
    assert refusal is not None
    assert refusal.startswith("training")
