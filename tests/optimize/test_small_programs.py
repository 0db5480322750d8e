"""Small programs that rules once turned into invalid models: eager is the judge, and nothing is
left to torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.options import OrtBackendOptions

Program = Callable[..., torch.Tensor]


def _stacked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.stack([a[0] + 1, a[1]]), torch.stack([b[0], b[1] + 3])], 1)


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))


def _masked(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    mask = x > 0
    for i in range(18):
        mask = (mask & (a > i)) | (mask & (b < i))
    return torch.where(mask, x, -x)


def _many(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    mask = a > 0
    for i in range(30):
        mask = mask & (x < i)
    return torch.where(mask, x, a)


PROGRAMS: dict[str, tuple[Program, list[tuple[int, ...]]]] = {
    "row": (lambda x: (x * 2)[0].exp(), [(5, 4)]),
    "column": (lambda x: (x * 2)[:, 1].exp(), [(5, 4)]),
    "product of vectors": (lambda a, b: a.exp() @ b, [(5,), (5,)]),
    "matrix and vector": (lambda a, b: (a.exp() @ b).sigmoid(), [(3, 5), (5,)]),
    "stacked rows": (_stacked, [(2, 3), (2, 3)]),
    "stacked matrices": (_stacked, [(2, 3, 4), (2, 3, 4)]),
    "numbers": (lambda a, b: (a[0] * b[1]).exp()[None] + a, [(3,), (3,)]),
    "mask alone": (lambda x: x + (-torch.eye(4, dtype=x.dtype))[:, :, None, None], [(4, 4, 3, 2)]),
    "RMS norm": (_rms, [(3, 4), (4,)]),
    "layer norm": (lambda x, w: torch.nn.functional.layer_norm(x, (4,), w), [(3, 4), (4,)]),
    "shared masks": (_masked, [(5,), (5,), (5,)]),
    "many comparisons": (_many, [(5,), (5,)]),
}


@pytest.mark.parametrize(
    ("dtype", "is_training"),
    [(torch.float32, True), (torch.float64, True), (torch.float32, False)],
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str, dtype: torch.dtype, is_training: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    program, shapes = PROGRAMS[name]
    backend = OrtBackend(OrtBackendOptions(fallback=False))
    given = [torch.randn(shape, dtype=dtype) for shape in shapes]
    results = []
    for function in (torch.compile(program, backend=backend, fullgraph=True), program):
        args = [x.clone().requires_grad_(is_training) for x in given]
        result = function(*args)
        if is_training:
            torch.sin(result).sum().backward()
        results.append((result.detach(), [x.grad for x in args]))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


def test_regions_that_follow_each_other() -> None:
    """A node that was moved stood behind those that read it, for the next region."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        column = (x[0] * 2)[:, None]
        return column - column, column.reshape(-1) + 1

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend(OrtBackendOptions(fallback=False)))
    x = torch.ones(4, 1, requires_grad=True)
    difference, row = compiled(x)
    (difference.sum() + row.sum()).backward()
    assert (difference, row) == (torch.zeros(1, 1), torch.full((1,), 3.0))
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [2, 0, 0, 0]


def test_pooled_columns_of_bfloat16() -> None:
    """What is cast and transposed has no known shape."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: torch.nn.functional.max_pool1d(x.mT, 2),
        backend=OrtBackend(OrtBackendOptions(fallback=False)),
    )
    x = torch.arange(32.0).reshape(2, 4, 4).bfloat16()
    assert torch.equal(compiled(x), torch.nn.functional.max_pool1d(x.mT, 2))
