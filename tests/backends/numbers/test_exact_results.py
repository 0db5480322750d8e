"""Results that are whole or rounded once in eager mode, and that programs take the floor of."""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime
import pytest
import torch

from dort_rewriter import to_onnx
from tests.backends.ways import compile_strictly

PATTERNS = pytest.mark.parametrize("patterns", ["default+onnxruntime+kernels", "default"])
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Each is written as powers of two, and of ten as far as it goes."""


def _in_a_file(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    model = to_onnx(Model(), (x,))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (name,) = (i.name for i in session.get_inputs())
    return torch.from_numpy(session.run(None, {name: x.numpy()})[0])


@PATTERNS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logarithms_of_powers_are_whole(dtype: torch.dtype, patterns: str) -> None:
    """The floor of the logarithm of 8 is 3, not 2."""
    most = {torch.float64: 1000, torch.float16: 14}.get(dtype, 126)
    twos = torch.arange(-most, most + 1, dtype=torch.float64)
    powers = (2.0**twos).to(dtype)
    compiled, _ = compile_strictly(torch.log2, optimization={"patterns": patterns})
    assert torch.equal(compiled(powers), twos.to(dtype))
    tens = torch.arange(0, {torch.float64: 22, torch.float16: 4}.get(dtype, 10) + 1)
    powers = (10.0 ** tens.double()).to(dtype)
    compiled, _ = compile_strictly(torch.log10, optimization={"patterns": patterns})
    assert torch.equal(compiled(powers), torch.log10(powers))


@PATTERNS
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_logarithms_of_others(dtype: torch.dtype, patterns: str) -> None:
    inf, nan = float("inf"), float("nan")
    ends = torch.tensor([0.0, -0.0, -1.0, inf, -inf, nan, 1.0, torch.finfo(dtype).tiny])
    x = torch.cat([ends, torch.linspace(0.01, 5000, 999)]).to(dtype)
    tolerance = torch.finfo(dtype).eps * 2
    for function in (torch.log2, torch.log10):
        compiled, _ = compile_strictly(function, optimization={"patterns": patterns})
        torch.testing.assert_close(
            compiled(x), function(x), rtol=tolerance, atol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_logarithms_in_a_file(dtype: torch.dtype) -> None:
    powers = 2.0 ** torch.arange(-120, 121, dtype=dtype)
    assert torch.equal(_in_a_file(torch.log2, powers), torch.log2(powers))


@PATTERNS
@pytest.mark.parametrize("dynamic", [False, True])
def test_running_sums_and_products_are_rounded_once(patterns: str, dynamic: bool) -> None:
    """torch makes those of float32 in float64: of many, another sum would be off by 1e-4."""
    x = torch.full((3, 20_000), 0.1)
    y = 1 + torch.randn(3, 300, generator=torch.Generator().manual_seed(0)) / 16
    choices = {"optimization": {"patterns": patterns}}
    for given, function in (
        (x, lambda x: x.cumsum(1)),
        (x, lambda x: x.t().cumsum(0)),
        (y, lambda x: x.cumprod(-1)),
    ):
        torch._dynamo.reset()
        compiled, _ = compile_strictly(function, fallback=dynamic, dynamic=dynamic, **choices)
        torch.testing.assert_close(compiled(given), function(given), rtol=2e-7, atol=0)
    assert torch.equal(_in_a_file(lambda x: x.cumsum(1), x), x.cumsum(1))


@PATTERNS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_powers_of_halves_are_rounded_as_in_eager_mode(dtype: torch.dtype, patterns: str) -> None:
    """The square in a third power of bfloat16 is a number of 16 bits."""
    x = (torch.randn(4096, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    exponents = (-3, -2, -1, 0, 1, 2, 3, 4, 5, 0.5, -0.5, 1.5)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.abs() ** e for e in exponents] + [x**3, x**-2]

    compiled, _ = compile_strictly(program, optimization={"patterns": patterns})
    for exponent, got, expected in zip((*exponents, 3, -2), compiled(x), program(x), strict=True):
        same = (got == expected).float().mean().item()
        assert same > (0.999 if float(exponent).is_integer() else 0.99), f"{exponent}: {same}"


def test_variances_and_norms_of_many_keep_their_digits() -> None:
    """As the sums of our kernels do; squares that were added up one by one lost two of them."""
    x = torch.randn(8, 300_000, generator=torch.Generator().manual_seed(0)) + 100

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.var(1), x.var(), x.t().std(0), *torch.var_mean(x, 1), x.norm(), x.norm(dim=1)]

    compiled, _ = compile_strictly(program)
    for got, exact in zip(compiled(x), program(x.double()), strict=True):
        torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=0)


def test_norms_of_equal_numbers_are_zero() -> None:
    """The mean of equal numbers is that number: a rounding of it is multiplied by 300."""
    functional = torch.nn.functional
    for width in (5, 6, 7, 100):
        for number in (3.7, 1000.1, -0.1):
            x = torch.full((2, 3, width), number)

            def program(x: torch.Tensor) -> list[torch.Tensor]:
                return [
                    functional.layer_norm(x, x.shape[-1:]),
                    functional.layer_norm(x, x.shape[-2:]),
                    functional.group_norm(x, 3),
                    functional.instance_norm(x),
                    functional.batch_norm(x, None, None, training=True),
                ]

            torch._dynamo.reset()
            for result in compile_strictly(program)[0](x):
                assert not result.any()
