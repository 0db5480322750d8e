"""Look-ups of rows, alone and bag by bag."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.export.dispatcher import Dispatcher
from tests.export.cases import Case, T, overload, table_test

INDICES = torch.tensor([[1, 0, 2], [2, 2, 5]])

EMBEDDING = [
    Case("aten::embedding", (T(6, 4), INDICES)),
    Case("aten::embedding", (T(6, 4), INDICES.to(torch.int32), 2, True)),
    Case("aten::embedding", (T(6, 4, dtype=torch.float64), torch.tensor(3))),
    Case("aten::embedding", (T(6, 4), torch.zeros(0, dtype=torch.int64)), dynamic=False),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES, 6, -1, False)),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES, 6, 2, False)),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES, 6, -1, True)),
    Case("aten::embedding_dense_backward", (T(2, 3, 4), INDICES.int(), 7, 0, True)),
    Case("aten::embedding_dense_backward", (T(4), torch.tensor(3), 5, -1, False)),
    Case(
        "aten::embedding_dense_backward",
        (T(0, 4), torch.zeros(0, dtype=torch.int64), 5, -1, False),
        dynamic=False,
    ),
]


SUM, MEAN, MAX = 0, 1, 2
IN_BAGS = torch.tensor([1, 0, 2, 2, 5, 2])
OFFSETS = torch.tensor([0, 2, 2, 3])  # the second bag is empty
WITH_LAST = torch.tensor([0, 2, 2, 3, 6])
WEIGHTS = T(6)

FORWARD = "aten::_embedding_bag"
BACKWARD = "aten::_embedding_bag_backward"
SAMPLES_BACKWARD = "aten::_embedding_bag_per_sample_weights_backward"


def forward(
    mode: int,
    indices: torch.Tensor = IN_BAGS,
    offsets: torch.Tensor = OFFSETS,
    weights: torch.Tensor | None = None,
    last: bool = False,
    padding: int = -1,
) -> tuple[object, ...]:
    return T(6, 4), indices, offsets, False, mode, False, weights, last, padding


def backward(
    mode: int, weights: torch.Tensor | None = None, padding: int = -1
) -> tuple[object, ...]:
    args = T(6, 4), IN_BAGS, OFFSETS, False, mode, False, weights, False, padding
    _, offset2bag, bag_size, maximum = overload(FORWARD)(*args)
    saved = IN_BAGS, OFFSETS, offset2bag, bag_size, maximum
    return T(4, 4), *saved, 6, False, mode, False, weights, padding


EMBEDDING_BAG = [
    Case(FORWARD, forward(MEAN)),
    Case(FORWARD, forward(SUM, weights=WEIGHTS)),
    Case(FORWARD, forward(SUM, padding=2)),
    Case(FORWARD, forward(MEAN, offsets=WITH_LAST, last=True, padding=2)),
    Case(FORWARD, forward(MEAN, IN_BAGS.int(), OFFSETS.int())),
    Case("aten::_embedding_bag_forward_only", forward(MEAN)),
    Case(BACKWARD, backward(SUM)),
    Case(BACKWARD, backward(SUM, weights=WEIGHTS)),
    Case(BACKWARD, backward(MEAN)),
    Case(BACKWARD, backward(MEAN, padding=2)),
    Case(
        SAMPLES_BACKWARD,
        (T(4, 4), T(6, 4), IN_BAGS, OFFSETS, torch.tensor([0, 0, 2, 3, 3, 3]), SUM, -1),
    ),
    Case(
        SAMPLES_BACKWARD,
        (T(4, 4), T(6, 4), IN_BAGS, OFFSETS, torch.tensor([0, 0, 2, 3, 3, 3]), SUM, 2),
    ),
]

CASES = [*EMBEDDING, *EMBEDDING_BAG]

test_op = table_test(CASES)


def test_the_largest_of_a_bag_is_refused() -> None:
    function = overload(FORWARD)
    graph = make_fx(lambda w, i, o: function(w, i, o, False, MAX)[0], tracing_mode="fake")
    nodes = graph(T(6, 4), IN_BAGS, OFFSETS).graph.nodes
    node = next(n for n in nodes if n.target is function)
    assert Dispatcher().refusal(node) == "mode='max': only sums and means are converted"
