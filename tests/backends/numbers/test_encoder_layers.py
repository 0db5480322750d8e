"""torch's transformer modules in inference: their one kernel, in parts and in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from dort_rewriter import to_onnx
from dort_rewriter.export.encoder_layers import encoder_decompositions

aten = torch.ops.aten

WIDTH, HEADS, BATCH, LENGTH = 16, 4, 3, 5
TOLERANCE = {
    torch.float32: 1e-5,
    torch.float64: 1e-12,
    torch.float16: 1e-2,  # of numbers about 1, rounded at each step by both
    torch.bfloat16: 8e-2,
}
HAS_FAKE_KERNEL = aten._transformer_encoder_layer_fwd.default in torch._decomp.meta_table
"""torch 2.8 has none for sizes that vary: Dynamo breaks the graph there for all compilers."""


def padding() -> torch.Tensor:
    """Which keys are hidden: some of a batch, all of another, none of the last."""
    hidden = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    hidden[0, 3:] = True
    hidden[1] = True
    return hidden


def causal() -> torch.Tensor:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


MASKS: dict[str, tuple[torch.Tensor | None, int | None]] = {
    "none": (None, None),
    "queries": (causal(), 0),
    "keys": (padding(), 1),
    "scores": ((causal() | padding()[:, None, None]).expand(-1, HEADS, -1, -1), 2),
    "numbers": (torch.zeros(BATCH, LENGTH).masked_fill(padding(), -0.5), 1),
}
"""A number that is not zero hides a key, whatever it is."""


def module(dtype: torch.dtype = torch.float32, **settings: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True, **settings)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer.eval().to(dtype)


def example(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)


def assert_close(got: Any, want: Any, dtype: torch.dtype = torch.float32) -> None:
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype], "equal_nan": True}
    torch.testing.assert_close(got, want, check_stride=True, **close)


def packed(layer: Any) -> tuple[Any, ...]:
    attention = layer.self_attn
    out = attention.out_proj
    return attention.in_proj_weight, attention.in_proj_bias, out.weight, out.bias


@torch.no_grad()
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("use_gelu", [False, True])
def test_a_layer_in_parts(use_gelu: bool, norm_first: bool, mask: str, dtype: Any) -> None:
    layer: Any = module(dtype)
    x = example(dtype).transpose(0, 1).contiguous().transpose(0, 1)  # the kernel's is row-major
    norms = [p for norm in (layer.norm1, layer.norm2) for p in (norm.weight, norm.bias)]
    linears = [p for part in (layer.linear1, layer.linear2) for p in (part.weight, part.bias)]
    flags = (use_gelu, norm_first, 1e-3)
    args = (x, WIDTH, HEADS, *packed(layer), *flags, *norms, *linears, *MASKS[mask])
    op = aten._transformer_encoder_layer_fwd.default
    assert_close(encoder_decompositions()[op](*args), op(*args), dtype)


@torch.no_grad()
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("weights", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("is_one", [True, False])
def test_an_attention_in_parts(
    is_one: bool, weights: tuple[bool, bool], mask: str, dtype: Any
) -> None:
    """Of one tensor with itself, and of three."""
    x = example(dtype)
    others = (x, x) if is_one else (x.flip(0), x.flip(1))
    hidden, kind = MASKS[mask]
    args = (x, *others, WIDTH, HEADS, *packed(module(dtype)), hidden, *weights, kind)
    op = aten._native_multi_head_attention.default
    assert_close(encoder_decompositions()[op](*args), op(*args), dtype)


@torch.no_grad()
def test_an_attention_of_nothing_has_no_probabilities() -> None:
    x = example()[:0]
    args = (x, x, x, WIDTH, HEADS, *packed(module()))
    op = aten._native_multi_head_attention.default
    assert_close(encoder_decompositions()[op](*args), op(*args))


class Attending(torch.nn.Module):
    """Attention of a tensor with itself."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.attention = layer.self_attn

    def forward(self, x: torch.Tensor, **masks: Any) -> Any:
        return self.attention(x, x, x, **masks)


@pytest.fixture(autouse=True)
def _compiled_alone() -> None:
    """All modules are one function to Dynamo, with a limit of graphs."""
    torch._dynamo.reset()


def compiled(model: torch.nn.Module, models: list[Any], *, dynamic: bool | None = None) -> Any:
    given = {"fallback": False, "pre_ort_model_transforms": [models.append]}
    return torch.compile(model, backend="onnxrt", dynamic=dynamic, fullgraph=True, options=given)


KEYWORDS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"mask": causal(), "is_causal": False},
    "padded": {"src_key_padding_mask": padding()},
    "both": {"mask": causal(), "is_causal": False, "src_key_padding_mask": padding()},
}


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, {"activation": "gelu", "norm_first": True}], ids=str)
@pytest.mark.parametrize("masks", KEYWORDS)
def test_an_encoder_runs_in_onnx_runtime(masks: str, settings: dict[str, Any]) -> None:
    encoder = torch.nn.TransformerEncoder(
        module(**settings), 2, norm=torch.nn.LayerNorm(WIDTH), enable_nested_tensor=False
    ).eval()
    models: list[onnx.ModelProto] = []
    run = compiled(encoder, models)
    given = KEYWORDS[masks]
    assert_close(run(example(), **given), encoder(example(), **given))
    (model,) = models
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("LayerNormalization") == 5
    assert kinds.count("MultiHeadAttention") + kinds.count("Softmax") == 2
    if not given:
        assert kinds.count("MultiHeadAttention") == 2


@torch.no_grad()
@pytest.mark.skipif(not HAS_FAKE_KERNEL, reason="torch cannot trace it with sizes that vary")
@pytest.mark.parametrize("masks", ["none", "padded"])
def test_an_encoder_of_any_size(masks: str) -> None:
    encoder = torch.nn.TransformerEncoder(module(), 2, enable_nested_tensor=False).eval()
    models: list[onnx.ModelProto] = []
    run = compiled(encoder, models, dynamic=True)
    for batch, length in ((3, 5), (2, 4), (2, 5)):
        given = {name: mask[:batch, :length].clone() for name, mask in KEYWORDS[masks].items()}
        x = example()[:batch, :length].clone()
        assert_close(run(x, **given), encoder(x, **given))
    assert len(models) == 1


@torch.no_grad()
@pytest.mark.parametrize(
    "keywords", [{}, {"need_weights": False}, {"average_attn_weights": False}], ids=str
)
def test_attention_runs_in_onnx_runtime(keywords: dict[str, bool]) -> None:
    model = Attending(module())
    models: list[onnx.ModelProto] = []
    run = compiled(model, models)
    assert_close(run(example(), **keywords), model(example(), **keywords))
    assert_close(
        run(example(), key_padding_mask=padding(), **keywords)[0][::2],
        model(example(), key_padding_mask=padding(), **keywords)[0][::2],
    )
    assert len(models) == 2


@torch.no_grad()
@pytest.mark.parametrize("strict", [False, True])
def test_an_encoder_in_a_file(strict: bool) -> None:
    """torch.export takes the one kernel when it is strict (torch 2.13)."""
    layer = module(activation="gelu")
    proto = to_onnx(layer, (example(),), export_options={"strict": strict})
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: example().numpy()})
    np.testing.assert_allclose(got, layer(example()).numpy(), rtol=1e-5, atol=1e-5)
