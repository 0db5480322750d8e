"""The sizes of an argument that lies in memory in another order, and is not read otherwise."""

from __future__ import annotations

import torch

from tests.backends.ways import compile_strictly


def test_sizes_alone() -> None:
    compiled, _ = compile_strictly(
        lambda x, y: y * x.shape[0] - x.shape[1] + x.shape[2], dynamic=True
    )
    for a, b, c in ((2, 3, 4), (5, 6, 7)):
        x, y = torch.randn(a, c, b).transpose(1, 2), torch.randn(4)
        torch.testing.assert_close(compiled(x, y), y * a - b + c)


def test_sizes_of_what_torch_made() -> None:
    """A block of a graph gets it, and no number with its size."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.unsqueeze(-1)
        y.relu_()
        found = y.any()
        turned.transpose(0, -1)[0] = 1
        return turned, found

    compiled, _ = compile_strictly(program, dynamic=True)
    for n in (4, 6):
        x = torch.arange(6 * n, dtype=torch.uint8).view(2, 3, n).transpose(1, 2)
        y = torch.rand(n, 0, dtype=torch.float64)
        expected = program(x.clone(), y.clone())
        torch.testing.assert_close(compiled(x, y), expected)
