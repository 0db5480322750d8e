"""Small models of timm, torchvision, torchaudio, torch_geometric and diffusers.

A library that cannot be imported is left out, with a line that says why.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from zoo_check import Subject

__all__ = ["LIBRARIES", "Library", "declare_torchvision"]

Built = tuple[nn.Module, Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]]

TIMM = """
resnet10t resnet14t resnetv2_18 skresnet18 seresnet18 ecaresnet26t cspresnet50 resnest14d
res2net50_14w_8s resnext26ts gcresnext26ts mobilenetv2_035 mobilenetv3_small_050
mobilenetv4_conv_small_050 mobilenetv1_100 mnasnet_050 efficientnet_b0 efficientnet_lite0
tinynet_e lcnet_035 fbnetc_100 ghostnet_050 mixnet_s regnetx_002 regnety_002 regnetz_005
densenet121 hardcorenas_a dla34 dla46_c darknet17 selecsls42 vgg11 xception41 hrnet_w18_small
repvgg_a0 rexnetr_100 nf_resnet26 dm_nfnet_f0 convnext_atto convnextv2_atto convmixer_768_32
edgenext_xx_small mobileone_s0 fastvit_t8 repvit_m0_9 inception_v3 efficientvit_b0 starnet_s1
vit_tiny_patch16_224 deit_tiny_patch16_224 beit_base_patch16_224 cait_xxs24_224
xcit_nano_12_p16_224 swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 mixer_s32_224
gmlp_ti16_224 resmlp_12_224 levit_128s pit_ti_224 pvt_v2_b0 poolformer_s12 visformer_tiny
crossvit_tiny_240 coat_lite_tiny convit_tiny twins_svt_small mobilevit_xxs mobilevitv2_050
maxvit_pico_rw_256 coatnet_pico_rw_224 tiny_vit_5m_224 focalnet_tiny_srf davit_tiny
gcvit_xxtiny nextvit_small eva02_tiny_patch14_224 volo_d1_224 sequencer2d_s efficientformer_l1
efficientformerv2_s0 hiera_tiny_224 mambaout_femto caformer_s18 ghostnetv2_100
inception_next_atto rdnet_tiny
"""

TORCHVISION = """
alexnet vgg11_bn resnet18 squeezenet1_1 densenet121 googlenet shufflenet_v2_x0_5 mobilenet_v2
mobilenet_v3_small mnasnet0_5 efficientnet_b0 regnet_y_400mf convnext_tiny
"""


def timm_model(name: str) -> Built:
    import timm

    size = {"eva02_tiny_patch14_224": 56, "inception_v3": 96}.get(name, 64)
    attempts: list[dict[str, Any]] = [
        {"img_size": size, "depth": 2}, {"depth": 2}, {"img_size": size}, {},
    ]  # fmt: skip
    for attempt in attempts:
        for side in (size, 224, 256, 240):
            try:
                torch.manual_seed(0)
                model = timm.create_model(name, pretrained=False, num_classes=8, **attempt)
                with torch.no_grad():
                    model.eval()(torch.randn(2, 3, side, side))
            except Exception:  # the next size may fit
                continue
            return model, lambda batch, side=side: ((torch.randn(batch, 3, side, side),), {})
    raise ValueError("no size of image fits")


def torchvision_model(name: str) -> Built:
    import torchvision

    torch.manual_seed(0)
    options = {"init_weights": True} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, num_classes=8, **options)
    return model, lambda batch: ((torch.randn(batch, 3, 64, 64),), {})


def audio_models() -> dict[str, Callable[[], Built]]:
    import torchaudio.models as m

    def wave(module: nn.Module, *shape: int) -> Built:
        return module, lambda batch: ((torch.randn(batch, *shape),), {})

    def lengths(module: nn.Module, *shape: int, behind: int = 0) -> Built:
        count = shape[0] - behind
        return module, lambda b: ((torch.randn(b, *shape), torch.full((b,), count)), {})

    def wav2vec() -> nn.Module:
        return m.wav2vec2_model(
            extractor_mode="group_norm", extractor_conv_layer_config=[(16, 10, 5), (16, 3, 2)],
            extractor_conv_bias=False, encoder_embed_dim=32, encoder_projection_dropout=0.0,
            encoder_pos_conv_kernel=8, encoder_pos_conv_groups=4, encoder_num_layers=1,
            encoder_num_heads=4, encoder_attention_dropout=0.0, encoder_ff_interm_features=48,
            encoder_ff_interm_dropout=0.0, encoder_dropout=0.0, encoder_layer_norm_first=False,
            encoder_layer_drop=0.0, aux_num_out=8,
        )  # fmt: skip

    return {
        "Wav2Letter": lambda: wave(
            m.Wav2Letter(num_classes=8, input_type="mfcc", num_features=13), 13, 64
        ),
        "DeepSpeech": lambda: wave(m.DeepSpeech(13, n_hidden=32, n_class=8), 1, 20, 13),
        "Conformer": lambda: lengths(m.Conformer(16, 4, 32, 1, 7), 20, 16),
        "ConvTasNet": lambda: wave(m.ConvTasNet(2, 16, 16, 3, 16, 16, 2, 1), 1, 400),
        "WaveRNN": lambda: (
            m.WaveRNN([4, 4], 16, 16, 1, 16, 16, 3, 8, 16, 8),
            lambda b: ((torch.randn(b, 1, (10 - 3 + 1) * 16), torch.randn(b, 1, 8, 10)), {}),
        ),
        "Wav2Vec2": lambda: wave(wav2vec(), 400),
        "HDemucs": lambda: wave(
            m.HDemucs(["a", "b"], audio_channels=1, channels=8, depth=2, nfft=256), 1, 2048
        ),
        "Emformer": lambda: lengths(
            m.Emformer(16, 4, 32, 1, 4, right_context_length=2), 18, 16, behind=2
        ),
    }


def graph_models() -> dict[str, Callable[[], Built]]:
    import torch_geometric.nn as g

    def basic(kind: str, **options: Any) -> Callable[[], Built]:
        def build() -> Built:
            return getattr(g, kind)(16, 16, 2, out_channels=4, **options), lambda b: (edges(b), {})

        return build

    def layer(kind: str, *sizes: int, **options: Any) -> Callable[[], Built]:
        def build() -> Built:
            return getattr(g, kind)(*sizes, **options), lambda b: (edges(b), {})

        return build

    def relational(kind: str) -> Callable[[], Built]:
        def build() -> Built:
            def inputs(b: int) -> Any:
                x, edge = edges(b)
                return (x, edge, torch.randint(0, 3, (edge.shape[1],))), {}

            return getattr(g, kind)(16, 16, 3), inputs

        return build

    def edges(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        count = 6 * batch
        return torch.randn(count, 16), torch.randint(0, count, (2, 4 * count))

    wide = {"in_channels": 16, "out_channels": 16}
    return {
        **{kind: basic(kind) for kind in ("GCN", "GraphSAGE", "GAT", "GIN", "EdgeCNN")},
        "PNA": basic("PNA", aggregators=["mean", "max", "std"], scalers=["identity"],
                     deg=torch.tensor([1, 3, 5, 2])),
        **{kind: layer(kind, 16, 16) for kind in (
            "ChebConv", "SGConv", "ARMAConv", "TAGConv", "GraphConv", "LEConv", "GATv2Conv",
            "TransformerConv", "SuperGATConv", "ClusterGCNConv", "GENConv", "MFConv", "FiLMConv",
            "GeneralConv", "EGConv", "ResGatedGraphConv", "HypergraphConv",
        ) if kind != "ChebConv"},
        "ChebConv": layer("ChebConv", 16, 16, 3),
        "GatedGraphConv": layer("GatedGraphConv", 16, 2),
        "APPNP": layer("APPNP", 2, 0.1),
        "AGNNConv": layer("AGNNConv"),
        "FeaStConv": layer("FeaStConv", 16, 16, 2),
        "LGConv": layer("LGConv"),
        "FAConv": lambda: (g.FAConv(16), lambda b: ((lambda x, e: (x, x, e))(*edges(b)), {})),
        "RGCNConv": relational("RGCNConv"),
        "FastRGCNConv": relational("FastRGCNConv"),
        "RGATConv": relational("RGATConv"),
        "GPSConv": layer("GPSConv", 16, conv=g.GCNConv(**wide), heads=4),
    }  # fmt: skip


def noisy(module: nn.Module, *shape: int, **more: Callable[[int], Any]) -> Built:
    def inputs(batch: int) -> Any:
        given = {name: make(batch) for name, make in more.items()}
        return (torch.randn(batch, *shape), torch.arange(batch) + 5), given

    return module, inputs


def words(batch: int) -> torch.Tensor:
    return torch.randn(batch, 6, 32)


def diffusion_models() -> dict[str, Callable[[], Built]]:
    import diffusers as d

    blocks = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}

    def coder(module: nn.Module, *shape: int) -> Built:
        return module, lambda b: ((torch.randn(b, *shape),), {})

    down = ("DownBlock2D", "CrossAttnDownBlock2D")
    up = ("CrossAttnUpBlock2D", "UpBlock2D")
    return {
        "UNet2DModel": lambda: noisy(
            d.UNet2DModel(16, 3, 3, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                          up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=8,
                          **blocks), 3, 16, 16),
        "UNet2DConditionModel": lambda: noisy(
            d.UNet2DConditionModel(16, 4, 4, down_block_types=down, up_block_types=up,
                                   cross_attention_dim=32, attention_head_dim=4, **blocks),
            4, 16, 16, encoder_hidden_states=words),
        "AutoencoderKL": lambda: coder(
            d.AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * 2,
                            up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, **blocks),
            3, 16, 16),
        "VQModel": lambda: coder(
            d.VQModel(down_block_types=("DownEncoderBlock2D",) * 2,
                      up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=3,
                      num_vq_embeddings=16, **blocks), 3, 16, 16),
        "AutoencoderTiny": lambda: coder(
            d.AutoencoderTiny(encoder_block_out_channels=(8, 8), decoder_block_out_channels=(8, 8),
                              num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)), 3, 16, 16),
        "ControlNetModel": lambda: noisy(
            d.ControlNetModel(4, down_block_types=down, cross_attention_dim=32,
                              attention_head_dim=4, **blocks,
                              conditioning_embedding_out_channels=(8, 16)), 4, 16, 16,
            encoder_hidden_states=words, controlnet_cond=lambda b: torch.randn(b, 3, 32, 32)),
        **diffusion_transformers(),
    }  # fmt: skip


def diffusion_transformers() -> dict[str, Callable[[], Built]]:
    import diffusers as d

    return {
        "DiTTransformer2DModel": lambda: noisy(
            d.DiTTransformer2DModel(2, 8, 4, num_layers=1, sample_size=8, norm_num_groups=4,
                                    num_embeds_ada_norm=10), 4, 8, 8,
            class_labels=lambda b: torch.arange(b)),
        "PixArtTransformer2DModel": lambda: noisy(
            d.PixArtTransformer2DModel(2, 8, 4, num_layers=1, sample_size=8, norm_num_groups=4,
                                       cross_attention_dim=16, caption_channels=32), 4, 8, 8),
        "PriorTransformer": lambda: noisy(
            d.PriorTransformer(2, 8, 1, 16, 6), 16,
            proj_embedding=lambda b: torch.randn(b, 16),
            encoder_hidden_states=lambda b: torch.randn(b, 6, 16)),
        "UNet1DModel": lambda: noisy(
            d.UNet1DModel(32, in_channels=2, out_channels=2, extra_in_channels=16,
                          down_block_types=("DownBlock1DNoSkip", "DownBlock1D"),
                          up_block_types=("UpBlock1D", "UpBlock1DNoSkip"),
                          mid_block_type="UNetMidBlock1D", block_out_channels=(8, 8)), 2, 32),
        "SD3Transformer2DModel": lambda: (
            d.SD3Transformer2DModel(8, 2, 4, 1, 8, 4, 32, 32, 16, 4, pos_embed_max_size=8),
            lambda b: ((torch.randn(b, 4, 8, 8),), {
                "encoder_hidden_states": torch.randn(b, 5, 32),
                "pooled_projections": torch.randn(b, 16), "timestep": torch.arange(b) + 3})),
    }  # fmt: skip


def declare_torchvision() -> None:
    """Let torchvision be imported without its compiled operators, which no model here calls.

    timm imports it, and transformers where it is there.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms", "roi_align"):
            library.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")
        declared.append(library)
        importlib.import_module("torchvision")


declared: list[torch.library.Library] = []
"""A library takes its operators with it when it goes."""


class Library:
    """A library of models: its names, and a model by name."""

    def __init__(
        self, name: str, list_names: Callable[[], list[str]], build: Callable[[str], Built]
    ) -> None:
        self.name = name
        self.names = list_names
        self.build = build

    def load(self) -> None:
        """Import the library, before a process is made for each of its models."""
        importlib.import_module(self.name)

    def subject(self, name: str) -> Subject:
        """Build a model, the same weights each time."""
        torch.manual_seed(0)
        return Subject(name, *self.build(name))


def of_table(table: Callable[[], dict[str, Callable[[], Built]]]) -> Any:
    return (lambda: list(table())), (lambda name: table()[name]())


LIBRARIES = (
    Library("timm", TIMM.split, timm_model),
    Library("torchvision", TORCHVISION.split, torchvision_model),
    Library("torchaudio", *of_table(audio_models)),
    Library("torch_geometric", *of_table(graph_models)),
    Library("diffusers", *of_table(diffusion_models)),
)
