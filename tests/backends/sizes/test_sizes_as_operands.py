"""Sizes, and numbers made of them, where an operator takes a tensor: as in eager mode.

Under dynamic shapes the operand is no tensor of the graph, but a number that it computes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.backends.ways import compile_strictly

Layout = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: dict[str, Layout] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t(),
    "every second column": lambda x: x[:, ::2],  # its sizes are computed
    "a number": lambda x: x.sum(),
}
NUMBERS: dict[str, Callable[[torch.Tensor], float]] = {
    "size": lambda x: x.shape[0],
    "quotient": lambda x: x.numel() / 8,
}


def results(x: torch.Tensor, number: float) -> list[torch.Tensor]:
    """A number on either side of what takes two tensors, and in between."""
    found = [
        *(number + x, number - x, number * x, number / x, number // x, number % x, number**x),
        *(x + number, x - number, x * number, x / number, x // number, x % number, x**number),
        *(x > number, number >= x, x == number, x.clamp(max=number), x.clamp_min(number)),
        *(torch.fmod(x, number), torch.rsub(x, number), torch.add(x, number, alpha=2)),
        *(torch.sub(x, 3.5, alpha=number), torch.add(x, x, alpha=number)),
        *(torch.where(x > 0, number, x), torch.where(x > 0, x, number)),
        *(torch.full_like(x, number), x.masked_fill(x > 0, number), torch.lerp(x, x + 1, number)),
        *(torch.addcmul(x, x, x, value=number), torch.xlogy(x, number), torch.xlogy(number, x)),
        *(torch.nn.functional.leaky_relu(x, number), torch.nn.functional.elu(x, number)),
        *(torch.hypot(x, torch.tensor(number)), torch.copysign(x, number)),
        *(torch.nan_to_num(x, number), torch.div(x, number, rounding_mode="trunc")),
    ]
    seen_twice = number + x.exp()
    return [*found, seen_twice, seen_twice.t()]


@pytest.mark.alternating
@pytest.mark.parametrize(
    ("number", "dtype"), [("size", torch.bfloat16), ("quotient", torch.float32)], ids=str
)
def test_beside_a_tensor(number: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        made = NUMBERS[number](x)
        return [r for layout in LAYOUTS.values() for r in results(layout(x), made)]

    compiled, _ = compile_strictly(program, dynamic=True)
    for size in (4, 7):
        x = torch.randn(size, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
        found, wanted = compiled(x), program(x)
        each = len(wanted) // len(LAYOUTS)
        for i, (got, expected) in enumerate(zip(found, wanted, strict=True)):
            where = f"result {i % each} of {list(LAYOUTS)[i // each]}"
            rtol = 1e-5 if dtype is torch.float32 else 1.6e-2  # of powers
            torch.testing.assert_close(
                got, expected, equal_nan=True, rtol=rtol, atol=1e-5, msg=f"{where} differs"
            )
