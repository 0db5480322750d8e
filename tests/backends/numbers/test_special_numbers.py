"""Zeros, infinities, NaN and the ends of each type: numbers as in eager mode.

All operators of a table are one program, so that a type costs one compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnxruntime
import pytest
import torch
from torch.nn import functional

from dort_rewriter import to_onnx
from tests.backends.ways import HAS_ORT_BACKEND, compile_strictly

Operator = Callable[..., torch.Tensor]

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}

_UNARY = """abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc
erfinv exp exp2 expm1 floor frac isfinite isinf isnan isneginf isposinf log log10 log1p log2
logical_not logit nan_to_num neg positive rad2deg reciprocal relu round rsqrt sigmoid sign
signbit sgn sin sinh sqrt square tan""".split()
_FUNCTIONS = """silu softplus leaky_relu hardsigmoid hardtanh relu6 mish softsign softshrink
hardshrink""".split()
UNARY: dict[str, Operator] = {
    **{name: getattr(torch, name) for name in _UNARY},
    **{name: getattr(functional, name) for name in _FUNCTIONS},
    "x ** 2": lambda x: x**2,
    "x ** 3": lambda x: x**3,
    "x ** 0": lambda x: x**0,
    "x ** -1": lambda x: x**-1,
    "x ** 1.5": lambda x: x**1.5,
    "x ** -2.5": lambda x: x**-2.5,
    "lgamma": torch.lgamma,
    "prelu": lambda x: functional.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
    "2 ** x": lambda x: 2**x,
    "x - 0": lambda x: x - 0,
    "0 - x": lambda x: 0 - x,
    "x * 0": lambda x: x * 0,
    "x * -1": lambda x: x * -1,
    "1 / x": lambda x: 1 / x,
    "0 / x": lambda x: 0 / x,
    "x // 2": lambda x: x // 2,
    "x // -2": lambda x: x // -2,
    "1 // x": lambda x: 1 // x,
    "x % 2": lambda x: x % 2,
    "x % -2": lambda x: x % -2,
    "clamp": lambda x: x.clamp(-1, 1),
    "trunc(x / 3)": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "floor(x / 3)": lambda x: torch.div(x, 3, rounding_mode="floor"),
}
"""NOTE: left out is what torch's own kernels overflow in, where ours has the limit: ``gelu(inf)``
is NaN there, ``hardswish`` of the largest number infinite, ``remainder`` NaN where the quotient is
no number."""
BINARY: dict[str, Operator] = {
    name: getattr(torch, name)
    for name in """add sub mul div floor_divide pow atan2 hypot maximum minimum logaddexp xlogy
    heaviside eq lt""".split()
}


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    ends = torch.finfo(dtype)
    return torch.tensor(
        [0.0, -0.0, math.inf, -math.inf, math.nan, ends.tiny, -ends.tiny, ends.max, ends.min,
         1, 2, -1, 0.5, -0.5, 3, -2],
        dtype=dtype,
    )  # fmt: skip


def _wrong(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Which numbers differ: NaN is NaN, numbers below the normal ones are zeros.

    NOTE: the sign of a zero is another test's: ONNX Runtime's Where makes 0.0 of -0.0.
    """
    if not expected.is_floating_point():
        return got != expected
    a, b = got.double(), expected.double()
    tiny = 2 * torch.finfo(expected.dtype).tiny
    same = (a == b) | ((a.abs() <= tiny) & (b.abs() <= tiny)) | (a.isnan() & b.isnan())
    close = ((a - b).abs() <= TOLERANCE[expected.dtype] * b.abs()) & b.isfinite()
    return ~(same | close)


def _other_sign(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Which zeros have another sign."""
    if not expected.is_floating_point():
        return torch.zeros_like(expected, dtype=torch.bool)
    zeros = (got == 0) & (expected == 0)
    return zeros & (got.signbit() != expected.signbit())


def _compare(
    table: dict[str, Operator],
    given: Sequence[torch.Tensor],
    patterns: str,
    is_wrong: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _wrong,
) -> None:
    functions = list(table.values())

    def program(*args: torch.Tensor) -> list[torch.Tensor]:
        return [function(*args) for function in functions]

    torch._dynamo.reset()
    compiled, _ = compile_strictly(program, fallback=True, optimization={"patterns": patterns})
    found = []
    for name, got, expected in zip(table, compiled(*given), program(*given), strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        for i in map(tuple, is_wrong(got, expected).nonzero().tolist()):
            at = ", ".join(str(x[i[: x.ndim]].item()) for x in given)
            found.append(f"{name}({at}): got {got[i].item()}, eager {expected[i].item()}")
    assert not found, "\n".join(found)


PATTERNS = ("default+onnxruntime+kernels", "default")
"""With our kernels, and with those of onnxruntime alone."""


@pytest.mark.parametrize("patterns", PATTERNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_one_number(dtype: torch.dtype, patterns: str) -> None:
    _compare(UNARY, [_numbers(dtype)], patterns)


@pytest.mark.parametrize("patterns", PATTERNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_two_numbers(dtype: torch.dtype, patterns: str) -> None:
    numbers = _numbers(dtype)
    a, b = torch.meshgrid(numbers, numbers, indexing="ij")
    _compare(BINARY, [a.flatten(), b.flatten()], patterns)


_SIGNED = """abs neg relu trunc round reciprocal sqrt square expm1 log1p sin tan asin atan sinh
asinh tanh positive""".split()
SIGNED: dict[str, Operator] = {
    **{name: getattr(torch, name) for name in _SIGNED},
    "relu6": functional.relu6,
    "logsigmoid": functional.logsigmoid,
    "x * 0": lambda x: x * 0,
    "x * -0.0": lambda x: x * -0.0,
    "0 - x": lambda x: 0 - x,
    "x - 0": lambda x: x - 0.0,
    "x - -0.0": lambda x: x - -0.0,
    "x + 0": lambda x: x + 0,
    "x + -0.0": lambda x: x + -0.0,
    "x + zeros": lambda x: x + torch.zeros_like(x),
    "zeros and added": lambda x: torch.zeros_like(x).add_(x * 0, alpha=2),
    "exp(x + 0)": lambda x: torch.exp(x + 0),
    "abs + 0": lambda x: x.abs() + 0.0,
    "addcmul of zeros": lambda x: torch.zeros_like(x).addcmul_(x * 0, torch.ones_like(x)),
    "-0.0 - x": lambda x: -0.0 - x,
    "1 / (x * 0)": lambda x: 1 / (x * 0),
    "1 / relu": lambda x: 1 / x.relu(),
    "1 / trunc": lambda x: 1 / x.trunc(),
    "1 / clamp": lambda x: 1 / x.clamp(max=0),
    "x % 2": lambda x: x % 2,
    "x % -2": lambda x: x % -2,
    "fmod": lambda x: torch.fmod(x, 2),
    "x // 2": lambda x: x // 2,
    "x // -2": lambda x: x // -2,
    "0 // x": lambda x: 0 // x,
    "trunc(x / 3)": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "ceil": lambda x: torch.ceil(x * 0.3),
    "floor": lambda x: torch.floor(x * 0.3),
    "round": lambda x: torch.round(x * 0.3),
    "copysign to": lambda x: torch.copysign(x, -0.0),
    "copysign of": lambda x: torch.copysign(x * 0, x),
    "atan2": lambda x: torch.atan2(x, torch.ones_like(x)),
    "x ** t(-0.5)": lambda x: x ** torch.tensor(-0.5, dtype=x.dtype),
    **{
        f"clamp {bounds}": lambda x, bounds=bounds: x.clamp(*bounds)
        for bounds in ((0, None), (-0.0, None), (None, 0), (None, -0.0), (0, 1), (-1, -0.0))
    },
}
OF_OURS: dict[str, Operator] = {
    "tanhshrink": functional.tanhshrink,
    "where": lambda x: torch.where(x == 0, x, 1),
    "where -0.0": lambda x: torch.where(x > 0, x, -0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, -0.0),
    "threshold": lambda x: functional.threshold(x, 0.0, -0.0),
    "greater": lambda x: torch.where(x > x.flip(0), x, x.flip(0)),
    "median": lambda x: torch.where(x > 0, x * 0, -0.0).nan_to_num().median(),
    "windows": lambda x: functional.max_pool1d(x.nan_to_num().view(1, 1, -1).clamp(-1, 0), 3),
}
"""What ONNX Runtime's Where, Tanh and Max do, which our kernels and torch's replace."""


@pytest.mark.parametrize("patterns", PATTERNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signs_of_zeros(dtype: torch.dtype, patterns: str) -> None:
    table = SIGNED | (OF_OURS if "kernels" in patterns else {})
    _compare(table, [_numbers(dtype)], patterns, _other_sign)


@pytest.mark.parametrize("patterns", PATTERNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signs_of_zeros_of_two_numbers(dtype: torch.dtype, patterns: str) -> None:
    numbers = _numbers(dtype)
    a, b = torch.meshgrid(numbers, numbers, indexing="ij")
    names = "mul div floor_divide remainder fmod copysign atan2 pow".split()
    table: dict[str, Operator] = {name: getattr(torch, name) for name in names}
    table["trunc(a / b)"] = lambda a, b: torch.div(a, b, rounding_mode="trunc")
    _compare(table, [a.flatten(), b.flatten()], patterns, _other_sign)


class _Calls(torch.nn.Module):
    """The operators of a table, of the same numbers."""

    def __init__(self, table: dict[str, Operator]) -> None:
        super().__init__()
        self.functions = list(table.values())

    def forward(self, *given: torch.Tensor) -> list[torch.Tensor]:
        return [function(*given) for function in self.functions]


_OF_OLD_KERNELS = """ceil erf floor frac prelu rsqrt sqrt""".split()
"""What onnxruntime 1.19 computes wrongly in files; backends write other nodes for it."""


def test_files_in_a_plain_session() -> None:
    """With the optimizations of onnxruntime."""
    table = {**UNARY, **SIGNED}
    if onnxruntime.__version__.startswith("1.19."):
        table = {name: f for name, f in table.items() if name not in _OF_OLD_KERNELS}
    module, x = _Calls(table), _numbers(torch.float32)
    session = onnxruntime.InferenceSession(to_onnx(module, (x,)).SerializeToString())
    results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    found = []
    for (name, ours), expected in zip(zip(table, results, strict=True), module(x), strict=True):
        got = torch.from_numpy(ours)
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        wrong = _wrong(got, expected)
        if name in SIGNED:
            wrong |= _other_sign(got, expected)
        found += [
            f"{name}({x[i].item()}): got {got[i].item()}, eager {expected[i].item()}"
            for i in wrong.nonzero().flatten().tolist()
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("patterns", PATTERNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_powers(dtype: torch.dtype, patterns: str) -> None:
    """Also of numbers, and of tensors of rank 0, known or not."""
    ends = torch.finfo(dtype)
    subnormal = ends.smallest_normal * ends.eps * 4
    more = [4, 1.5, -1.5, 2.5, -3, 7, ends.max / 16, subnormal, -subnormal]
    x = torch.cat([_numbers(dtype), torch.tensor(more, dtype=dtype)])
    table: dict[str, Operator] = {"column": lambda x, n: x[:, None] ** x[3:7]}
    for i, number in enumerate(x.tolist()):
        table |= {
            f"x ** {number}": lambda x, n, number=number: x**number,
            f"{number} ** x": lambda x, n, number=number: number**x,
            f"x ** t({number})": lambda x, n, number=number: (
                x ** torch.tensor(number, dtype=x.dtype)
            ),
            f"x ** n[{i}]": lambda x, n, i=i: x ** n[i],
            f"n[{i}] ** x": lambda x, n, i=i: n[i] ** x,
        }
    _compare(table, [x, x], patterns, lambda a, b: _wrong(a, b) | _other_sign(a, b))


@pytest.mark.parametrize("patterns", PATTERNS)
def test_tails_of_float64(patterns: str) -> None:
    """What is far below one is no zero."""
    x = torch.tensor([-700.0, -90, -50, -37, -30, -20, 1, 20, 50, 700], dtype=torch.float64)
    table: dict[str, Operator] = {
        name: getattr(functional, name) for name in "sigmoid softplus silu mish logsigmoid".split()
    }
    table["glu"] = lambda x: functional.glu(torch.cat([x, x]), 0)
    table["logaddexp"] = lambda x: torch.logaddexp(x, torch.zeros_like(x))
    _compare(table, [x], patterns)


def test_tails_of_float32() -> None:
    """onnxruntime's sigmoid is 0 below -18; with our kernels it is eager's to the last digits."""
    x = torch.tensor([-87.0, -60, -30, -18.5, -17, -16, -9, 1, 17, 90])
    functions = (torch.sigmoid, functional.silu, functional.logsigmoid)
    for f in functions:
        compiled, _ = compile_strictly(f)
        torch.testing.assert_close(compiled(x), f(x), rtol=3e-6, atol=0)
    compiled, _ = compile_strictly(lambda x: functional.glu(x, 0))
    both = torch.cat([torch.ones(10), x])
    torch.testing.assert_close(compiled(both), functional.glu(both, 0), rtol=3e-6, atol=0)


@pytest.mark.parametrize("patterns", PATTERNS)
def test_what_ends_at_one(patterns: str) -> None:
    """Beyond it there is no angle, no root and no logarithm: all were NaN."""
    x = torch.linspace(-20, 20, 40_001)
    programs: tuple[Operator, ...] = (
        lambda x: torch.acos(torch.tanh(x)),
        lambda x: torch.atanh(torch.tanh(x)),
        lambda x: torch.sqrt(1 - torch.tanh(x) ** 2),
        lambda x: torch.log(1 - torch.sigmoid(x)),
        lambda x: torch.log1p(torch.expm1(x)),
    )
    for program in programs:
        compiled, _ = compile_strictly(program, optimization={"patterns": patterns})
        got, expected = compiled(x), program(x)
        assert torch.equal(got.isnan(), expected.isnan())
    sigmoid, _ = compile_strictly(torch.sigmoid, optimization={"patterns": patterns})
    torch.testing.assert_close(sigmoid(x), torch.sigmoid(x), rtol=3e-6, atol=0)


@pytest.mark.parametrize("patterns", PATTERNS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_kernels_lose(dtype: torch.dtype, patterns: str) -> None:
    """A NaN beside an infinity, rows of float64, the digits of an exponent."""
    inf, nan = math.inf, math.nan
    rows = [[nan, 1, 2, inf], [1, nan, -inf, 2], [1, 2, 3, nan], [inf, 1, 2, -1], [-inf] * 4]
    x = torch.tensor([*rows, [0, 1, 2, 3], [-1000, 1000, -50, 50]], dtype=dtype)
    table: dict[str, Operator] = {
        "logsumexp of all": lambda x: x.logsumexp((0, 1)).expand_as(x),
        "logsumexp": lambda x: x.logsumexp(1, keepdim=True).expand_as(x),
        "log_softmax": lambda x: x.log_softmax(1),
        "clamp by NaN": lambda x: x.clamp(math.nan, 1),
        "logsigmoid": functional.logsigmoid,
    }
    _compare(table, [x], patterns)


@pytest.mark.skipif(HAS_ORT_BACKEND, reason="torch 2.8 asks whether what is counted is empty")
def test_log_softmax_of_what_is_counted() -> None:
    """Over an axis that may have no elements: the kernel of float64 takes that, a maximum not."""

    def program(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x[mask].log_softmax(0)

    x = torch.linspace(-2, 2, 6, dtype=torch.float64).view(6, 1)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled, _ = compile_strictly(program, fallback=True)
        for mask in (x[:, 0] > 0, x[:, 0] > 9):
            torch.testing.assert_close(compiled(x, mask), program(x, mask))
