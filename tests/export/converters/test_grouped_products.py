"""Products of groups: against the loop over groups that they stand for."""

from __future__ import annotations

import pytest
import torch

from tests.export.cases import overload, run

OTHERS = {"aten::_grouped_mm"}

ENDS = torch.tensor([3, 3, 8], dtype=torch.int32)
ROWS = (torch.randn(10, 16), torch.randn(3, 16, 8))
COLUMNS = (torch.randn(3, 8, 16), torch.randn(16, 10))
SUMS = (torch.randn(16, 10), torch.randn(10, 8))


def expected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    ends = ENDS.tolist()
    ranges = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
    if x.dim() == 2 and y.dim() == 3:
        parts = [x[r] @ y[i] for i, r in enumerate(ranges)]
        return torch.cat([*parts, torch.zeros(2, 8)])
    if x.dim() == 3:
        parts = [x[i] @ y[:, r] for i, r in enumerate(ranges)]
        return torch.cat([*parts, torch.zeros(8, 2)], dim=1)
    return torch.stack([x[:, r] @ y[r] for r in ranges])


def grouped(*operands: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Run the operator in a graph by hand: torch's own kernel takes few types and sizes."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(operands))]
    product = graph.call_function(overload("aten::_grouped_mm"), tuple(nodes))
    graph.output((product,))
    for node, value in zip([*nodes, product], [*operands, want], strict=True):
        node.meta["val"] = value
    (got,) = run(torch.fx.GraphModule(torch.nn.Module(), graph), list(operands), 18)
    return got


@pytest.mark.parametrize("operands", [ROWS, COLUMNS, SUMS], ids=["rows", "columns", "sums"])
def test_groups(operands: tuple[torch.Tensor, torch.Tensor]) -> None:
    want = expected(*operands)
    torch.testing.assert_close(grouped(*operands, ENDS, want=want), want)


def test_without_groups_it_is_a_product_of_batches() -> None:
    x, y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.testing.assert_close(grouped(x, y, want=x @ y), x @ y)
