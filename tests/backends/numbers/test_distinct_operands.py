"""Products of a transposed tensor with itself: onnxruntime 1.19 loses the transposition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.backends.ways import compile_strictly

MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "part": lambda x: x.mT[1:],
    "cast": lambda x: x.mT.float(),
    "cast part": lambda x: x.mT[1:].float(),
    "joined": lambda x: torch.cat([x.mT, x.mT]),
    "absolute": lambda x: x.mT.abs(),
}
READ: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "alone": lambda v: (v @ v,),
    "turned": lambda v: (v.mT @ v, v.exp()),
    "scaled": lambda v: (v @ (v * 2), v.flip(0)),
    "twice": lambda v: (v.mT @ v, v @ v, v.tril()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("read", READ.values(), ids=READ)
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_product_with_itself(
    made: Callable[[torch.Tensor], torch.Tensor],
    read: Callable[[torch.Tensor], tuple[torch.Tensor, ...]],
    dtype: torch.dtype,
) -> None:
    x = torch.rand(2, 4, 4).to(dtype)
    compiled, _ = compile_strictly(lambda x: read(made(x)))
    torch.testing.assert_close(compiled(x), read(made(x)))


def test_a_part_that_is_written_to_afterwards() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        part = x.mT[1:]
        product = part.mT @ part
        part.masked_fill_(part > 0.5, 0.5)
        return product

    compiled, _ = compile_strictly(function)
    x = torch.rand(2, 3, 4)
    y = x.clone()
    torch.testing.assert_close(compiled(x), function(y))
    torch.testing.assert_close(x, y)
