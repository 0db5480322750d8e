"""Models whose operators are all decomposed, down to torch's primitive ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dort_rewriter import CaptureError, to_onnx

torch.manual_seed(0)
X = torch.linspace(-3, 3, 48).view(2, 3, 8)
IMAGE = torch.linspace(-2, 2, 2 * 3 * 8 * 8).sin().view(2, 3, 8, 8)
WHOLE = torch.arange(-24, 24).view(2, 3, 8)


def _writes(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[0:1] = 0.0
    y[:, 1].add_(2)
    return y


def _writes_mask(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[x > 0] = -1.0
    return y


Program = Callable[[torch.Tensor], Any]

POINTWISE: dict[str, Program] = {
    "floor divide": lambda x: (x // 0.7, x // x.flip(0), x.long() // 2),
    "div floor": lambda x: torch.div(x, 0.7, rounding_mode="floor"),
    "div trunc": lambda x: torch.div(x, 0.7, rounding_mode="trunc"),
    "remainder": lambda x: (x % 0.7, torch.fmod(x, 0.7)),
    "copysign": lambda x: (torch.copysign(x, x.flip(0)), torch.copysign(x, -1.0)),
    "signbit": lambda x: torch.signbit(torch.cat([x, torch.tensor([[[0.0, -0.0] * 4]] * 2)], 1)),
    "signbit of integers": lambda x: torch.signbit(x.long()),
    "power": lambda x: (x.abs() ** 1.5, x**2, x**3, x.abs() ** 0.5, x.abs() ** -0.5, 2.0**x),
    "power of tensors": lambda x: torch.pow(x.abs(), x),
    "power of integers": lambda x: (x.long() ** 2, x.long().abs() ** torch.tensor(3)),
    "float power": lambda x: torch.float_power(x.abs(), 1.5).float(),
    "roots": lambda x: (x.abs().sqrt(), (x.abs() + 1).rsqrt(), x.square()),
    "exponentials": lambda x: (x.exp(), x.exp2(), x.expm1(), x.abs().log1p(), x.sigmoid()),
    "logarithms": lambda x: (
        (x.abs() + 1).log2(),
        (x.abs() + 1).log10(),
        torch.logit(x / 8 + 0.5),
    ),
    "trigonometry": lambda x: (
        x.sin(),
        x.cos(),
        x.tan(),
        x.atan(),
        x.sinc(),
        torch.atan2(x, x + 1),
    ),
    "hyperbolic": lambda x: (
        x.sinh(),
        x.tanh(),
        x.asinh(),
        (x / 4).atanh(),
        (x.abs() + 1).acosh(),
    ),
    "error functions": lambda x: (x.erf(), x.erfc(), (x / 4).erfinv(), torch.special.ndtr(x)),
    "gamma functions": lambda x: ((x.abs() + 1).lgamma(), (x.abs() + 1).digamma()),
    "rounding": lambda x: (
        x.floor(),
        x.ceil(),
        x.round(),
        x.trunc(),
        x.frac(),
        x.round(decimals=1),
    ),
    "signs": lambda x: (x.sign(), x.abs(), x.neg(), x.sgn(), torch.heaviside(x, x + 1)),
    "clamping": lambda x: (x.clamp(-1, 1), x.clamp_min(0.5), torch.clamp(x, x - 1, x + 0.1)),
    "comparisons": lambda x: (
        x > 0,
        x == x.flip(0),
        torch.isclose(x, x + 1e-9),
        x.isnan(),
        x.isinf(),
    ),
    "extremes": lambda x: (torch.maximum(x, -x), torch.fmin(x, -x), torch.hypot(x, x + 1)),
    "logic": lambda x: (
        (x > 0) & (x < 1),
        (x > 0) ^ (x < 1),
        torch.logical_not(x),
        x.logical_or(x),
    ),
    "bits": lambda x: (x.long() << 2, x.long() >> 1, x.long() & 5, ~x.long()),
    "where": lambda x: (torch.where(x > 0, x, 0.0), x.masked_fill(x > 1, 7.0), x.nan_to_num()),
    "composed": lambda x: (
        torch.lerp(x, -x, 0.3),
        torch.addcmul(x, x, x),
        torch.addcdiv(x, x, x.abs() + 1),
    ),
    "xlogy": lambda x: (torch.xlogy(x.abs(), x.abs() + 1), torch.special.xlog1py(x, x.abs())),
    "casts": lambda x: (x.long(), x.bool(), x.double().float(), x.to(torch.int8)),
}
ACTIVATIONS: dict[str, Program] = {
    "rectified": lambda x: (x.relu(), F.relu6(x), F.leaky_relu(x), F.elu(x), F.celu(x), F.selu(x)),
    "smooth": lambda x: (
        F.gelu(x),
        F.gelu(x, approximate="tanh"),
        F.silu(x),
        F.mish(x),
        F.softplus(x),
    ),
    "hard": lambda x: (
        F.hardtanh(x),
        F.hardsigmoid(x),
        F.hardswish(x),
        F.hardshrink(x),
        F.softshrink(x),
    ),
    "gated": lambda x: (
        F.glu(x),
        F.logsigmoid(x),
        F.threshold(x, 0.5, 2.0),
        F.prelu(x, x[0, :, 0]),
    ),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(1), x.logsumexp(1), F.softmin(x, 0)),
}
REDUCTIONS: dict[str, Program] = {
    "sums": lambda x: (x.sum(), x.sum(1), x.mean(-1), x.prod(1), x.nansum(), x.nanmean(0)),
    "spread": lambda x: (x.var(1), x.std(), torch.var_mean(x, 0, correction=0)),
    "largest": lambda x: (x.amax(1), x.max(1), x.min(), x.argmax(1), x.aminmax(dim=0)),
    "truth": lambda x: ((x > 0).any(), (x > 0).all(1), x.count_nonzero(1)),
    "norms": lambda x: (
        x.norm(),
        x.norm(dim=1),
        torch.linalg.vector_norm(x, 1),
        F.normalize(x, dim=1),
    ),
    "running": lambda x: (x.cumsum(1), x.cumprod(1), x.cummax(1), x.logcumsumexp(1), x.diff()),
    "ordered": lambda x: (x.sort(1), x.topk(2), x.median(1), x.kthvalue(2)),
    "distances": lambda x: (
        torch.cdist(x, x + 1),
        F.cosine_similarity(x, x + 1),
        torch.dist(x, -x),
    ),
}
MOVING: dict[str, Program] = {
    "writes": _writes,
    "writes where": _writes_mask,
    "scatter slices": lambda x: (
        torch.slice_scatter(x, x[:, :1] * 0, 1, 0, 1),
        torch.select_scatter(x, x[0] * 2, 0, 1),
    ),
    "scatter": lambda x: (
        x.scatter(1, x.long().abs() % 3, 1.0),
        x.scatter_add(1, x.long().abs() % 3, x),
    ),
    "index": lambda x: (
        x[:, [0, 2]],
        x[..., ::2],
        x[x[:, 0, 0] > 0],
        x.index_select(1, torch.tensor([2, 0])),
    ),
    "index writes": lambda x: (
        x.index_fill(1, torch.tensor([1]), 3.0),
        x.index_add(1, torch.tensor([1]), x[:, :1]),
    ),
    "gather": lambda x: (
        x.gather(1, x.long().abs() % 3),
        torch.take_along_dim(x, x.argsort(1), 1),
    ),
    "bucketize": lambda x: (torch.bucketize(x, x[0, 0]), torch.searchsorted(x[0, 0], x)),
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, -1, 0, 1), value=2.0)),
    "pad reflect": lambda x: (
        F.pad(x, (1, 2), mode="reflect"),
        F.pad(x, (1, 2), mode="replicate"),
        F.pad(x, (1, 2), mode="circular"),
    ),
    "views": lambda x: (
        x.view(6, 8),
        x.reshape(-1),
        x.permute(2, 0, 1),
        x.mT,
        x.unsqueeze(1),
        x.flatten(1),
    ),
    "expanded": lambda x: (
        x[:, :1].expand(2, 4, 8),
        x.repeat(1, 2, 1),
        x.repeat_interleave(2, 1),
        x.tile(2),
    ),
    "turned": lambda x: (x.flip(1), x.roll(1, 2), x.rot90(), x.narrow(1, 1, 2), x.movedim(0, 1)),
    "cut": lambda x: (*x.split(2, 1), *x.chunk(2, -1), *x.unbind(1), *x.tensor_split(2, 1)),
    "joined": lambda x: (torch.cat([x, x]), torch.stack([x, x], 1), torch.block_diag(x[0], x[1])),
    "diagonals": lambda x: (
        x.tril(),
        x.triu(1),
        x.diagonal(0, 1, 2),
        torch.diag_embed(x),
        x[0].trace(),
    ),
    "windows": lambda x: (x.unfold(2, 3, 2), x.as_strided((2, 3), (8, 1))),
    "made": lambda x: (
        torch.arange(3),
        torch.linspace(0, 1, 5),
        torch.eye(3),
        torch.zeros_like(x),
        x.new_full((2,), 3.0),
        torch.tril_indices(3, 3),
    ),
    "one hot": lambda x: (F.one_hot(x.long().abs() % 3, 3),),
}
ALGEBRA: dict[str, Program] = {
    "products": lambda x: (
        x @ x.mT,
        torch.bmm(x, x.mT),
        torch.einsum("bij,bkj->bik", x, x),
        torch.outer(x[0, 0], x[0, 1]),
    ),
    "products and sums": lambda x: (
        torch.baddbmm(x @ x.mT, x, x.mT),
        torch.addmm(x[0], x[0], torch.eye(8)),
        torch.addmv(x[0, :, 0], x[0], x[0, 0]),
        torch.addr(x[0], x[0, :, 0], x[0, 0]),
    ),
    "more products": lambda x: (
        torch.kron(x[0], x[1]),
        torch.cross(x, x + 1, dim=1),
        torch.tensordot(x, x, ([1, 2], [1, 2])),
        torch.vdot(x[0, 0], x[0, 1]),
    ),
    "attention": lambda x: F.scaled_dot_product_attention(
        x[None], x[None] + 1, x[None], is_causal=True
    ),
    "statistics": lambda x: (torch.trapezoid(x), torch.std_mean(x, 1), x.std(2)),
    "matrix norms": lambda x: (
        torch.linalg.matrix_norm(x),
        torch.linalg.norm(x[0], 1),
        x.renorm(2, 0, 1.0),
    ),
}
SPECIAL: dict[str, Program] = {
    "adding exponentials": lambda x: (
        torch.logaddexp(x, -x),
        torch.logaddexp2(x, -x),
        x.logcumsumexp(0),
    ),
    "special": lambda x: (
        torch.i0(x),
        torch.special.erfcx(x.abs()),
        torch.special.entr(x.abs()),
        torch.mvlgamma(x.abs() + 2, 2),
    ),
    "scaled": lambda x: (
        torch.ldexp(x, x.long()),
        x.deg2rad(),
        x.rad2deg(),
        torch.rsub(x, 2),
        torch.true_divide(x, 2),
    ),
    "frexp": torch.frexp,
    "divisors": lambda x: (
        torch.gcd(x.long() * 6, x.long() + 4),
        torch.lcm(x.long() * 6, x.long() + 4),
    ),
    "in": lambda x: (
        torch.isin(x.long(), torch.tensor([1, 2])),
        torch.isposinf(x),
        torch.isneginf(x),
        x.isfinite(),
        x.isreal(),
    ),
    "chosen": lambda x: (
        x.masked_select(x > 0),
        x.nonzero(),
        torch.argwhere(x > 2),
        x.take(torch.tensor([1, 5])),
    ),
    "placed": lambda x: (
        x.index_copy(1, torch.tensor([1]), x[:, :1]),
        x.masked_scatter(x > 0, -x),
        x.put(torch.tensor([1, 2]), torch.tensor([3.0, 4.0])),
    ),
    "reduced places": lambda x: (
        x.scatter_reduce(1, x.long().abs() % 3, x, "amax"),
        x.scatter_reduce(1, x.long().abs() % 3, x, "mean"),
    ),
    "grids": lambda x: (
        *torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"),
        torch.cartesian_prod(x[0, 0], x[0, 1]),
        torch.vander(x[0, 0]),
    ),
    "without dropout": lambda x: (
        F.dropout(x, 0.5, False),
        F.alpha_dropout(x, 0.5, False),
        F.softsign(x),
        F.tanhshrink(x),
    ),
    "channels": lambda x: (
        F.channel_shuffle(x[..., None].repeat(1, 2, 1, 1), 2),
        F.pixel_shuffle(x.view(1, 4, 3, 4), 2),
    ),
    "sampled": lambda x: F.grid_sample(
        x.view(1, 1, 6, 8),
        F.affine_grid(torch.eye(2, 3)[None] * 0.7, [1, 1, 3, 4], align_corners=False),
        align_corners=False,
    ),
    "resized": lambda x: (
        F.interpolate(x, size=5),
        F.interpolate(x, scale_factor=1.5, mode="linear"),
        F.interpolate(x[None], scale_factor=0.5, mode="area"),
    ),
    "average of windows": lambda x: (
        F.avg_pool1d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        F.lp_pool1d(x.abs(), 2, 2),
    ),
    "tiles": lambda x: (
        torch.broadcast_to(x[:, :1], (2, 4, 8)),
        torch.hstack([x, x]),
        torch.dstack([x, x]),
        x.swapaxes(0, 1),
        x.ravel(),
    ),
    "updates": lambda x: (
        x.clone().fill_(2.0),
        x.clone().zero_(),
        x.clone().masked_fill_(x > 0, 1.0),
        x.clone().relu_(),
    ),
    "diagonal writes": lambda x: (
        torch.diagonal_scatter(x[0, :, :3], x[0, 0, :3]),
        x[0].clone().fill_diagonal_(2.0),
    ),
    "made of numbers": lambda x: (
        torch.full((2, x.shape[1]), 1.5),
        torch.logspace(0, 1, 4),
        torch.ones(2, dtype=torch.int32),
        torch.triu_indices(3, 3),
        torch.hann_window(4),
    ),
}
LOSSES: dict[str, Program] = {
    "squared": lambda x: (
        F.mse_loss(x, x * 2),
        F.l1_loss(x, x * 2),
        F.smooth_l1_loss(x, x * 2),
        F.huber_loss(x, x * 2),
    ),
    "cross entropy": lambda x: F.cross_entropy(x[0].t(), torch.arange(8) % 3, label_smoothing=0.1),
    "classes": lambda x: (
        F.nll_loss(x[0], torch.arange(3)),
        F.kl_div(x, x.softmax(-1), reduction="batchmean"),
    ),
    "logits": lambda x: (
        F.binary_cross_entropy_with_logits(x, x.sigmoid()),
        F.binary_cross_entropy(x.sigmoid(), (x > 0).float()),
    ),
    "margins": lambda x: (
        F.soft_margin_loss(x, x.sign()),
        F.hinge_embedding_loss(x, x.sign()),
        F.multilabel_margin_loss(x[0], x[0].long() * 0),
    ),
}
PROGRAMS = {**POINTWISE, **ACTIVATIONS, **REDUCTIONS, **MOVING, **ALGEBRA, **SPECIAL, **LOSSES}

MODULES: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "Linear": (nn.Linear(8, 4), X),
    "Conv1d": (nn.Conv1d(3, 4, 3, padding=1), X),
    "Conv2d": (nn.Conv2d(3, 4, 3, padding="same"), IMAGE),
    "ConvTranspose2d": (nn.ConvTranspose2d(3, 4, 3, stride=2), IMAGE),
    "MaxPool1d": (nn.MaxPool1d(2), X),
    "MaxPool2d": (nn.MaxPool2d(3, stride=2, padding=1), IMAGE),
    "AvgPool1d": (nn.AvgPool1d(2), X),
    "AvgPool2d": (nn.AvgPool2d(3, stride=2, padding=1), IMAGE),
    "LPPool2d": (nn.LPPool2d(2, 2), IMAGE),
    "AdaptiveAvgPool2d": (nn.AdaptiveAvgPool2d(3), IMAGE),
    "AdaptiveMaxPool2d": (nn.AdaptiveMaxPool2d(4), IMAGE),
    "BatchNorm2d": (nn.BatchNorm2d(3).eval(), IMAGE),
    "InstanceNorm2d": (nn.InstanceNorm2d(3, affine=True), IMAGE),
    "GroupNorm": (nn.GroupNorm(3, 3), IMAGE),
    "LayerNorm": (nn.LayerNorm(8), X),
    "LocalResponseNorm": (nn.LocalResponseNorm(2), IMAGE),
    "Upsample nearest": (nn.Upsample(scale_factor=2), IMAGE),
    "Upsample bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "Upsample bicubic": (nn.Upsample(size=(5, 6), mode="bicubic", align_corners=True), IMAGE),
    "PixelShuffle": (nn.PixelUnshuffle(2), IMAGE),
    "Unfold": (nn.Unfold(2, stride=2, padding=1), IMAGE),
    "Fold": (nn.Fold((4, 4), 2, stride=2), torch.linspace(-1, 1, 2 * 12 * 4).view(2, 12, 4)),
    "ReflectionPad2d": (nn.ReflectionPad2d(2), IMAGE),
    "ReplicationPad2d": (nn.ReplicationPad2d((1, 0, 2, 1)), IMAGE),
    "CircularPad2d": (nn.CircularPad2d(1), IMAGE),
    "ZeroPad2d": (nn.ZeroPad2d(1), IMAGE),
    "ConstantPad1d": (nn.ConstantPad1d((-1, 2), 3.5), X),
    "Embedding": (nn.Embedding(50, 4), WHOLE.abs()),
    "EmbeddingBag": (nn.EmbeddingBag(50, 4), WHOLE[0].abs()),
    "MultiheadAttention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), X),
    "RMSNorm": (nn.RMSNorm(8), X),
    "Conv3d": (nn.Conv3d(2, 2, 2), IMAGE.view(1, 2, 3, 8, 8)),
    "MaxPool3d": (nn.MaxPool3d(2), IMAGE.view(1, 1, 6, 8, 8)),
    "Softmax2d": (nn.Softmax2d(), IMAGE),
    "PReLU": (nn.PReLU(3), X),
}


class Model(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: torch.Tensor) -> Any:
        return self.program(x)


def _check(module: nn.Module, x: torch.Tensor) -> None:
    model = to_onnx(module, (x,), export_options={"decomposition_table": "all"})
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results = session.run(None, {i.name: x.numpy() for i in session.get_inputs()})
    with torch.no_grad():
        expected = torch.utils._pytree.tree_leaves(module(x))
    for mine, theirs in zip(results, expected, strict=True):
        assert mine.dtype == theirs.numpy().dtype
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.alternating
@pytest.mark.parametrize("name", PROGRAMS)
def test_functions(name: str) -> None:
    _check(Model(PROGRAMS[name]), X)


@pytest.mark.alternating
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    _check(*MODULES[name])


def test_a_decomposition_that_does_not_trace_is_an_error_of_capture() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.prims.copy_to(torch.empty_like(x), x)

    table = {torch.ops.aten.relu.default: writes}
    with pytest.raises(CaptureError, match=r"with its decompositions: .*copy_to"):
        to_onnx(nn.ReLU(), (X,), export_options={"decomposition_table": table})
