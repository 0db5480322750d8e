"""Weights of products in 8 and 4 bits: which, how near, and what is said without a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import OptionError, OrtBackend, explain
from dort_rewriter.runtime.kernel_query import BITS, has_low_bit_products

NEAR = {"int8": 0.02, "int4": 0.15}
"""How far a layer may be: steps of 1/127 and 1/8 of the largest number of a block, uniformly."""

HERE = [w for w, bits in BITS.items() if has_low_bit_products(bits)]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def error(given: torch.Tensor, expected: torch.Tensor) -> float:
    return float((given - expected).norm() / expected.norm())


def compiled_with(weights: str, module: Any, **options: Any) -> tuple[Any, OrtBackend]:
    backend = OrtBackend({"freeze": True, "weights": weights, "fallback": False, **options})
    return torch.compile(module, backend=backend), backend


class Ways(nn.Module):
    """A product in each way it is written."""

    def __init__(self, inner: int = 128) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, 160)
        self.plain = nn.Linear(160, inner, bias=False)
        self.matrix = nn.Parameter(torch.randn(inner, 144) / inner**0.5)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x)
        z = self.plain(y.relu())
        return y, z, z @ self.matrix, torch.matmul(x * 2, self.matrix) * 0.5


def test_a_kernel_is_there() -> None:
    """Each of the tested versions has one for 4 bits."""
    assert "int4" in HERE


@torch.no_grad()
@pytest.mark.parametrize("weights", HERE)
@pytest.mark.parametrize("shape", [(1, 128), (7, 128), (2, 3, 128), (0, 128)])
def test_results_are_near(weights: str, shape: tuple[int, ...]) -> None:
    module = Ways().eval()
    compiled, _ = compiled_with(weights, module)
    x = torch.randn(shape)
    for given, expected in zip(compiled(x), module(x), strict=True):
        assert given.shape == expected.shape
        if expected.numel():
            assert 1e-4 < error(given, expected) < 2 * NEAR[weights]


@torch.no_grad()
@pytest.mark.parametrize("weights", HERE)
@pytest.mark.parametrize("inner", [129, 160, 255])
def test_columns_of_any_length(weights: str, inner: int) -> None:
    """A last block that is not full."""
    module = Ways(inner).eval()
    compiled, _ = compiled_with(weights, module)
    x = torch.randn(5, inner)
    for given, expected in zip(compiled(x), module(x), strict=True):
        assert error(given, expected) < 2 * NEAR[weights]


@torch.no_grad()
@pytest.mark.parametrize("weights", HERE)
def test_numbers_that_fit_are_exact(weights: str) -> None:
    """Weights of few whole numbers, rows of ones: nothing is rounded."""
    module = nn.Linear(128, 128, bias=False).eval()
    module.weight.copy_(torch.randint(-7, 8, (128, 128)))
    module.weight[:, ::32] = -8
    compiled, _ = compiled_with(weights, module)
    x = torch.ones(3, 128)
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-3, atol=1e-3)
    zeros = nn.Linear(128, 128).eval()
    zeros.weight.zero_()
    compiled, _ = compiled_with(weights, zeros)
    torch.testing.assert_close(compiled(x), zeros(x))


class Tied(nn.Module):
    """A table whose rows are looked up, and multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(200, 128)
        self.small = nn.Linear(128, 8)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.table(ids)
        return (
            x,
            x @ self.table.weight.t(),
            self.small(x),
            x.double() @ torch.ones(128, 200).double(),
        )


@torch.no_grad()
@pytest.mark.parametrize("weights", HERE)
def test_what_is_left_alone(weights: str) -> None:
    """Tables, small weights and other types give what they gave."""
    module = Tied().eval()
    compiled, _ = compiled_with(weights, module)
    ids = torch.tensor([[1, 5, 199]])
    looked_up, product, small, double = compiled(ids)
    expected = module(ids)
    assert torch.equal(looked_up, expected[0])
    assert 1e-4 < error(product, expected[1]) < NEAR[weights]
    torch.testing.assert_close(small, expected[2])
    torch.testing.assert_close(double, expected[3])


@torch.no_grad()
@pytest.mark.parametrize("weights", HERE)
def test_a_weight_that_changes_is_noticed(weights: str) -> None:
    module = nn.Linear(128, 128).eval()
    compiled, _ = compiled_with(weights, module)
    x = torch.randn(4, 128)
    before = compiled(x)
    module.weight.mul_(-2)
    assert error(compiled(x), module(x)) < NEAR[weights]
    assert error(before, module(x)) > 1


@torch.no_grad()
def test_what_verifies_all_models_leaves_these_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORT_VERIFY", "1")
    module, x = Ways().eval(), torch.randn(4, 128)
    compiled, _ = compiled_with("int4", module)
    assert error(compiled(x)[0], module(x)[0]) > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("weights", HERE)
def test_training_is_left_in_float32(weights: str) -> None:
    module = nn.Linear(128, 128)
    compiled, _ = compiled_with(weights, module)
    x = torch.randn(4, 128)
    with torch.enable_grad():
        torch.testing.assert_close(compiled(x), module(x))


@torch.no_grad()
@pytest.mark.parametrize("weights", HERE)
def test_a_saved_model_is_small(weights: str, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    compiled, _ = compiled_with(weights, module)
    x = torch.randn(3, 256)
    expected = compiled(x)
    dort_rewriter.save(compiled, tmp_path)
    assert torch.equal(dort_rewriter.load(tmp_path)(x), expected)
    wide = sum(p.nbytes for p in module.parameters())
    stored = sum(f.stat().st_size for f in tmp_path.iterdir())
    assert stored < wide * (BITS[weights] + 1.5) / 32 + 20_000


@pytest.mark.parametrize("weights", HERE)
def test_explain_says_how_far_it_is(weights: str) -> None:
    module, x = Ways().eval(), torch.randn(4, 128)
    options = {"freeze": True, "weights": weights}
    with torch.no_grad():
        found = explain(module, x, backend_options=options)
    assert found.low_bits is not None
    assert found.low_bits.products == 4
    assert 1e-4 < found.low_bits.weight_error < NEAR[weights]
    assert 1e-4 < found.low_bits.result_error < 2 * NEAR[weights]
    assert f"weights='{weights}': 4 products; error of the weights up to" in str(found)
    with torch.no_grad():
        small = explain(nn.Linear(4, 2), torch.randn(3, 4), backend_options=options)
    assert "no product has a constant weight large enough" in str(small)


def test_without_freeze_it_is_refused() -> None:
    with pytest.raises(OptionError, match="goes with freeze=True"):
        OrtBackend({"weights": "int8"})
    with pytest.raises(OptionError, match="verify compares"):
        OrtBackend({"weights": "int8", "freeze": True, "verify": True})
    with pytest.raises(OptionError, match="weights of OrtBackendOptions is one of 'int8', 'int4'"):
        OrtBackend({"weights": "int2", "freeze": True})


def test_without_a_kernel_it_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a call, and by ``save`` without one."""
    monkeypatch.setattr(
        "dort_rewriter.runtime.kernel_query.has_low_bit_products", lambda bits: bits == 4
    )
    compiled, _ = compiled_with("int8", nn.Linear(128, 128).eval())
    x = torch.randn(2, 128)
    with pytest.raises(OptionError, match=r"no kernel for products by weights of 8 bits.*int4"):
        compiled(x)
    with pytest.raises(OptionError, match=r"no kernel for products by weights of 8 bits.*int4"):
        dort_rewriter.save(compiled, tmp_path, x)
    assert not list(tmp_path.iterdir())
