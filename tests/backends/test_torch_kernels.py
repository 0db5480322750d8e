"""torch's own kernels in the models of a backend: when they are chosen, and what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter import OrtBackend, to_onnx
from dort_rewriter.graph.schemas import TORCH_KERNELS

HALVES = [torch.bfloat16, torch.float16]


class Products(torch.nn.Module):
    """Layers whose products are all there are, and one of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(24, 40), torch.nn.Linear(40, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x).relu())
        return torch.baddbmm(y, y @ y.transpose(1, 2), y, beta=0.5, alpha=2)


@pytest.fixture(autouse=True)
def dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the models are written."""
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "model"))
    return tmp_path


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=OrtBackend({"fallback": False, **options}))


def operators(dumped: Path) -> list[str]:
    """The operators of all models."""
    return [n.op_type for path in dumped.glob("*.onnx") for n in onnx.load(path).graph.node]


def chosen(dumped: Path) -> set[str]:
    return set(operators(dumped)) & TORCH_KERNELS


@pytest.mark.usefixtures("silent")
def test_autocast_gives_what_eager_mode_does(dumped: Path) -> None:
    """Bit for bit, forward and backward: the kernels are the same."""
    model, x = Products(), torch.randn(3, 5, 24)
    ours = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected, got = model(x), ours(x)
    assert torch.equal(got, expected)
    weights = list(model.parameters())
    for a, b in zip(
        *(torch.autograd.grad(y.sum(), weights) for y in (expected, got)), strict=True
    ):
        assert torch.equal(a, b)
    assert chosen(dumped) == {"mm", "addmm", "bmm", "baddbmm"}


@pytest.mark.parametrize("dtype", HALVES)
def test_a_model_of_halves(dtype: torch.dtype, dumped: Path) -> None:
    """Weights and inputs are of the type themselves; sizes are symbols."""
    model = Products().to(dtype)
    ours = compiled(model)
    for batch in (3, 4, 6):
        x = torch.randn(batch, 5, 24).to(dtype)
        with torch.no_grad():
            assert torch.equal(ours(x), model(x))
    assert chosen(dumped) == {"mm", "addmm", "bmm", "baddbmm"}


@pytest.mark.parametrize("dtype", HALVES)
def test_transposed_factors_are_not_copied(dtype: torch.dtype, dumped: Path) -> None:
    """They are read as they lie."""
    ours = compiled(lambda a, b: a.t() @ b.t())
    a, b = torch.randn(6, 9).to(dtype), torch.randn(4, 6).to(dtype)
    assert torch.equal(ours(a, b), a.t() @ b.t())
    assert operators(dumped) == ["mm"]


def test_float32_products_stay(dumped: Path) -> None:
    """ONNX Runtime's are as fast."""
    ours = compiled(Products())
    ours(torch.randn(3, 5, 24))
    assert chosen(dumped) == set()


@pytest.mark.parametrize(
    "options",
    [
        {"optimization": {"patterns": "default"}},
        {"optimization": {"patterns": "default+onnxruntime"}},
        {"placement": {"aten::mm": "onnxruntime"}},
    ],
)
def test_a_user_may_choose_otherwise(options: dict[str, Any], dumped: Path) -> None:
    """By the rules, or for an operator."""
    ours = compiled(lambda a, b: a @ b, **options)
    a, b = torch.randn(6, 9).to(torch.bfloat16), torch.randn(9, 4).to(torch.bfloat16)
    torch.testing.assert_close(ours(a, b), a @ b)
    assert chosen(dumped) == set()


def test_a_user_may_ask_for_them(dumped: Path) -> None:
    """Of a type for which they are not chosen."""
    ours = compiled(lambda a, b: a @ b, placement={"aten::mm": "torch kernel"})
    a, b = torch.randn(6, 9), torch.randn(9, 4)
    assert torch.equal(ours(a, b), a @ b)
    assert chosen(dumped) == {"mm"}


@pytest.mark.parametrize("patterns", ["default", "default+onnxruntime+kernels"])
def test_files_have_none(patterns: str) -> None:
    """They are run where there is no torch."""
    model = Products().to(torch.bfloat16)
    args = (torch.randn(3, 5, 24).to(torch.bfloat16),)
    exported = to_onnx(model, args, options={"patterns": patterns})
    assert isinstance(exported, onnx.ModelProto)
    assert not {n.op_type for n in exported.graph.node} & TORCH_KERNELS
