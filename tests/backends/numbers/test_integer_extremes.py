"""The ends of each integer type, and what wraps around them: numbers as in eager mode.

All operators of a table are one program, so that a type costs one compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tests.backends.ways import compile_strictly

Operator = Callable[..., torch.Tensor]

DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

UNARY: dict[str, Operator] = {
    **{
        name: getattr(torch, name)
        for name in """abs neg sign bitwise_not square sum prod amax amin argmax argmin median
        count_nonzero""".split()
    },
    **{f"x ** {n}": lambda x, n=n: x**n for n in (0, 1, 2, 3, 7)},
    **{f"x + {n}": lambda x, n=n: x + n for n in (1, 300, 3_000_000_000)},
    **{f"x * {n}": lambda x, n=n: x * n for n in (3, -3, 1000)},
    **{f"x << {n}": lambda x, n=n: x << n for n in (1, 7, 31, 63, 64, 100, -1)},
    **{f"x >> {n}": lambda x, n=n: x >> n for n in (1, 7, 31, 63, 64, 100, -1)},
    **{f"x // {n}": lambda x, n=n: x // n for n in (3, -3, 127, 300)},
    **{f"x % {n}": lambda x, n=n: x % n for n in (3, -3, 127, 300)},
    **{f"fmod {n}": lambda x, n=n: torch.fmod(x, n) for n in (3, -3, 300)},
    **{f"clamp {n}": lambda x, n=n: x.clamp(*n) for n in ((-1, 1), (1, -1), (-1000, 1000))},
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -300 if x.dtype.is_signed else 0, 300),
    "relu": torch.relu,
    "relu, then clamp": lambda x: torch.relu(x).clamp(-3, 3),
    "relu6 of relu": lambda x: torch.nn.functional.relu6(torch.relu(x)),
    "trunc(x / 3)": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "x / 3": lambda x: x / 3,
    "5 - 2 * x": lambda x: torch.rsub(x, 5, alpha=2),
    "2 ** x": lambda x: 2 ** x.clamp(0, 6),
    "(-2) ** x": lambda x: (-2) ** x.clamp(0, 7),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "sort": lambda x: x.sort()[0],
    "topk": lambda x: x.topk(5, largest=False)[0],
    "kthvalue": lambda x: x.kthvalue(3)[0],
    "cummax": lambda x: x.cummax(0)[0],
    "x @ x": lambda x: x @ x,
    "x < 3e9": lambda x: x < 3_000_000_000,
    "x >= 300": lambda x: x >= 300,
    "where": lambda x: torch.where(x > 2, x, x * 2),
    "sums of rows": lambda x: x.view(2, -1).sum(1, keepdim=True),
    "sums of columns": lambda x: x.view(2, -1).sum(0),
    "products of rows": lambda x: x.view(2, -1).prod(1),
    "index_add": lambda x: torch.zeros_like(x).index_add(0, torch.zeros_like(x).long(), x),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, torch.zeros_like(x).long(), x),
    "scatter_amax": lambda x: torch.zeros_like(x).scatter_reduce(
        0, torch.zeros_like(x).long(), x, "amax"
    ),
    **{
        f"{name} in {dtype}": lambda x, name=name, dtype=dtype: getattr(x, name)(dtype=dtype)
        for name in ("sum", "prod")
        for dtype in (torch.int8, torch.int32, torch.float64)
    },
    **{f"to {dtype}": lambda x, dtype=dtype: x.to(dtype) for dtype in (*DTYPES, torch.bool)},
}
BINARY: dict[str, Operator] = {
    **{
        name: getattr(torch, name)
        for name in """add sub mul bitwise_and bitwise_or bitwise_xor bitwise_left_shift
        bitwise_right_shift maximum minimum lt eq""".split()
    },
    "a ** b": lambda a, b: a ** b.clamp(0, 9),
    "a // b": lambda a, b: a // _divisor(b),
    "a % b": lambda a, b: a % _divisor(b),
    "fmod": lambda a, b: torch.fmod(a, _divisor(b)),
    "trunc(a / b)": lambda a, b: torch.div(a, _divisor(b), rounding_mode="trunc"),
    "a / b": lambda a, b: a / _divisor(b),
    "clamp": lambda a, b: a.clamp(b, a.flip(0)),
}


def _divisor(b: torch.Tensor) -> torch.Tensor:
    """Numbers that eager mode divides the lowest one by."""
    return torch.where((b == 0) | (b == -1), torch.full_like(b, 3), b)


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    ends = torch.iinfo(dtype)
    more = [-1, -2, -3, -7, -100] if ends.min else [200, 255, 128, 127, 9]
    middle = [0, 1, 2, 3, 5, 7, 100]
    around = [ends.min, ends.max, ends.max - 1, ends.max // 2 + 1]
    return torch.tensor([*around, *middle, *more, 4, 6], dtype=dtype)


def _compare(
    table: dict[str, Operator], given: Sequence[torch.Tensor], patterns: str, dynamic: bool
) -> None:
    expected = {name: _eager(function, given) for name, function in table.items()}
    taken = {name: result for name, result in expected.items() if result is not None}
    functions = [table[name] for name in taken]

    def program(*args: torch.Tensor) -> list[torch.Tensor]:
        return [function(*args) for function in functions]

    torch._dynamo.reset()
    compiled, _ = compile_strictly(
        program, fallback=True, dynamic=dynamic, optimization={"patterns": patterns}
    )
    wrong = []
    for (name, result), got in zip(taken.items(), compiled(*given), strict=True):
        assert (got.dtype, got.shape) == (result.dtype, result.shape)
        whole = not result.is_floating_point()
        if not (torch.equal if whole else torch.allclose)(got, result):
            wrong.append(f"{name}: got {got.tolist()}, eager {result.tolist()}")
    assert not wrong, "\n".join(wrong)


def _eager(function: Operator, given: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The result of eager mode; None where it refuses a number as none of the type."""
    try:
        return function(*given)
    except RuntimeError as error:
        if any(text in str(error) for text in ("without overflow", "representable range")):
            return None
        raise


@pytest.mark.parametrize(
    ("patterns", "dynamic"),
    [("default+onnxruntime+kernels", False), ("default", True)],
    ids=["all", "default, symbolic"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_one_number(dtype: torch.dtype, patterns: str, dynamic: bool) -> None:
    _compare(UNARY, [_numbers(dtype)], patterns, dynamic)


@pytest.mark.parametrize("other", [torch.int64, torch.uint8, None], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_of_two_numbers(dtype: torch.dtype, other: torch.dtype | None) -> None:
    a, b = _numbers(dtype), _numbers(other or dtype)
    pairs = [a.repeat_interleave(len(b)), b.repeat(len(a))]
    _compare(BINARY, pairs, "default+onnxruntime+kernels", False)


@pytest.mark.parametrize("dims", [(), (0,), (1,), (0, True)], ids=str)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_over_what_is_counted_and_may_be_nothing(name: str, dims: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return getattr(x, name)(*dims)

    torch._dynamo.reset()
    compiled, _ = compile_strictly(program, dynamic=True)
    for shape in ((4, 3), (0, 3), (5, 0), (2, 2)):
        x = torch.full(shape, 2**31, dtype=torch.int64)
        assert torch.equal(compiled(x), program(x)), shape
