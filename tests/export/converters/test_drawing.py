"""Random operators in a model of its own: the distributions, not the numbers, are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from dort_rewriter import OrtBackend, UnsupportedOpError, to_onnx

X = torch.rand(40, 50)

OTHERS = {
    "aten::bernoulli",
    "aten::bernoulli.p",
    "aten::cauchy",
    "aten::exponential",
    "aten::geometric",
    "aten::log_normal",
    "aten::normal_functional",
    "aten::uniform",
    "aten::multinomial",
    "aten::rand",
    "aten::rand_like",
    "aten::randint",
    "aten::randint.low",
    "aten::randint_like",
    "aten::randn",
    "aten::randn_like",
    "aten::randperm",
}


def draw(function: Callable[..., Any], *args: torch.Tensor, **kwargs: Any) -> list[Any]:
    class Draws(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> Any:
            return function(*tensors)

    options = onnxruntime.SessionOptions()
    model = to_onnx(Draws(), args, **kwargs)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = zip(session.get_inputs(), args, strict=True)
    return session.run(None, {i.name: t.numpy() for i, t in feeds})


@pytest.mark.parametrize(
    ("function", "mean", "std", "low", "high"),
    [
        (lambda x: torch.rand(40, 50) + 0 * x, 0.5, 12**-0.5, 0, 1),
        (torch.rand_like, 0.5, 12**-0.5, 0, 1),
        (lambda x: torch.randn(40, 50) + 0 * x, 0, 1, -9, 9),
        (torch.randn_like, 0, 1, -9, 9),
        (lambda x: torch.normal(0 * x + 3, 2.0), 3, 2, -15, 21),
        (lambda x: x.clone().uniform_(2, 6), 4, 4 / 12**0.5, 2, 6),
        (lambda x: torch.bernoulli(0 * x + 0.25), 0.25, 0.1875**0.5, 0, 1),
        (lambda x: torch.zeros_like(x).bernoulli_(0.25), 0.25, 0.1875**0.5, 0, 1),
        (lambda x: x.clone().normal_(3, 2), 3, 2, -15, 21),
        (lambda x: x.clone().exponential_(4), 0.25, 0.25, 0, 9),
        (lambda x: x.clone().geometric_(0.5), 2, 2**0.5, 1, 60),
        (lambda x: x.clone().log_normal_(0, 0.5).log(), 0, 0.5, -5, 5),
        (lambda x: x.clone().cauchy_(1, 2).sub(1).div(2).atan(), 0, torch.pi / 12**0.5, -2, 2),
        (lambda x: torch.randint(2, 6, (40, 50)) + 0 * x, 3.5, 1.25**0.5, 2, 5),
        (lambda x: torch.randint_like(x, 4), 1.5, 1.25**0.5, 0, 3),
        (lambda x: torch.nn.functional.dropout(0 * x + 1, 0.5), 1, 1, 0, 2),
    ],
)
def test_the_distribution(
    function: Callable[..., Any], mean: float, std: float, low: float, high: float
) -> None:
    (got,) = draw(function, X)
    assert got.shape == X.shape
    # 2,000 draws: five standard errors of the mean, and as much for the deviation.
    assert abs(got.mean() - mean) < 5 * std / 2000**0.5
    assert abs(got.std() - std) < 5 * std / 2000**0.5
    assert low <= got.min()
    assert got.max() <= high


def test_each_draw_is_one_of_its_own() -> None:
    # NOTE: onnxruntime 1.19 may seed the first two nodes of a graph alike: they are others here.
    first, second = draw(lambda x: (torch.rand_like(x + 1), torch.rand_like(x + 2)), X)
    assert not np.array_equal(first, second)


def test_a_size_known_at_run_time() -> None:
    shapes = {"tensors": ({0: "rows"},)}
    (got,) = draw(lambda x: torch.rand(x.shape[0], 2) + x[:, :2], X, dynamic_shapes=shapes)
    assert got.shape == (40, 2)


def test_a_permutation() -> None:
    (got,) = draw(lambda x: torch.randperm(50) + 0 * x[0].long(), X)
    assert sorted(got) == list(range(50))


def test_choices_with_weights() -> None:
    weights = torch.tensor([0.0, 1.0, 3.0]).repeat(4000, 1)
    (got,) = draw(lambda w: torch.multinomial(w, 1), weights)
    assert got.shape == (4000, 1)
    assert not (got == 0).any()
    assert abs((got == 2).mean() - 0.75) < 0.04
    (without,) = draw(lambda w: torch.multinomial(w, 2), weights)
    assert (np.sort(without, axis=1) == [1, 2]).all()
    (again,) = draw(lambda w: torch.multinomial(w, 5, replacement=True), weights)
    assert again.shape == (4000, 5)
    assert abs((again == 2).mean() - 0.75) < 0.02


def test_a_range_that_float32_does_not_reach() -> None:
    with pytest.raises(UnsupportedOpError, match="does not reach all integers"):
        draw(lambda x: torch.randint(0, 1 << 30, (3,)) + x[0, :3], X)


def test_the_backend_leaves_them_to_torch() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.rand_like(x) * 2, backend=OrtBackend())
    torch.manual_seed(3)
    got = compiled(X)
    torch.manual_seed(3)
    torch.testing.assert_close(got, torch.rand_like(X) * 2)
