from __future__ import annotations

import math

import pytest
import torch


@pytest.mark.parametrize("right", [False, True])
def test_edges_that_end_with_nan(right: bool) -> None:
    def program(edges: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.searchsorted(edges, values, right=right)
        return found * 2, torch.bucketize(values, edges, right=right) + 1

    compiled = torch.compile(program, backend="onnxrt")
    for size in (2, 5, 64):  # the third runs with symbolic sizes
        edges = torch.cat([torch.randn(size).sort().values, torch.tensor([math.nan])])
        values = torch.cat([edges, torch.randn(20)])
        for ours, theirs in zip(compiled(edges, values), program(edges, values), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
