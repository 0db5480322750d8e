"""Random numbers of a training step in a file: the same on every runtime, from a seed that is fed.

A number is a function of the seed, of which draw of the step it belongs to, and of its place: a
chain of squares modulo the prime 2**31 - 1, in integers of 64 bits. So no operator of ONNX that
draws is needed, whose generators differ between runtimes. They are not those of torch.

A uniform number has as many of the integer's first bits as its type has digits: it is exact, so
that it is below 1 in every type, and needs no rounding that a runtime could do otherwise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_BITS = 31
_PRIME = 2**_BITS - 1
_ROUNDS = ((48271, 11), (69621, 1337), (39373, 7919), (16807, 104729))
"""Multipliers that generate all numbers below the prime, and what is added."""

_DIGITS = {torch.float64: _BITS, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The bits of a uniform number of each type."""


def _like(draw: Callable[..., Any]) -> Callable[..., Any]:
    """A draw of the sizes of a tensor, which is its first argument, and of its type."""

    def drawn(x: torch.Tensor, *bounds: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return draw(*bounds, x.shape, dtype=dtype or x.dtype)

    return drawn


class SeededDraws:
    """Decompositions of random operators: each draw of a step is another one."""

    def __init__(self) -> None:
        self.seed: torch.Tensor
        """To be set before anything is drawn."""
        self.count = 0
        """How many random operators were traced."""

    @staticmethod
    def operators() -> Collection[Any]:
        """The operators that have a decomposition."""
        return SeededDraws().table().keys()

    def table(self) -> Mapping[Any, Callable[..., Any]]:
        """For ``make_fx``."""
        below = functools.partial(self._randint, 0)
        return {
            aten.native_dropout.default: self._native_dropout,
            aten.bernoulli.default: self._bernoulli,
            aten.bernoulli.p: self._bernoulli_p,
            aten.rand.default: self._rand,
            aten.rand_like.default: _like(self._rand),
            aten.randn.default: self._randn,
            aten.randn_like.default: _like(self._randn),
            aten.uniform.default: self._uniform_between,
            aten.exponential.default: self._exponential,
            aten.normal_functional.default: self._normal_like,
            aten.normal.float_float: self._normal_of_size,
            aten.normal.Tensor_float: self._normal_around,
            aten.normal.float_Tensor: self._normal_around,
            aten.normal.Tensor_Tensor: self._normal_around,
            aten.randint.default: below,
            aten.randint.low: self._randint,
            aten.randint_like.default: _like(below),
            aten.randint_like.low_dtype: _like(self._randint),
            aten.randperm.default: self._randperm,
        }

    # -- the numbers ---------------------------------------------------------------------------

    def _integers(self, count: Any) -> torch.Tensor:
        """Numbers from 0 up to, and without, the prime."""
        self.count += 1
        places = torch.arange(count, dtype=torch.int64)
        x = torch.remainder(places * 40014 + self.seed * 40692 + self.count * 52774, _PRIME)
        for multiplier, added in _ROUNDS:
            x = torch.remainder(x * x + torch.remainder(x * multiplier + added, _PRIME), _PRIME)
            x = torch.remainder(x * multiplier + self.seed, _PRIME)
        return x

    def _uniform(self, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        """Numbers from 0 up to, and without, 1."""
        bits = _DIGITS[dtype]
        x = self._integers(math.prod(shape))
        first = x if bits == _BITS else torch.div(x, 2 ** (_BITS - bits), rounding_mode="trunc")
        return (first.to(dtype) * 2.0**-bits).reshape(shape)

    def _normal(self, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        # NOTE: cosines of float64 have no kernel in ONNX Runtime 1.19.
        radius = torch.sqrt(-2 * torch.log(1 - self._uniform(shape, torch.float64)))
        direction = torch.cos(2 * math.pi * self._uniform(shape, torch.float32))
        return (radius * direction.to(torch.float64)).to(dtype)

    # -- operators: NotImplemented for what they do not draw -----------------------------------

    def _native_dropout(self, x: torch.Tensor, p: float, train: bool | None) -> Any:
        if train is False or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        if p == 1:
            return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
        mask = self._uniform(x.shape, torch.float32) >= p
        return x * mask * (1.0 / (1.0 - p)), mask

    def _bernoulli(self, x: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
        finer = torch.promote_types(x.dtype, torch.float32)
        return (self._uniform(x.shape, finer) < x.to(finer)).to(x.dtype)

    def _bernoulli_p(self, x: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
        return (self._uniform(x.shape, torch.float32) < p).to(x.dtype)

    def _rand(self, size: Sequence[Any], *, dtype: Any = None, **kwargs: Any) -> Any:
        dtype = dtype or torch.get_default_dtype()
        return self._uniform(size, dtype) if dtype in _DIGITS else NotImplemented

    def _randn(self, size: Sequence[Any], *, dtype: Any = None, **kwargs: Any) -> Any:
        dtype = dtype or torch.get_default_dtype()
        return self._normal(size, dtype) if dtype in _DIGITS else NotImplemented

    def _uniform_between(
        self, x: torch.Tensor, start: float = 0.0, end: float = 1.0, *, generator: Any = None
    ) -> Any:
        if x.dtype not in _DIGITS:
            return NotImplemented
        return self._uniform(x.shape, x.dtype) * (end - start) + start

    def _exponential(self, x: torch.Tensor, rate: float = 1.0, *, generator: Any = None) -> Any:
        if x.dtype not in _DIGITS:
            return NotImplemented
        above_zero = self._uniform(x.shape, torch.float64) + 2.0**-_BITS
        found = -torch.log(above_zero) / rate
        return found.to(x.dtype).clamp(min=torch.finfo(x.dtype).tiny)

    def _normal_like(
        self, x: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
    ) -> Any:
        return self._normal_of_size(mean, std, x.shape, dtype=x.dtype)

    def _normal_of_size(
        self, mean: float, std: float, size: Sequence[Any], *, dtype: Any = None, **kwargs: Any
    ) -> Any:
        found = self._randn(size, dtype=dtype)
        return found if found is NotImplemented else found * std + mean

    def _normal_around(self, mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
        tensors = torch.broadcast_tensors(*(x for x in (mean, std) if isinstance(x, torch.Tensor)))
        return self._randn(tensors[0].shape, dtype=tensors[0].dtype) * std + mean

    def _randint(
        self, low: Any, high: Any, size: Sequence[Any], *, dtype: Any = None, **kwargs: Any
    ) -> Any:
        count = high - low
        if not isinstance(count, int) or count > _PRIME:  # as many numbers are drawn
            return NotImplemented
        x = torch.div(self._integers(math.prod(size)) * count, _PRIME, rounding_mode="trunc")
        return (x + low).reshape(size).to(torch.int64 if dtype is None else dtype)

    def _randperm(self, n: Any, *, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        order = torch.sort(self._integers(n), stable=True)[1]
        return order if dtype is None else order.to(dtype)
