"""Small models, random and deterministic, that the tests of several folders run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Inputs = dict[str, torch.Tensor]
Factory = Callable[[], tuple[nn.Module, Inputs]]


class Classifier(nn.Module):
    """Layers and a cross entropy with weights, label smoothing and an ignored class."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.loss = nn.CrossEntropyLoss(torch.rand(4) + 0.5, label_smoothing=0.1, ignore_index=0)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.layers(x)
        return self.loss(logits, labels), logits


def mlp() -> tuple[nn.Module, Inputs]:
    layers = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
    return Classifier(layers), {"x": torch.randn(6, 10), "labels": torch.randint(0, 4, (6,))}


def cnn() -> tuple[nn.Module, Inputs]:
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(8 * 7 * 7, 4),
    )
    return Classifier(layers), {
        "x": torch.randn(5, 3, 16, 16),
        "labels": torch.randint(0, 4, (5,)),
    }


class Pools(nn.Module):
    """Every kind of pooling, and a reflected padding."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = functional.max_pool2d(self.first(x), 3, 2, 1)
        x = functional.avg_pool2d(self.second(x), 2)
        x = functional.max_pool2d(x, 2, ceil_mode=True)
        return functional.adaptive_avg_pool2d(x, 1), functional.adaptive_max_pool2d(x, 1)


def pools() -> tuple[nn.Module, Inputs]:
    return Pools(), {"x": torch.randn(2, 3, 34, 30)}


class UNet(nn.Module):
    """Down and up again, to the sizes of what is joined."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 4), (4, 8))])
        self.bottom = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ModuleList(
            [
                nn.Conv2d(16, 4, 3, padding=1, padding_mode="replicate"),
                nn.Conv2d(8, 1, 3, padding=1),
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](x).relu()
        second = self.down[1](functional.max_pool2d(first, 2)).relu()
        x = self.bottom(functional.max_pool2d(second, 2))
        x = functional.interpolate(x, scale_factor=2.0)
        x = self.up[0](torch.cat([x, second], 1)).relu()
        x = functional.interpolate(x, size=first.shape[2:], mode="bilinear")
        return self.up[1](torch.cat([x, first], 1))


def unet() -> tuple[nn.Module, Inputs]:
    return UNet(), {"x": torch.randn(2, 3, 16, 24)}


class Encoder(nn.Module):
    """torch's own transformer layer, in training, with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_key_padding_mask=padding)


def encoder() -> tuple[nn.Module, Inputs]:
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    return Encoder(), {"x": torch.randn(3, 5, 16), "padding": padding}


class Recurrent(nn.Module):
    """A recurrent network over features that are learned: torch unrolls it over time."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.features = nn.Linear(6, 6)
        self.network = kind(6, 5, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, _ = self.network(self.features(x))
        return output


def lstm() -> tuple[nn.Module, Inputs]:
    return Recurrent(nn.LSTM, num_layers=2), {"x": torch.randn(3, 4, 6)}


def gru() -> tuple[nn.Module, Inputs]:
    return Recurrent(nn.GRU, bidirectional=True), {"x": torch.randn(3, 4, 6)}


class Named(nn.Module):
    """A model of transformers that takes fixed options and returns its tensors by position."""

    def __init__(self, model: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.options = dict(options)

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.model(**inputs, **self.options, return_dict=True)
        return tuple(v for v in outputs.to_tuple() if isinstance(v, torch.Tensor))


SIZES = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
TEXT = {**SIZES, "vocab_size": 32, "intermediate_size": 24, "max_position_embeddings": 16}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokens(labels: bool = True) -> Inputs:
    ids = torch.randint(0, 32, (2, 7))
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    return {**inputs, "labels": ids.clone()} if labels else inputs


def llama(attention: str) -> Factory:
    def build() -> tuple[nn.Module, Inputs]:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**TEXT, num_key_value_heads=1, attn_implementation=attention)
        return Named(LlamaForCausalLM(config), {"use_cache": False}), tokens()

    return build


def bert(attention: str) -> Factory:
    def build() -> tuple[nn.Module, Inputs]:
        from transformers import BertConfig, BertForMaskedLM

        config = BertConfig(**TEXT, **NO_DROPOUT, attn_implementation=attention)
        return Named(BertForMaskedLM(config), {}), tokens()

    return build


def gpt2(attention: str) -> Factory:
    def build() -> tuple[nn.Module, Inputs]:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_embd=16,
            n_head=2,
            n_layer=1,
            n_positions=16,
            vocab_size=32,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            attn_implementation=attention,
        )
        model = GPT2LMHeadModel(config)
        model.loss_type = "ForCausalLM"  # its default, without a warning that Dynamo cannot trace
        return Named(model, {"use_cache": False}), tokens()

    return build


def vit() -> tuple[nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        **SIZES, **NO_DROPOUT, intermediate_size=24, image_size=16, patch_size=8, num_labels=3
    )
    inputs = {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}
    return Named(ViTForImageClassification(config), {}), inputs


def t5() -> tuple[nn.Module, Inputs]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_heads=2,
        num_layers=1,
        vocab_size=32,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return Named(T5ForConditionalGeneration(config), {"use_cache": False}), tokens()


MODELS: dict[str, Factory] = {
    "mlp": mlp,
    "cnn": cnn,
    "pools": pools,
    "unet": unet,
    "encoder": encoder,
    "lstm": lstm,
    "gru": gru,
    "llama-eager": llama("eager"),
    "llama-sdpa": llama("sdpa"),
    "bert-eager": bert("eager"),
    "bert-sdpa": bert("sdpa"),
    "gpt2-eager": gpt2("eager"),
    "gpt2-sdpa": gpt2("sdpa"),
    "vit": vit,
    "t5": t5,
}
