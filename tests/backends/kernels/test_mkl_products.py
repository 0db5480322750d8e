"""Small products of bfloat16 by MKL in the models of a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.plan import placement
from tests.backends.kernels.test_torch_kernels import Products, compiled

pytestmark = pytest.mark.skipif(
    not (has_function("sgemm_") and has_function("gemm_bf16bf16f32_")),
    reason="this torch was built without MKL",
)


@pytest.fixture(autouse=True)
def multiply_by_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor."""
    monkeypatch.setattr(placement, "comes_with_mkl", lambda: True)
    monkeypatch.setattr(placement, "multiplies_bfloat16", lambda: True)


def by_mkl(dumped: Path) -> set[str]:
    """The operators that are told to leave small products to MKL."""
    nodes = [n for path in dumped.glob("*.onnx") for n in onnx.load(path).graph.node]
    return {n.op_type for n in nodes for a in n.attribute if a.name == "small_by_mkl" and a.i}


def step(model: Any, x: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """The result under autocast, and the gradients."""
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    return [y, *torch.autograd.grad(y.sum(), weights)]


@pytest.mark.usefixtures("silent")
def test_a_step_is_as_near_to_float64_as_that_of_eager_mode(dumped: Path) -> None:
    model, x = Products(), torch.randn(30, 5, 24)
    exact = Products().double()
    exact.load_state_dict(model.state_dict())
    weights = list(model.parameters())
    got, expected = step(compiled(model), x, weights), step(model, x, weights)
    y = exact(x.double())
    wanted = [y, *torch.autograd.grad(y.sum(), list(exact.parameters()))]
    for a, b, c in zip(got, expected, wanted, strict=True):
        assert a.dtype == b.dtype
        assert (a - c).norm() <= 1.2 * (b - c).norm()
    assert by_mkl(dumped) == {"mm", "addmm"}


@pytest.mark.parametrize("place", ["torch kernel", "onnxruntime"])
def test_a_user_may_choose_otherwise(place: str, dumped: Path) -> None:
    ours = compiled(lambda a, b: a @ b, placement={"aten::mm": place})
    a, b = torch.randn(6, 9).to(torch.bfloat16), torch.randn(9, 4).to(torch.bfloat16)
    torch.testing.assert_close(ours(a, b), a @ b)
    assert by_mkl(dumped) == set()


def test_processors_without_such_instructions(
    dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "multiplies_bfloat16", lambda: False)
    a, b = torch.randn(6, 9).to(torch.bfloat16), torch.randn(9, 4).to(torch.bfloat16)
    assert torch.equal(compiled(lambda a, b: a @ b)(a, b), a @ b)
    assert by_mkl(dumped) == set()
