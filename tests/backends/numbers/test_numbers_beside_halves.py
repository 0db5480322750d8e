"""Numbers beside 16-bit tensors: where torch rounds them to 16 bits, and where it does not.

It multiplies and divides by a number as it is, and rounds every other one first. A Python number,
one known at run time, and a tensor of rank 0 are the same to it. Every bit is compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.backends.ways import compile_strictly

Program = Callable[[torch.Tensor, Any], torch.Tensor]

BOTH: dict[str, Program] = {
    "x * m": lambda x, m: x * m,
    "m * x": lambda x, m: m * x,
    "x / m": lambda x, m: x / m,
    "m / x": lambda x, m: m / x,
    "x + m": lambda x, m: x + m,
    "m - x": lambda x, m: m - x,
    "rsub": lambda x, m: torch.rsub(x, m),
    "x // m": lambda x, m: x // m,
    "m // x": lambda x, m: m // x,
    "x % m": lambda x, m: x % m,
    "m % x": lambda x, m: torch.remainder(m, x),
    "fmod": lambda x, m: torch.fmod(x, m),
    "xlogy": lambda x, m: torch.xlogy(x, m),
    "m log x": lambda x, m: torch.xlogy(m, x),
    "xlog1py": lambda x, m: torch.special.xlog1py(x, m),
    "trunc(x / m)": lambda x, m: torch.div(x, m, rounding_mode="trunc"),
    "floor(x / m)": lambda x, m: torch.div(x, m, rounding_mode="floor"),
    "where": lambda x, m: torch.where(x > 0, x, m),
    "x < m": lambda x, m: x < m,
    "x == m": lambda x, m: x == m,
    "clamp": lambda x, m: x.clamp(min=m),
    "in place": lambda x, m: x.clone().mul_(m).div_(m),
    "of rank 0": lambda x, m: (x[0] * 1) * m + x,
    "each": lambda x, m: torch._foreach_mul([x, x], m)[1],
}
STATIC: dict[str, Program] = {"x + 3 m": lambda x, m: torch.add(x, m, alpha=3)}
"""Torch alone drops such a factor where the number is known at run time."""
OF_NUMBERS: dict[str, Program] = {
    **BOTH,
    "rsub, 0.3 x": lambda x, m: torch.rsub(x, m, alpha=0.3),
    "x + m x": lambda x, m: torch.add(x, x, alpha=m),
    "leaky_relu": functional.leaky_relu,
    "hardshrink": functional.hardshrink,
    "logit": lambda x, m: torch.logit(x, 0.1234567),
}
EACH = {
    "number": lambda m: m,
    "float32": lambda m: torch.tensor(m),
    "float64": lambda m: torch.tensor(m, dtype=torch.float64),
}


def _check(kind: str, dtype: torch.dtype, number: float, dynamic: bool) -> None:
    table = OF_NUMBERS if kind == "number" else BOTH
    table = table if dynamic else {**table, **STATIC}

    def program(x: torch.Tensor, m: Any) -> list[torch.Tensor]:
        return [function(x, m) for function in table.values()]

    # A multiple of what torch computes at once: it rounds once more in what is left over.
    m, x = EACH[kind](number), torch.linspace(-7.3, 5.1, 384).to(dtype)
    torch._dynamo.reset()
    compiled, _ = compile_strictly(program, dynamic=dynamic)
    for name, got, expected in zip(table, compiled(x, m), program(x, m), strict=True):
        message = f"{name} with {number}"
        torch.testing.assert_close(
            got, expected, rtol=0, atol=0, equal_nan=True, msg=lambda m, at=message: f"{at}: {m}"
        )


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", EACH)
def test_numbers_are_rounded_as_in_torch(kind: str, dtype: torch.dtype, dynamic: bool) -> None:
    _check(kind, dtype, 0.1234567, dynamic)
    _check(kind, dtype, -math.e, dynamic)


JUMPING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "equal": torch.eq,
    "less": torch.lt,
    "greater or equal": torch.ge,
    "floor": lambda x, y: (x * 64).floor() + y,
    "round": lambda x, y: x.round(),
    "where": lambda x, y: torch.where(x == y, 1, 0),
}


@pytest.mark.parametrize("patterns", ["default+onnxruntime+kernels", "default"])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("of", JUMPING)
def test_what_is_made_float16_is_rounded(of: str, wide: torch.dtype, patterns: str) -> None:
    """Also where the node that reads it has no kernel of float16."""
    function = JUMPING[of]
    x = torch.linspace(-3, 3, 257, dtype=wide)
    y = x.half()
    compiled, _ = compile_strictly(
        lambda x, y: function(x.half(), y), optimization={"patterns": patterns}
    )
    torch.testing.assert_close(compiled(x, y), function(x.half(), y), rtol=0, atol=0)


EQUAL_ONCE_ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "compared with the least": lambda x: x.half() == x.half().amin(0, keepdim=True),
    "compared with itself": lambda x: x.half() == x.half().flip(0).flip(0),
    "computed": lambda x: (x.half() * 1.1) == (x.half() * 1.1).flip(0).flip(0),
    "subtracted": lambda x: x.half() - x.half().flip(0).flip(0),
    "searched": lambda x: torch.isin(x.half(), x.half().amax(0)),
    "sum": lambda x: x.half().sum(0) - x.half().flip(0).flip(0).sum(0),
}


@pytest.mark.parametrize("patterns", ["default+onnxruntime+kernels", "default"])
@pytest.mark.parametrize("name", EQUAL_ONCE_ROUNDED)
def test_numbers_that_are_equal_once_they_are_rounded(name: str, patterns: str) -> None:
    """onnxruntime leaves a cast to float16 out on the way to one of two readers."""
    function = EQUAL_ONCE_ROUNDED[name]
    compiled, _ = compile_strictly(function, optimization={"patterns": patterns})
    x = torch.rand(40, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize(
    "function", [lambda x: x.half().amin(0), lambda x: x.half().cos().max()], ids=["amin", "max"]
)
def test_gradients_of_the_largest_of_what_is_rounded(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """They were NaN: nothing was equal to the largest."""
    x = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    compiled, _ = compile_strictly(function)
    got, expected = (torch.autograd.grad(f(x).float().sum(), x) for f in (compiled, function))
    torch.testing.assert_close(got, expected)


def test_whole_numbers_that_16_bits_do_not_hold() -> None:
    """Also where they are sizes, known when the program runs."""
    compiled, _ = compile_strictly(lambda x: (x * x.shape[0], x / x.shape[0]), dynamic=True)
    for length in (2051, 2053):
        x = torch.linspace(-2, 2, length).half()
        expected = x * length, x / length
        for got, wanted in zip(compiled(x), expected, strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "function", [torch.xlogy, torch.special.xlog1py, torch.floor_divide, torch.remainder]
)
def test_integers_beside_halves_are_rounded(function: Program, dtype: torch.dtype) -> None:
    """Also those that float16 has no number for."""
    compiled, _ = compile_strictly(function)
    whole = torch.tensor([0, 3, 2049, 2051, 70001, -4097, -100_003, 0])
    x = torch.tensor([0.3, -0.7, 1.1, 41.5, 2.3, 5.1, 0.9, math.nan], dtype=dtype)
    for given in ((whole, x), (x, whole)):
        torch.testing.assert_close(
            compiled(*given), function(*given), rtol=0, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("patterns", ["default+onnxruntime+kernels", "default"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.int64, torch.int8, torch.uint8, torch.bool], ids=str)
def test_whole_numbers_made_of_halves(
    dtype: torch.dtype, kind: torch.dtype, patterns: str
) -> None:
    """Of what was rounded to 16 bits: onnxruntime makes one cast of two."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 0.5 + 0.25).to(kind)

    compiled, _ = compile_strictly(program, optimization={"patterns": patterns})
    x = torch.tensor([255.0, 100.3, 254.9, 256.7, 1023.5, 2047, 511.3, -0.5], dtype=dtype)
    given = x if kind is not torch.uint8 else x.abs()
    assert torch.equal(compiled(given), program(given))
