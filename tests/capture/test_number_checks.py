"""Functions that look at numbers are traced for files as what they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch

from dort_rewriter import CaptureError, to_onnx

F = torch.nn.functional
COUNTS, WEIGHTS = torch.tensor([1, 2, 3, 1, 1]), torch.tensor([0.5, 1.0, 0.2, 2.0, 1.5])


class Gradient(torch.nn.Module):
    """What a function gives for a tensor, and its gradients."""

    def __init__(self, call: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_()
        found = self.call(x)
        return found, torch.autograd.grad(found.square().sum(), x)[0]


class Plain(Gradient):
    def forward(self, x: torch.Tensor) -> Any:
        return self.call(x)


CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cov": torch.cov,
    "cov of one variable": lambda x: x[0].cov(),
    "cov of one observation": lambda x: torch.cov(x[:, :1]),
    "weighted cov": lambda x: x.cov(fweights=COUNTS, aweights=WEIGHTS, correction=0),
    "weighted cov without bias": lambda x: torch.cov(x, correction=2, aweights=WEIGHTS),
    "corrcoef": torch.corrcoef,
    "corrcoef of one variable": lambda x: x[0].corrcoef(),
    "gaussian": lambda x: F.gaussian_nll_loss(x, x.flip(0), x.square(), full=True),
    "gaussian of rows": lambda x: torch.nn.GaussianNLLLoss(reduction="sum")(
        x, x * 2, x[:, :1].exp()
    ),
    "quantile": lambda x: torch.quantile(x, torch.tensor([0.1, 0.6]), dim=1),
    "nanquantile": lambda x: x.log().nanquantile(0.4, interpolation="midpoint"),
    "many rows": lambda x: torch.linalg.lstsq(x.mT, x.mT[:, :2].cos()).solution,
    "many columns": lambda x: torch.linalg.lstsq(x, x[:, :1].cos(), driver="gelsy").solution,
    "batch": lambda x: torch.linalg.lstsq(x.view(3, 5, 1), x.cos().view(3, 5, 1)).solution,
    "a vector": lambda x: torch.linalg.lstsq(x[:2].mT, x[0].cos()).solution,
    "residuals": lambda x: torch.linalg.lstsq(x.mT, x.mT[:, :2].cos(), driver="gels").residuals,
}


@pytest.mark.alternating
@pytest.mark.filterwarnings("ignore:cov")
@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_those_of_eager_mode(name: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 5)
    kinds = (Gradient,) if "quantile" in name else (Plain, Gradient)  # torch.export of 2.8
    for model in (kind(CALLS[name]) for kind in kinds):
        expected = model(x)
        expected = [expected] if isinstance(expected, torch.Tensor) else expected
        session = onnxruntime.InferenceSession(
            to_onnx(model, (x,)).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(
                torch.from_numpy(a), b.detach(), rtol=1e-3, atol=1e-4, equal_nan=True
            )


def test_all_that_lstsq_returns_has_the_sizes_of_eager_mode() -> None:
    x = torch.randn(2, 4, 2)
    for driver in (None, "gels", "gelsd"):
        model = Plain(
            lambda x, driver=driver: tuple(torch.linalg.lstsq(x, x[..., :1], driver=driver))
        )
        session = onnxruntime.InferenceSession(
            to_onnx(model, (x,)).SerializeToString(), providers=["CPUExecutionProvider"]
        )
        got = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for a, b in zip(got, model(x), strict=True):
            torch.testing.assert_close(torch.from_numpy(a), b, rtol=1e-3, atol=1e-4)


def test_questions_of_a_program_itself_are_refused() -> None:
    with pytest.raises(CaptureError):
        to_onnx(
            Plain(lambda x: x if torch.equal(x.gt(0).any(), x.new_ones(()) > 0) else -x),
            (torch.ones(3),),
        )
