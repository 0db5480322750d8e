"""The random numbers of training steps: in their ranges, and the same in each runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import to_onnx
from dort_rewriter.deployment.training_random import _PRIME, SeededDraws

aten = torch.ops.aten
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Extremes(SeededDraws):
    """Draws the smallest and the largest numbers that there are."""

    def _integers(self, count: Any) -> torch.Tensor:
        return torch.tensor([0, _PRIME - 1])[torch.arange(count) % 2]


def drawn(draws: SeededDraws, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    draws.seed = torch.tensor(7)
    return make_fx(lambda: call(), decomposition_table=dict(draws.table()))()()


@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_are_in_range(dtype: torch.dtype) -> None:
    draws = Extremes()
    small, large = drawn(draws, lambda: torch.rand(2, dtype=dtype))
    assert small == 0
    assert 1 - max(2 * torch.finfo(dtype).eps, 2.0**-29) < large < 1
    ones = torch.ones(2, dtype=dtype)
    assert drawn(draws, lambda: torch.bernoulli(ones)).tolist() == [1, 1]
    assert drawn(draws, lambda: torch.bernoulli(ones * 0)).tolist() == [0, 0]
    assert drawn(draws, lambda: torch.bernoulli(ones, 1.0)).tolist() == [1, 1]
    assert drawn(draws, lambda: torch.bernoulli(ones, 0.0)).tolist() == [0, 0]
    found = drawn(draws, lambda: aten.exponential(ones))
    assert (found > 0).all()
    assert found.isfinite().all()
    assert drawn(draws, lambda: torch.randn(4, dtype=dtype)).isfinite().all()


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 4), (5, 2**31 + 4), (0, 1000)])
def test_extremes_of_integers(low: int, high: int) -> None:
    found = drawn(Extremes(), lambda: torch.randint(low, high, (2,)))
    assert found.tolist() == [low, high - 1]


CALLS: dict[str, tuple[Callable[[], torch.Tensor], float, float]] = {
    "rand": (lambda: torch.rand(4000), 0.5, 12**-0.5),
    "randn": (lambda: torch.randn(4000), 0, 1),
    "bernoulli": (lambda: torch.bernoulli(torch.full((4000,), 0.3)), 0.3, 0.21**0.5),
    "uniform": (lambda: aten.uniform(torch.empty(4000), -1.0, 3.0), 1, 4 * 12**-0.5),
    "exponential": (lambda: aten.exponential(torch.empty(4000), 2.0), 0.5, 0.5),
    "normal": (lambda: torch.normal(3.0, 2.0, (4000,)), 3, 2),
    "normal, a mean": (lambda: torch.normal(torch.full((4000,), 3.0), 2.0), 3, 2),
    "normal, a deviation": (lambda: torch.normal(3.0, torch.full((4000,), 2.0)), 3, 2),
    "normal, both": (lambda: torch.normal(torch.full((4000, 1), 3.0), torch.tensor([2.0])), 3, 2),
    "randint": (lambda: torch.randint(-2, 3, (4000,)), 0, 2**0.5),
    "randint_like": (lambda: torch.randint_like(torch.empty(4000), 5), 2, 2**0.5),
    "randperm": (lambda: torch.randperm(4000), 1999.5, 4000 * 12**-0.5),
    "half": (lambda: torch.rand(4000, dtype=torch.float16), 0.5, 12**-0.5),
}


@pytest.mark.parametrize("name", CALLS)
def test_numbers_are_those_of_each_runtime(name: str) -> None:
    """And they are distributed as torch's: mean and standard deviation."""
    call, mean, deviation = CALLS[name]
    draws = SeededDraws()

    def of_seed(seed: torch.Tensor) -> torch.Tensor:
        draws.seed = seed
        return call()

    seed = torch.tensor(11)
    graph = make_fx(of_seed, decomposition_table=dict(draws.table()))(seed)
    expected = graph(seed)
    assert expected.dtype is call().dtype
    proto: Any = to_onnx(graph, (seed,))
    fed = {proto.graph.input[0].name: seed.numpy()}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    for found in (session.run(None, fed)[0], ReferenceEvaluator(proto).run(None, fed)[0]):
        if name.startswith(("randn", "normal", "exponential")):  # logarithms are the runtime's
            np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        else:
            np.testing.assert_array_equal(found, expected.numpy())
    numbers = expected.double()
    assert numbers.mean().item() == pytest.approx(mean, abs=4 * deviation / math.sqrt(4000))
    assert numbers.std().item() == pytest.approx(deviation, rel=0.06)
    if name == "randperm":
        assert sorted(expected.tolist()) == list(range(4000))


@pytest.mark.parametrize("call", [
    lambda: torch.rand(3, dtype=torch.complex64),
    lambda: torch.randn(3, dtype=torch.complex64),
    lambda: torch.randint(0, 2**40, (3,)),
])  # fmt: skip
def test_what_is_not_drawn_stays(call: Callable[[], torch.Tensor]) -> None:
    draws = SeededDraws()
    draws.seed = torch.tensor(0)
    graph = make_fx(lambda: call(), decomposition_table=dict(draws.table()))()
    assert any("rand" in str(node.target) for node in graph.graph.nodes)
