"""How two results differ: the one comparison with torch of the package and of its scripts.

Numbers are compared in float64 or complex128, whole numbers exactly. Equal infinities are near,
and so are two NaN; a NaN or an infinity that only one side has is infinitely far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch

Table = Mapping[torch.dtype, float]

_HALVES: Table = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
GRAPH: Table = {torch.float64: 1e-7, torch.float32: 1e-4, **_HALVES}
"""Relative to the largest number of a result, of the operators of one graph: two orders of
summation differ by less, and a rounding to 16 bits is 1e-3 or 8e-3 by itself."""

MODEL: Table = {torch.float64: 1e-6, torch.float32: 1e-3, **_HALVES}
"""The same of a whole model, or of a program of many steps: roundings add up."""
_SMALLEST_SCALE = 0.01
"""A result whose values are all smaller is what is left of larger ones: their rounding shows."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far a number may be from the expected one: the sum of the parts."""

    absolute: float = 0.0
    relative: float = 0.0
    """Times the expected number."""
    of_largest: float = 0.0
    """Times the largest finite one of the expected tensor."""
    share: float = 1.0
    """The share of the numbers that must be as near as that. None may be infinitely far."""

    def limits(self, expected: torch.Tensor) -> torch.Tensor:
        """What is accepted for each number."""
        each = widened(expected).abs().nan_to_num(0.0, posinf=0.0) * self.relative
        return each + (self.absolute + self.of_largest * largest(expected))

    def excess(self, got: torch.Tensor, expected: torch.Tensor) -> float:
        """The largest distance in units of what is accepted; infinite for another shape."""
        if got.shape != expected.shape:
            return math.inf
        parts = gaps(got, expected) / self.limits(expected)
        return float(parts.nan_to_num(0.0, posinf=math.inf).max()) if parts.numel() else 0.0

    def _text(self, expected: torch.Tensor) -> str:
        size = f"{self.absolute + self.of_largest * largest(expected):.4g}"
        return f"{size} (+ {self.relative:g} relative)" if self.relative else size


class Difference(NamedTuple):
    """What differs first: of what kind it is, and in words."""

    kind: Literal["type", "stride", "nan", "inf", "zero", "value"]
    text: str


def difference(
    got: Any, expected: Any, *tolerances: Tolerance, strides: bool = False, zeros: bool = False
) -> Difference | None:
    """How a result differs from what was expected, None where it does not.

    Of several tolerances all must be met; without one, that of a graph is. Asked for, the strides
    by which elements are found are compared too, and the signs of zeros.
    """
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        if _is_same(got, expected):
            return None
        return Difference("type", f"{_brief(expected)} expected, {_brief(got)} given")
    if got.dtype is not expected.dtype or got.shape != expected.shape:
        return Difference("type", f"{kind_of(expected)} expected, {kind_of(got)} given")
    kind = kind_of(expected)
    if strides and dense_strides(got) != dense_strides(expected):
        text = f"{kind}: strides {expected.stride()} expected, {got.stride()} given"
        return Difference("stride", text)
    found, is_rounded = gaps(got, expected), expected.is_floating_point() or expected.is_complex()
    for tolerance in tolerances or (of_graph(expected),):
        wrong = found > (tolerance.limits(expected) if is_rounded else 0.0)
        # The margin is for shares that binary fractions do not hit: 0.07 of 100 elements.
        needed = math.ceil(tolerance.share * wrong.numel() - 1e-6)
        infinite = wrong & found.isinf()
        if infinite.any() or wrong.numel() - int(wrong.sum()) < needed:
            break
    else:
        wrong = infinite = torch.zeros_like(found, dtype=torch.bool)
    if zeros and not infinite.any() and (signs := _other_zeros(got, expected)).any():
        return Difference("zero", f"{kind}: {_count(signs)} {_shown(got, expected, signs)}")
    if not wrong.any():
        return None
    shown = _shown(got, expected, torch.where(wrong, found, -1.0))
    if not is_rounded:
        return Difference("value", f"{kind}: {_count(wrong)}: {shown}")
    by = f"by more than {tolerance._text(expected)}, at most by {float(found.max()):.4g}"
    enough = "" if tolerance.share == 1 or infinite.any() else f", {needed} must not"
    text = f"{kind}: {_count(wrong)} {by}{enough}: {shown}"
    if not infinite.any():
        return Difference("value", text)
    is_nan = widened(got).isnan() != widened(expected).isnan()
    return Difference("nan" if is_nan.any() else "inf", text)


def first_difference(
    got: Sequence[Any],
    expected: Sequence[Any],
    within: Callable[[Any], Tolerance] | None = None,
) -> str:
    """How results differ first, and which it is; an empty text where none does.

    ``within`` gives the tolerance for an expected result; that of a graph is met without it.
    """
    if len(got) != len(expected):
        return f"{len(expected)} results expected, {len(got)} given"
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if found := difference(a, b, *(() if within is None else (within(b),))):
            return f"result {i}: {found.text}"
    return ""


def farthest(got: Any, expected: Any) -> float:
    """The largest distance of two results; infinite where they are of two kinds.

    What is expected in float64 may be given in any type.
    """
    if not isinstance(got, torch.Tensor) or not isinstance(expected, torch.Tensor):
        return 0.0 if _is_same(got, expected) else math.inf
    if got.shape != expected.shape:
        return math.inf
    if got.dtype is not expected.dtype and expected.dtype.to_real() is not torch.float64:
        return math.inf
    return float(gaps(got, expected).max()) if got.numel() else 0.0


def gaps(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """How far apart the numbers of two tensors of one shape are, in float64."""
    a, b = _plain(got), _plain(expected)
    dtype = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    x, y = a.to(dtype), b.to(dtype)
    gap = (x - y).abs().nan_to_num(math.inf, posinf=math.inf)
    if a.dtype is b.dtype and not (a.is_floating_point() or a.is_complex()):
        return gap.clamp(min=1.0).masked_fill(_signed(a) == _signed(b), 0.0)
    return gap.masked_fill((x == y) | (x.isnan() & y.isnan()), 0.0)


def largest(value: Any) -> float:
    """The largest finite number of a tensor, without its sign; 0 where there is none."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return 0.0
    return float(widened(value).abs().nan_to_num(0.0, posinf=0.0).max())


def limit_of(value: Any, table: Table = GRAPH) -> float:
    """What is accepted, relative to the largest number, for a result: 0 unless it is rounded."""
    return table.get(value.dtype.to_real(), 0.0) if isinstance(value, torch.Tensor) else 0.0


def of_graph(expected: torch.Tensor, limit: float | None = None) -> Tolerance:
    """What is accepted for a result of a graph, which a user may limit."""
    limit = limit_of(expected) if limit is None else limit
    return Tolerance(absolute=limit * max(_SMALLEST_SCALE, largest(expected)))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU, in float64 or complex128."""
    dtype = torch.complex128 if tensor.is_complex() else torch.float64
    return _plain(tensor).to(dtype)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach().cpu()
    return plain if plain.layout is torch.strided else plain.to_dense()


def dense_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides by which elements are found: those of sizes above one."""
    if not tensor.numel() or tensor.layout is not torch.strided:
        return ()
    return tuple(s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)


def kind_of(tensor: torch.Tensor) -> str:
    """The type and the sizes of a tensor: ``float32[2, 3]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _is_same(got: Any, expected: Any) -> bool:
    """Whether two values of which one is no tensor are the same."""
    return got is expected or (type(got) is type(expected) and bool(got == expected))


def _brief(value: Any) -> str:
    return kind_of(value) if isinstance(value, torch.Tensor) else repr(value)


def _other_zeros(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Which zeros have another sign."""
    zero = (got == 0) & (expected == 0) & got.is_floating_point()
    return zero & (got.signbit() != expected.signbit())


def _signed(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits as a type that torch compares: it does not for wide unsigned ones."""
    views = {"torch.uint16": torch.int16, "torch.uint32": torch.int32, "torch.uint64": torch.int64}
    return tensor.view(views.get(str(tensor.dtype), tensor.dtype))


def _count(wrong: torch.Tensor) -> str:
    return f"{int(wrong.sum())} of {wrong.numel()} elements differ"


def _shown(got: torch.Tensor, expected: torch.Tensor, order: torch.Tensor) -> str:
    """The element that comes first in an order, from both sides."""
    got, expected = _plain(got), _plain(expected)
    at = torch.unravel_index(order.double().argmax(), order.shape)
    place = f"at {[int(i) for i in at]} " if at else ""
    return f"{place}{expected[at].item()!r} expected, {got[at].item()!r} given"
