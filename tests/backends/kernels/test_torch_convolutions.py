"""Convolutions of bfloat16 by torch's kernels: when they are chosen, and what they give."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter import OrtBackend, to_onnx
from dort_rewriter.plan import placement

KERNELS = {"convolution", "convolution_backward"}


class Images(torch.nn.Module):
    """Convolutions of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
            torch.nn.GELU(),
            torch.nn.ConvTranspose2d(16, 8, 2, stride=2),
            torch.nn.Conv2d(8, 4, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=OrtBackend({"fallback": False, **options}))


def nodes(dumped: Path) -> list[onnx.NodeProto]:
    return [n for path in dumped.glob("*.onnx") for n in onnx.load(path).graph.node]


def operators(dumped: Path) -> set[str]:
    return {n.op_type for n in nodes(dumped)}


def steps(tensor: torch.Tensor) -> list[int]:
    """Those that are taken: along a size of one there is none."""
    return [n for n, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def step(model: Any, x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """The result and the gradients of a training step under autocast."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype):
        y = model(x)
    y.float().square().mean().backward()
    return [y.detach(), x.grad, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.skipif(
    not placement.convolves_bfloat16(), reason="oneDNN has no bfloat16 on this processor"
)
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_autocast_gives_what_eager_mode_does(last: bool, dumped: Path) -> None:
    """In training and inference, wherever the channels lie."""
    model, x = Images(), torch.randn(4, 3, 12, 12)
    if last:
        model, x = (m.to(memory_format=torch.channels_last) for m in (model, x))
    expected = step(model, x, torch.bfloat16)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.fill_("var" in name)
    got = step(compiled(model), x, torch.bfloat16)
    for a, b in zip(got, expected, strict=True):
        scale = b.abs().max()
        assert (a.dtype, steps(a)) == (b.dtype, steps(b))
        torch.testing.assert_close(a / scale, b / scale, rtol=0, atol=2e-2)
    found = nodes(dumped)
    types = {n.op_type for n in found}
    assert types >= KERNELS
    assert not {"Conv", "ConvTranspose"} & types
    given = {a.name for n in found if n.op_type == "convolution" for a in n.attribute}
    assert ("order0" in given) is last  # images are written as they lie
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(model)(x), model(x), rtol=2e-2, atol=2e-2)


def test_it_depends_on_the_processor(dumped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own loops for bfloat16 are slow."""
    for there in (True, False):
        monkeypatch.setattr(placement, "convolves_bfloat16", lambda there=there: there)
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            compiled(torch.nn.Conv2d(3, 40, 3))(torch.randn(1, 3, 8, 8))
        found = operators(dumped)
        assert ("convolution" in found, "DirectConv" in found) == (True, not there)


@pytest.mark.skipif(
    not placement.convolves_bfloat16(), reason="oneDNN has no bfloat16 on this processor"
)
def test_gradients_that_nobody_asks_for_are_not_made(dumped: Path) -> None:
    """That of the image which a first layer reads, and that of a bias that is not there."""
    layer, x = torch.nn.Conv2d(3, 16, 3, bias=False).bfloat16(), torch.randn(2, 3, 9, 9).bfloat16()
    expected = torch.autograd.grad(layer(x).float().square().sum(), layer.weight)
    got = torch.autograd.grad(compiled(layer)(x).float().square().sum(), layer.weight)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
    (node,) = (n for n in nodes(dumped) if n.op_type == "convolution_backward")
    assert [bool(name) for name in node.output][:3] in ([False, True], [False, True, False])


CHOICES: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "float16, for which torch has slow loops": (torch.float16, {}),
    "by ONNX Runtime": (torch.bfloat16, {"placement": {"aten::convolution": "onnxruntime"}}),
    "without our kernels": (torch.bfloat16, {"optimization": {"patterns": "default"}}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_others_stay(case: str, dumped: Path) -> None:
    dtype, options = CHOICES[case]
    autocast = dtype != torch.float32
    with torch.autocast("cpu", dtype) if autocast else contextlib.nullcontext(), torch.no_grad():
        compiled(torch.nn.Conv2d(3, 4, 3), **options)(torch.randn(1, 3, 8, 8))
    assert operators(dumped) & {"Conv", "DirectConv"}
    assert not KERNELS & operators(dumped)


@pytest.mark.skipif(
    not placement.convolves_bfloat16(), reason="oneDNN has no bfloat16 on this processor"
)
@pytest.mark.parametrize("bias", [True, False])
def test_windows_of_one_element_are_products(bias: bool, dumped: Path) -> None:
    """Where they are worth it; channels that are last are read as they lie."""
    name = "baddbmm" if bias else "bmm"
    large = torch.randn(6, 64, 16, 15)
    cases: list[tuple[str, dict[str, Any], torch.Tensor]] = [
        (name, {}, large),
        ("convolution", {}, large.to(memory_format=torch.channels_last)),
        ("Conv", {"stride": 2}, large),
        ("Conv", {}, torch.randn(400, 64, 3, 3)),  # few pixels
        ("Conv", {}, torch.randn(1, 64, 6, 6)),  # little work
    ]
    for expected, how, x in cases:
        layer = torch.nn.Conv2d(64, 96, 1, bias=bias, **how).bfloat16()
        for path in dumped.glob("*.onnx"):
            path.unlink()
        got = compiled(layer)
        for image in (x, x[:3]):
            narrow = image.bfloat16().requires_grad_()
            leaves = [narrow, *layer.parameters()]
            for a, b in zip(
                *(torch.autograd.grad(f(narrow).float().square().sum(), leaves)
                  for f in (got, layer)),
                strict=True,
            ):  # fmt: skip
                scale = b.abs().max()
                torch.testing.assert_close(a / scale, b / scale, rtol=0, atol=2e-2)
            torch.testing.assert_close(got(narrow), layer(narrow), rtol=2e-2, atol=2e-2)
        found = operators(dumped)
        assert expected in found
        assert ({"bmm", "mm"} <= found) is (expected == name)  # their gradients


@pytest.mark.parametrize("frozen", [False, True])
def test_large_ones_of_float32(
    frozen: bool, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the batch norm and the sum behind them; torch computes their gradients."""
    monkeypatch.setattr(placement, "_convolves_float32", lambda: True)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False)
            self.norm = torch.nn.BatchNorm2d(256)
            self.small = torch.nn.Conv2d(256, 8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.small(torch.relu(self.norm(self.large(x)) + x))

    model, x = Block(), torch.randn(4, 256, 4, 4)
    model.eval()
    with torch.no_grad():
        got = compiled(model, freeze=frozen)(x)
        torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
    found = operators(dumped)
    assert ("DirectConv" in found) is not frozen
    if not frozen:
        assert "Conv" in found
        model, x = model.train(), torch.randn(4, 256, 9, 8)
        expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        y = compiled(model)(x)
        for a, b in zip(
            torch.autograd.grad(y.square().sum(), list(model.parameters())), expected, strict=True
        ):
            torch.testing.assert_close(a / b.abs().max(), b / b.abs().max(), rtol=0, atol=1e-5)
        assert operators(dumped) >= {"DirectConv", "convolution_backward"}


def test_a_user_may_ask_for_them(dumped: Path) -> None:
    """In float32, where they are eager mode's bit for bit."""
    asked = dict.fromkeys(("aten::convolution", "aten::convolution_backward"), "torch kernel")
    layer, x = torch.nn.Conv1d(4, 6, 3), torch.randn(2, 4, 9)
    got = compiled(layer, placement=asked)
    assert torch.equal(got(x), layer(x))
    (of_weight,) = torch.autograd.grad(got(x).sum(), layer.weight)
    torch.testing.assert_close(of_weight, torch.autograd.grad(layer(x).sum(), layer.weight)[0])
    assert operators(dumped) >= KERNELS


def test_sizes_that_vary(dumped: Path) -> None:
    """The batch and the image; with a filter for each channel, whose number is symbolic too."""

    def smooth(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, padding=1, groups=w.shape[0])

    with torch.no_grad():
        function = torch.compile(smooth, backend=OrtBackend(), dynamic=True)
        layer = torch.nn.Conv2d(3, 4, 3).bfloat16()
        model = torch.compile(layer, backend=OrtBackend({"fallback": False}), dynamic=True)
        for n in (2, 5):
            x, w = torch.randn(n, n + 1, 8, 7).bfloat16(), torch.randn(n + 1, 1, 3, 3).bfloat16()
            torch.testing.assert_close(function(x, w), smooth(x, w), rtol=2e-2, atol=2e-2)
            image = torch.randn(n, 3, 6 + n, 8).bfloat16()
            torch.testing.assert_close(model(image), layer(image), rtol=2e-2, atol=2e-2)


def test_files_have_none() -> None:
    """A model that runs elsewhere has no torch."""
    model = to_onnx(torch.nn.Conv2d(3, 4, 3).bfloat16(), (torch.randn(1, 3, 8, 8).bfloat16(),))
    assert not [n for n in model.graph.node if n.domain == "dort_rewriter"]
