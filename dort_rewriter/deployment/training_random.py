"""Random numbers of a training step in a file: the same on every runtime, from a seed that is fed.

A number is a function of the seed, of which draw of the step it belongs to, and of its place: a
chain of squares modulo the prime 2**31 - 1, in integers of 64 bits. So no operator of ONNX that
draws is needed, whose generators differ between runtimes. They are not those of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

aten = torch.ops.aten

_PRIME = 2**31 - 1
_ROUNDS = ((48271, 11), (69621, 1337), (39373, 7919), (16807, 104729))
"""Multipliers that generate all numbers below the prime, and what is added."""


class SeededDraws:
    """Decompositions of random operators: each draw of a step is another one."""

    def __init__(self) -> None:
        self.seed: torch.Tensor
        """To be set before anything is drawn."""
        self.count = 0
        """How many draws were made."""

    @staticmethod
    def operators() -> Collection[Any]:
        """The operators that have a decomposition."""
        return SeededDraws().table().keys()

    def table(self) -> Mapping[Any, Callable[..., Any]]:
        """For ``make_fx``."""
        return {
            aten.native_dropout.default: self._native_dropout,
            aten.bernoulli.default: self._bernoulli,
            aten.bernoulli.p: self._bernoulli_p,
            aten.rand.default: self._rand,
            aten.rand_like.default: self._rand_like,
            aten.randn.default: self._randn,
            aten.randn_like.default: self._randn_like,
        }

    def _uniform(self, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        """Numbers from 0 up to, and without, 1."""
        self.count += 1
        places = torch.arange(math.prod(shape), dtype=torch.int64)
        x = torch.remainder(places * 40014 + self.seed * 40692 + self.count * 52774, _PRIME)
        for multiplier, added in _ROUNDS:
            x = torch.remainder(x * x + torch.remainder(x * multiplier + added, _PRIME), _PRIME)
            x = torch.remainder(x * multiplier + self.seed, _PRIME)
        return (x.to(torch.float64) / _PRIME).to(dtype).reshape(shape)

    def _normal(self, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        a, b = (self._uniform(shape, torch.float64) for _ in range(2))
        radius = torch.sqrt(-2 * torch.log(1 - a))
        return (radius * torch.cos(2 * math.pi * b)).to(dtype)

    def _native_dropout(self, x: torch.Tensor, p: float, train: bool | None) -> Any:
        if train is False or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        if p == 1:
            return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
        mask = self._uniform(x.shape, torch.float32) >= p
        return x * mask * (1.0 / (1.0 - p)), mask

    def _bernoulli(self, x: torch.Tensor, *, generator: Any = None) -> torch.Tensor:
        return (self._uniform(x.shape, x.dtype) < x).to(x.dtype)

    def _bernoulli_p(self, x: torch.Tensor, p: float, *, generator: Any = None) -> torch.Tensor:
        return (self._uniform(x.shape, torch.float32) < p).to(x.dtype)

    def _rand(self, size: Sequence[Any], *, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return self._uniform(size, dtype or torch.get_default_dtype())

    def _rand_like(self, x: torch.Tensor, *, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return self._uniform(x.shape, dtype or x.dtype)

    def _randn(self, size: Sequence[Any], *, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return self._normal(size, dtype or torch.get_default_dtype())

    def _randn_like(self, x: torch.Tensor, *, dtype: Any = None, **kwargs: Any) -> torch.Tensor:
        return self._normal(x.shape, dtype or x.dtype)
