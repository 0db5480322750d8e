"""Attention by our kernels, and by MKL, in the models of a backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter import load, save
from dort_rewriter.kernels.operators import (
    ATTENTION,
    ATTENTION_GRAD,
    MKL_ATTENTION_GRAD,
    TORCH_FLASH,
)
from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.plan import placement
from tests.backends.kernels.test_torch_kernels import Heads, compiled, operators

FLASH_GRAD = f"{TORCH_FLASH}_backward"
OF_ATTENTION = {ATTENTION, ATTENTION_GRAD, MKL_ATTENTION_GRAD, TORCH_FLASH, FLASH_GRAD}


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
    native = native and has_function("gemm_bf16bf16f32_")
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
    by_others = native and dtype is torch.bfloat16
    expected = {TORCH_FLASH, MKL_ATTENTION_GRAD} if by_others else {ATTENTION, ATTENTION_GRAD}
    assert OF_ATTENTION & {*operators(dumped)} == expected


PLACEMENTS: dict[str, tuple[set[str], dict[str, Any]]] = {
    "anywhere": ({ATTENTION, ATTENTION_GRAD}, {}),
    "products by ONNX Runtime": (
        {ATTENTION, ATTENTION_GRAD},
        {"placement": {"aten::mm": "onnxruntime"}},
    ),
    "torch's kernels": (
        {TORCH_FLASH, FLASH_GRAD},
        {"placement": dict.fromkeys(placement.ATTENTION, "torch kernel")},
    ),
    "the gradient by torch's": (
        {ATTENTION, FLASH_GRAD},
        {"placement": {placement.ATTENTION[1]: "torch kernel"}},
    ),
    "ONNX Runtime": (set(), {"placement": dict.fromkeys(placement.ATTENTION, "onnxruntime")}),
    "without our kernels": (set(), {"optimization": {"patterns": "default+onnxruntime"}}),
}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("case", PLACEMENTS)
def test_who_computes_is_for_the_user_to_say(case: str, dumped: Path) -> None:
    expected, options = PLACEMENTS[case]
    model, x = Heads(), torch.randn(2, 40, 32)
    got = gradients(compiled(model, **options), x)
    for a, b in zip(got, gradients(model, x), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert OF_ATTENTION & {*operators(dumped)} == expected


@pytest.mark.parametrize("threads", [1, 2])
def test_short_sequences(threads: int, dumped: Path) -> None:
    """No scores are written, however few there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model, x = Heads(), torch.randn(2, 5, 32)
        with torch.no_grad():
            torch.testing.assert_close(compiled(model)(x), model(x))
    finally:
        torch.set_num_threads(before)
    found = {*operators(dumped)}
    assert ATTENTION in found
    assert not {"Softmax", "MatMul", "FusedMatMul"} & found


def test_a_saved_model(tmp_path: Path) -> None:
    """It attends by our kernel, which calls nothing of MKL."""
    model, x = Heads(), torch.randn(2, 40, 32)
    with torch.no_grad():
        ours = compiled(model)
        expected = ours(x)
        save(ours, tmp_path / "saved", x)
    (path,) = (tmp_path / "saved").glob("*.onnx")
    assert OF_ATTENTION & {n.op_type for n in onnx.load(path).graph.node} == {ATTENTION}
    assert torch.equal(load(tmp_path / "saved")(x), expected)
