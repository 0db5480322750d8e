"""The signs of gradients that are zero: -0.0 comes in, which torch adds to zeros or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from tests.backends.ways import compile_strictly

Tensor = torch.Tensor


def image(x: Tensor) -> Tensor:
    return x[None, None]


def volume(x: Tensor) -> Tensor:
    return x.repeat(2, 1, 1)[None, None]


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "avg_pool1d": lambda x: F.avg_pool1d(x, 2),
    "avg_pool1d that overlaps": lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool2d": lambda x: F.avg_pool2d(image(x), 2),
    "avg_pool3d": lambda x: F.avg_pool3d(volume(x), (1, 2, 2), (1, 1, 2)),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(image(x), 2),
    "max_pool1d": lambda x: F.max_pool1d(x, 2),
    "max_pool2d that overlaps": lambda x: F.max_pool2d(image(x), 2, 1),
    "nearest": lambda x: F.interpolate(image(x), scale_factor=2),
    "nearest of one axis": lambda x: F.interpolate(x[None], size=5),
    "nearest of three axes": lambda x: F.interpolate(volume(x), size=(4, 8, 6)),
    "bilinear": lambda x: F.interpolate(image(x), size=(6, 5), mode="bilinear"),
    "reflect": lambda x: F.pad(x[None], (1, 2), mode="reflect"),
    "reflect of two axes": lambda x: F.pad(image(x), (1, 0, 2, 1), mode="reflect"),
    "replicate": lambda x: F.pad(x[None], (1, 2), mode="replicate"),
    "softmax": lambda x: F.softmax(x, -1),
    "softmax of many": lambda x: F.softmax(x.repeat(1, 20), -1),
    "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "layer_norm with weights": lambda x: F.layer_norm(x, (3,), x.new_ones(3), x.new_ones(3)),
    "group_norm": lambda x: F.group_norm(x[None], 2),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "cumsum": lambda x: x.cumsum(0),
    "gather": lambda x: x.gather(0, torch.zeros(4, 3, dtype=torch.int64)),
    "index_select": lambda x: x.index_select(0, torch.tensor([0, 1, 1])),
    "unfold": lambda x: x.unfold(0, 2, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_signs_of_gradients_that_are_zero(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = torch.randn(4, 3, dtype=dtype)

    def program(*arguments: Tensor) -> list[Tensor]:
        return [f(x) for f, x in zip(PROGRAMS.values(), arguments, strict=True)]

    torch._dynamo.reset()
    compiled, _ = compile_strictly(program, fallback=True)
    signs = []
    for run in (compiled, program):
        leaves = [given.clone().requires_grad_() for _ in PROGRAMS]
        results = run(*leaves)
        seeds = [torch.full_like(r, -0.0) for r in results]
        found = torch.autograd.grad(results, leaves, seeds)
        assert not any(g.any() for g in found)
        signs.append([g.signbit().tolist() for g in found])
    wrong = [n for n, ours, eager in zip(PROGRAMS, *signs, strict=True) if ours != eager]
    assert not wrong


def test_a_number_without_dimensions_and_its_norm_along_one() -> None:
    """torch takes its powers there, which may be zero; of what has one element it takes none."""
    orders = (1, 2, 3, 2.5, 0, float("inf"))

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        found = [torch.linalg.vector_norm(x, n, 0) for n in orders]
        found += [torch.linalg.vector_norm(x, n) for n in orders]
        return found + [torch.linalg.vector_norm(y, n, 0) for n in orders]

    torch._dynamo.reset()
    compiled, _ = compile_strictly(program, fallback=True)
    given = torch.tensor(1e-30), torch.full((1,), 3e-30)
    torch.testing.assert_close(compiled(*given), program(*given), rtol=1e-5, atol=0)
