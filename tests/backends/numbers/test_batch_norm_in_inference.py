"""Batch normalization with running statistics, between convolutions and poolings."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch

from dort_rewriter import OrtBackend
from dort_rewriter.plan import placement


def _layers() -> torch.nn.Sequential:
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Conv2d(16, 8, 3), torch.nn.MaxPool2d(2),
    ).eval()  # fmt: skip
    with torch.no_grad():
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(layers[1], name).uniform_()
    return layers


def _operators(folder: Path) -> set[str]:
    (path,) = folder.glob("model*.onnx")
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_part_of_what_is_around_it(dtype: torch.dtype, dumped: Path) -> None:
    """No pass of its own from a convolution to the next pooling: it is part of the convolution
    where that is ours, takes the Relu with it where it is torch's, and has no casts around it."""
    layers, x = _layers(), torch.randn(4, 3, 64, 64)
    compiled = torch.compile(layers, backend=OrtBackend({"fallback": False}))
    autocast = torch.autocast("cpu", dtype, enabled=dtype is not torch.float32)
    with torch.no_grad(), autocast:
        expected, got = layers(x), compiled(x)
    # A unit of bfloat16 in what a convolution sums; sums of float32 in another order.
    tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    found = {"BatchNormalization", "BatchNormInference", "Relu", "Cast"} & _operators(dumped)
    is_torchs = dtype is torch.bfloat16 and placement.multiplies_bfloat16()
    assert found == ({"BatchNormInference"} if is_torchs else set())


def test_frozen_weights_take_it(dumped: Path) -> None:
    layers, x = _layers(), torch.randn(4, 3, 64, 64)
    compiled = torch.compile(layers, backend=OrtBackend({"fallback": False, "freeze": True}))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layers(x), rtol=1e-5, atol=1e-5)
    assert "BatchNormalization" in _operators(dumped)  # which onnxruntime puts into the weights
    assert "Reciprocal" not in _operators(dumped)
    assert "Elementwise" not in _operators(dumped)


def test_statistics_that_change_count() -> None:
    """Nothing of them is kept from one call to the next."""
    layers, x = _layers(), torch.randn(4, 3, 64, 64)
    compiled = torch.compile(layers, backend=OrtBackend({"fallback": False}))
    with torch.no_grad():
        compiled(x)
        layers[1].running_mean.add_(1)
        layers[1].running_var.mul_(3)
        torch.testing.assert_close(compiled(x), layers(x), rtol=1e-5, atol=1e-5)
