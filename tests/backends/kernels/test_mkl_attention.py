"""Gradients of attention by MKL in the models of a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dort_rewriter.kernels.operators import MKL_ATTENTION_GRAD, TORCH_FLASH
from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.plan import placement
from dort_rewriter.plan.placement import FLASH_BACKWARD
from tests.backends.kernels.test_torch_kernels import Heads, compiled, operators

pytestmark = pytest.mark.skipif(
    not (has_function("sgemm_") and has_function("gemm_bf16bf16f32_")),
    reason="this torch was built without MKL",
)


@pytest.fixture(autouse=True)
def multiply_by_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor."""
    monkeypatch.setattr(placement, "comes_with_mkl", lambda: True)
    monkeypatch.setattr(placement, "OTHER_MAKERS_SCORES", 0)


def gradients(model: Any, *args: Any) -> list[torch.Tensor]:
    weights = list(model.parameters())
    return list(torch.autograd.grad(model(*args).square().sum(), weights))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("kind", ["full", "causal", "mask", "numbers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_training(
    dtype: torch.dtype, kind: str, native: bool, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As near to float64 as eager mode; sizes are symbols at last."""
    monkeypatch.setattr(placement, "multiplies_bfloat16", lambda: native)
    model = Heads().to(dtype)
    exact = Heads().double()
    exact.load_state_dict(model.state_dict())
    ours = compiled(model)
    for length in (40, 57, 43):
        x = torch.randn(2, length, 32).to(dtype)
        masks = {
            "mask": torch.rand(2, 1, length, length) > 0.3,
            "numbers": torch.randn(length, length).to(dtype),
        }
        mask, causal = masks.get(kind), kind == "causal"
        wide = mask.double() if mask is not None and mask.is_floating_point() else mask
        given = gradients(ours, x, mask, causal), gradients(model, x, mask, causal)
        for a, b, c in zip(*given, gradients(exact, x.double(), wide, causal), strict=True):
            assert (a - c).norm() <= 1.5 * (b - c).norm() + 5e-7 * c.norm()
    assert MKL_ATTENTION_GRAD in operators(dumped)
    assert f"{TORCH_FLASH}_backward" not in operators(dumped)


PLACEMENTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "anywhere": (True, {}),
    "products by ONNX Runtime": (True, {"placement": {"aten::mm": "onnxruntime"}}),
    "torch's kernel": (False, {"placement": {FLASH_BACKWARD: "torch kernel"}}),
    "ONNX Runtime": (False, {"placement": {FLASH_BACKWARD: "onnxruntime"}}),
    "without our kernels": (False, {"optimization": {"patterns": "default+onnxruntime"}}),
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("case", PLACEMENTS)
def test_who_computes_is_for_the_user_to_say(case: str, dumped: Path) -> None:
    expected, options = PLACEMENTS[case]
    model, x = Heads(), torch.randn(2, 40, 32)
    got = gradients(compiled(model, **options), x)
    for a, b in zip(got, gradients(model, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert (MKL_ATTENTION_GRAD in operators(dumped)) is expected


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("trains", [False, True])
def test_short_sequences_with_two_threads(trains: bool, dumped: Path) -> None:
    """Attention in float32 makes its scores, unless there is a gradient, which MKL computes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        model, x = Heads(), torch.randn(2, 40, 32)
        ours = compiled(model)
        with torch.set_grad_enabled(trains):
            y = ours(x)
        torch.testing.assert_close(y, model(x))
        if trains:
            y.sum().backward()
    finally:
        torch.set_num_threads(threads)
    assert (TORCH_FLASH in operators(dumped)) is trains
    assert (MKL_ATTENTION_GRAD in operators(dumped)) is trains
