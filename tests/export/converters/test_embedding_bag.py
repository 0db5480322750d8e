from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.export.dispatcher import Dispatcher
from tests.export.cases import Case, T, overload, table_test

SUM, MEAN, MAX = 0, 1, 2
INDICES = torch.tensor([1, 0, 2, 2, 5, 2])
OFFSETS = torch.tensor([0, 2, 2, 3])  # the second bag is empty
WITH_LAST = torch.tensor([0, 2, 2, 3, 6])
WEIGHTS = T(6)

FORWARD = "aten::_embedding_bag"
BACKWARD = "aten::_embedding_bag_backward"
SAMPLES_BACKWARD = "aten::_embedding_bag_per_sample_weights_backward"


def forward(
    mode: int,
    indices: torch.Tensor = INDICES,
    offsets: torch.Tensor = OFFSETS,
    weights: torch.Tensor | None = None,
    last: bool = False,
    padding: int = -1,
) -> tuple[object, ...]:
    return T(6, 4), indices, offsets, False, mode, False, weights, last, padding


def backward(
    mode: int, weights: torch.Tensor | None = None, padding: int = -1
) -> tuple[object, ...]:
    args = T(6, 4), INDICES, OFFSETS, False, mode, False, weights, False, padding
    _, offset2bag, bag_size, maximum = overload(FORWARD)(*args)
    saved = INDICES, OFFSETS, offset2bag, bag_size, maximum
    return T(4, 4), *saved, 6, False, mode, False, weights, padding


CASES = [
    Case(FORWARD, forward(MEAN)),
    Case(FORWARD, forward(SUM, weights=WEIGHTS)),
    Case(FORWARD, forward(SUM, padding=2)),
    Case(FORWARD, forward(MEAN, offsets=WITH_LAST, last=True, padding=2)),
    Case(FORWARD, forward(MEAN, INDICES.int(), OFFSETS.int())),
    Case("aten::_embedding_bag_forward_only", forward(MEAN)),
    Case(BACKWARD, backward(SUM)),
    Case(BACKWARD, backward(SUM, weights=WEIGHTS)),
    Case(BACKWARD, backward(MEAN)),
    Case(BACKWARD, backward(MEAN, padding=2)),
    Case(
        SAMPLES_BACKWARD,
        (T(4, 4), T(6, 4), INDICES, OFFSETS, torch.tensor([0, 0, 2, 3, 3, 3]), SUM, -1),
    ),
    Case(
        SAMPLES_BACKWARD,
        (T(4, 4), T(6, 4), INDICES, OFFSETS, torch.tensor([0, 0, 2, 3, 3, 3]), SUM, 2),
    ),
]


test_op = table_test(CASES)


def test_the_largest_of_a_bag_is_refused() -> None:
    function = overload(FORWARD)
    graph = make_fx(lambda w, i, o: function(w, i, o, False, MAX)[0], tracing_mode="fake")
    nodes = graph(T(6, 4), INDICES, OFFSETS).graph.nodes
    node = next(n for n in nodes if n.target is function)
    assert Dispatcher().refusal(node) == "mode='max': only sums and means are converted"
