"""Results without an element."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import torch

from dort_rewriter import to_onnx


class Skew(torch.nn.Module):
    """What onnxruntime 1.19 cannot build a session for, when matrices are empty."""

    def forward(self, a: torch.Tensor, d: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return (a.expand(d.shape) - a.expand(d.shape).transpose(0, 1)) / d * u


class OverNothing(torch.nn.Module):
    """Products that sum over an axis of size zero."""

    def forward(self, x: torch.Tensor) -> Any:
        rows, columns = x.permute(1, 2, 0), x.permute(1, 0, 2)
        found = x[None, None, :, 0]
        attended = torch.nn.functional.scaled_dot_product_attention(
            found.new_ones(1, 1, 2, 3), found, found
        )
        return (
            rows @ columns,
            rows @ columns[0],
            rows[0] @ columns,
            rows @ columns[0, :, 0],
            attended,
        )


class Parts(torch.nn.Module):
    """An operator with several results, all of them empty or one of them only."""

    def forward(self, x: torch.Tensor, size: int) -> Any:
        return torch.split(x.exp(), size)


def run(
    module: torch.nn.Module, args: tuple[Any, ...], **options: Any
) -> tuple[list[str], list[Any]]:
    model = to_onnx(module, args, **options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    tensors = [a.numpy() for a in args if isinstance(a, torch.Tensor)]
    feeds = {i.name: t for i, t in zip(session.get_inputs(), tensors, strict=False)}
    return [n.op_type for n in model.graph.node], session.run(None, feeds)


def test_an_empty_result_is_not_computed() -> None:
    ops, (got,) = run(Skew(), (torch.zeros(0, 1), torch.zeros(0, 0), torch.zeros(1, 0)))
    assert ops == ["Identity"]
    assert got.shape == (0, 0)
    assert got.dtype == np.float32


def test_results_are_all_empty_or_are_computed() -> None:
    ops, got = run(Parts(), (torch.zeros(4, 0), 3))
    assert "Split" not in ops
    assert "Exp" not in ops
    assert [g.shape for g in got] == [(3, 0), (1, 0)]
    ops, got = run(Parts(), (torch.zeros(3, 2), 3))
    assert "Exp" in ops
    assert [g.shape for g in got] == [(3, 2)]


def test_what_is_computed_from_nothing_has_a_value() -> None:
    ops, (got,) = run(torch.nn.Flatten(0), (torch.zeros(0, 3),))
    assert got.shape == (0,)

    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).sum(dim=0)

    ops, (got,) = run(Sum(), (torch.zeros(0, 3),))
    assert "Add" not in ops
    np.testing.assert_array_equal(got, np.zeros(3, np.float32))


def test_a_product_over_nothing_is_no_product() -> None:
    """onnxruntime leaves the memory of some as it was."""
    x = torch.zeros(0, 4, 3)
    ops, got = run(OverNothing(), (x,), dynamic_shapes=({1: torch.export.Dim("n")},))
    assert not {"MatMul", "Gemm"} & set(ops)
    for result, expected in zip(got, OverNothing()(x), strict=True):
        np.testing.assert_array_equal(result, expected.numpy())
