"""Sizes and strides that are symbols, some of which are counted at run time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dort_rewriter.aten.layouts import is_dense, overlaps, storage_order
from dort_rewriter.traced_sizes import COUNTED, hint_of, is_contiguous, is_same_size

Make = Callable[[torch.Tensor], torch.Tensor]


def traced() -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of 5 rows, any number in the next call, and its rows that a mask selects."""
    mode = FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True))
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
    x = mode.from_tensor(torch.randn(5, 6), symbolic_context=context)
    mask = mode.from_tensor(torch.ones(5, dtype=torch.bool))
    with mode:
        return x, x[mask.nonzero()[:, 0]]


@pytest.mark.parametrize(
    ("view", "contiguous", "order"),
    [
        (lambda y: y, True, None),
        (lambda y: y.t(), False, (1, 0)),
        (lambda y: y[:, None].permute(2, 1, 0), False, (1, 2, 0)),
        (lambda y: y.unsqueeze(1), True, None),
        (lambda y: y.unsqueeze(1).expand(-1, 2, -1), False, None),
        (lambda y: y[:, :5], False, None),
        (lambda y: y[:, :0], True, None),
        (lambda y: y.new_empty(3, y.shape[0], y.shape[0]), True, None),
        (lambda y: y.new_empty(3, y.shape[0]).t(), False, (1, 0)),
    ],
)
def test_layouts_of_counted_sizes(
    view: Make, contiguous: bool, order: tuple[int, ...] | None
) -> None:
    _, y = traced()
    shown = view(y)
    assert is_contiguous(shown) is contiguous
    assert storage_order(shown) == order
    assert is_dense(shown) is (contiguous or order is not None)
    assert overlaps(shown) is (0 in shown.stride())


def test_hints() -> None:
    x, y = traced()
    rows, count = x.shape[0], y.shape[0]
    assert [hint_of(n) for n in (7, rows, rows * 2, count)] == [7, 5, 10, COUNTED]
    assert hint_of(count * rows + 1, counted=3) == 16
    assert is_same_size(count * 2, count + count)
    assert not is_same_size(count, rows)
