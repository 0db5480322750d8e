"""Small models of every architecture of transformers: their default configurations, shrunk.

Nothing is known about an architecture but its configuration and the arguments of its ``forward``:
sizes are recognized by their names. What torch itself cannot run that way is left out.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from zoo_check import Subject

__all__ = ["names", "subject"]

LENGTH = 12
VOCABULARY = 96
MAX_PARAMETERS = 3_000_000

SIZES: tuple[tuple[str, int], ...] = (
    # The first that is found in the name of a number wins.
    (r"vocab_size$|num_embeddings$|codebook_size$", VOCABULARY),
    (r"type_vocab_size", 2),
    (r"(image|input|crop)_size$|^img_size$", 32),
    (r"num_frames$|frames_per", 2),
    (r"num_mel_bins|num_mel|feature_size$|n_mels", 16),
    (r"max_position|max_seq|n_positions|n_ctx|max_len|max_(source|target)_pos|block_size", 64),
    (r"sliding_window|attention_window|local_window|chunk_size$", 8),
    (r"(key_value|kv)_heads?|num_kv|n_group|num_groups$|n_kv_head|multi_query_group", 2),
    (r"experts_per|top_?k|topk_group|moe_k$", 1),
    (r"(num|n)_(local_|routed_|shared_)?experts|moe_num_experts|num_experts", 2),
    (r"^n_heads?$|num_.*heads?$|attention_heads|_heads$|num_attention_head", 4),
    (r"(num|n)_.*layers?$|_layers$|^depth$|n_layer|num_blocks|_depth$|n_stages", 1),
    (r"(head_dim|qk_.*dim|v_head_dim|d_kv|rotary_dim|attention_head_size|_rank)$", 8),
    (r"intermediate|ffn|ff_dim|n_inner|mlp_dim|d_ff|inner_dim", 48),
    (r"hidden_size|hidden_dim|d_model|n_embd|embed_dim|embedding_size|projection_dim|^dim$"
     r"|_hidden|_dim$|width$|_size_per|feature_dim", 32),
    (r"num_labels|num_queries|_queries$", 4),
)  # fmt: skip
KEPT = re.compile(
    r"_token_id|_token_index|patch_size|stride|kernel|channels$|version|scale|factor|theta|_prob|"
    r"eps|init|ratio|dropout|drop_|rate|padding|groups|id$|ids$|beta|alpha|gamma|window_size"
)
LISTS: tuple[tuple[str, Callable[[int], int]], ...] = (
    (r"depth|num_layers|layers$|blocks", lambda i: 1),
    (r"head", lambda i: 2),
    (r"hidden_sizes|embed_dims?|channels|dims?$|sizes$", lambda i: 16),
)
SKIPPED = {
    "model_type", "transformers_version", "architectures", "_name_or_path", "torch_dtype", "dtype",
    "id2label", "label2id", "_attn_implementation",
}  # fmt: skip


def names() -> list[str]:
    """The architectures that transformers knows."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def shrink(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose numbers are small."""
    small: dict[str, Any] = {}
    for name, value in config.items():
        if name in SKIPPED:
            continue
        if isinstance(value, dict) and "model_type" in value:
            small[name] = {**shrink(value), "model_type": value["model_type"]}
        elif isinstance(value, bool) or value is None:
            small[name] = value
        elif isinstance(value, int) and re.search(r"(pad|bos|eos|decoder_start)_token_id", name):
            small[name] = min(value, 2)
        elif isinstance(value, int) and re.search(r"token_(id|index)$", name):
            small[name] = min(value, VOCABULARY - 1 - len(name) % 5)
        elif isinstance(value, int) and not KEPT.search(name):
            found = next((n for pattern, n in SIZES if re.search(pattern, name)), value)
            small[name] = min(value, found)
        else:
            small[name] = value
        if re.search(r"drop(out|path|_)|layerdrop", name) and isinstance(value, float):
            small[name] = 0.0
    return fit_lists(small)


def fit_lists(small: dict[str, Any]) -> dict[str, Any]:
    """Shorten what says something of each layer, as its name tells, to the layers there are."""
    counts = [
        v for n, v in small.items() if re.search(r"num_hidden_layers|n_layers?$|num_layers$", n)
    ]
    layers = counts[0] if counts and isinstance(counts[0], int) else None
    for name, value in small.items():
        if not isinstance(value, list | tuple) or layers is None:
            continue
        if re.search(
            r"layer_types|layers_block_type|mlp_layer_types|_per_layer|layout|no_rope", name
        ):
            kinds = list(dict.fromkeys(value)) if all(isinstance(v, str) for v in value) else value
            small[name] = list(kinds)[: max(layers, 1)]
    return small


class Refused(Exception):
    """No small model of an architecture is known."""


def subject(name: str) -> Subject:
    """Build a model of an architecture, and find inputs that eager mode takes."""
    from transformers import MODEL_MAPPING
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    reasons: list[str] = []
    for config in configurations(config_class, reasons):
        try:
            model_class = MODEL_MAPPING[type(config)]
            if isinstance(model_class, tuple):
                model_class = model_class[0]
            with torch.device("meta"):
                count = sum(p.numel() for p in model_class(config).parameters())
            if count > MAX_PARAMETERS:
                raise Refused(f"{count:,} parameters")
            torch.manual_seed(0)
            model = model_class(config).float().eval()
        except Exception as e:  # transformers refuses sizes in many ways
            reasons.append(f"{type(e).__name__}: {str(e)[:120]}")
            continue
        for inputs in candidates(model, config):
            try:
                with torch.no_grad():
                    model(**inputs(2))
            except Exception as e:  # the next inputs may fit
                reasons.append(f"{type(e).__name__}: {str(e)[:120]}")
                continue
            return Subject(name, model, lambda batch, make=inputs: ((), make(batch)))
    raise Refused(" | ".join(dict.fromkeys(reasons)) or "no inputs")


def configurations(config_class: Any, reasons: list[str]) -> Iterator[Any]:
    """Yield smaller and smaller configurations, the smallest first."""
    default = config_class().to_dict()
    small = shrink(default)
    layers_only = {
        n: (min(v, 2) if isinstance(v, int) and not isinstance(v, bool)
            and re.search(r"num_(hidden_)?layers$|n_layers?$", n) else v)
        for n, v in default.items() if n not in SKIPPED
    }  # fmt: skip
    defaults = {n for n, p in inspect.signature(config_class).parameters.items()}
    explicit = {n: v for n, v in small.items() if v != default.get(n) and n in defaults}
    for fields in (small, explicit, with_lists(small), layers_only):
        try:
            yield config_class.from_dict({**fields, "use_cache": False})
        except Exception as e:  # noqa: PERF203  # transformers refuses sizes in many ways
            reasons.append(f"{type(e).__name__}: {str(e)[:120]}")


def with_lists(small: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration whose lists of sizes are small too."""
    changed = dict(small)
    for name, value in small.items():
        if isinstance(value, list | tuple) and all(isinstance(v, int) for v in value):
            for pattern, make in LISTS:
                if re.search(pattern, name) and not KEPT.search(name):
                    changed[name] = [make(i) for i in range(len(value))]
                    break
    return changed


Make = Callable[[int], dict[str, Any]]


def candidates(model: nn.Module, config: Any) -> Iterator[Make]:
    """Yield ways to make inputs, by the arguments of ``forward``."""
    parameters = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    for kind in (main, "input_ids", "pixel_values", "input_features", "input_values"):
        if kind not in parameters and kind != main:
            continue
        for make in VALUES.get(kind, ()):
            for mask in (True, False):
                yield complete(kind, make, config, parameters, mask)


def complete(
    kind: str, make: Callable[[Any, int], torch.Tensor], config: Any, parameters: Any, mask: bool
) -> Make:
    def inputs(batch: int) -> dict[str, Any]:
        value = make(config, batch)
        given: dict[str, Any] = {kind: value}
        if mask and kind == "input_ids" and "attention_mask" in parameters:
            given["attention_mask"] = torch.ones(batch, value.shape[1], dtype=torch.long)
            given["attention_mask"][0, -2:] = 0
        if "decoder_input_ids" in parameters and kind != "decoder_input_ids":
            given["decoder_input_ids"] = tokens(config, batch)
        if kind != "pixel_values" and mask is False and "pixel_values" in parameters:
            given["pixel_values"] = picture(config, batch)
        if kind == "pixel_values" and mask and "input_ids" in parameters:
            given["input_ids"] = tokens(config, batch)
        if "use_cache" in parameters:
            given["use_cache"] = False
        return given

    return inputs


def read(config: Any, name: str, default: int) -> Any:
    inner = ("vision_config", "audio_config", "encoder_config", "backbone_config")
    for place in (config, *(getattr(config, field, None) for field in inner)):
        value = getattr(place, name, None)
        if value is not None:
            return value
    return default


def tokens(config: Any, batch: int) -> torch.Tensor:
    vocabulary = getattr(config.get_text_config(), "vocab_size", None) or VOCABULARY
    return torch.randint(3, max(4, vocabulary - 8), (batch, LENGTH))


def side(config: Any) -> tuple[int, int]:
    size = read(config, "image_size", 32)
    return tuple(size) if isinstance(size, list | tuple) else (int(size), int(size))  # type: ignore[return-value]


def picture(config: Any, batch: int) -> torch.Tensor:
    return torch.randn(batch, int(read(config, "num_channels", 3)), *side(config))


def larger_picture(config: Any, batch: int) -> torch.Tensor:
    return torch.randn(batch, int(read(config, "num_channels", 3)), 64, 64)


def film(config: Any, batch: int) -> torch.Tensor:
    frames = int(read(config, "num_frames", 2))
    return torch.randn(batch, frames, int(read(config, "num_channels", 3)), *side(config))


def wave(config: Any, batch: int) -> torch.Tensor:
    return torch.randn(batch, 1600)


def one_channel_wave(config: Any, batch: int) -> torch.Tensor:
    return torch.randn(batch, 1, 1600)


BINS = ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels",
        "feature_projection_input_dim", "input_dim")  # fmt: skip


def bins(config: Any) -> int:
    return int(next((v for name in BINS if (v := read(config, name, 0))), 16))


def spectrum(config: Any, batch: int) -> torch.Tensor:
    return torch.randn(batch, bins(config), 2 * int(read(config, "max_source_positions", 32)))


def turned_spectrum(config: Any, batch: int) -> torch.Tensor:
    return torch.randn(batch, int(read(config, "max_length", 0)) or 48, bins(config))


VALUES: dict[str, tuple[Callable[[Any, int], torch.Tensor], ...]] = {
    "input_ids": (tokens,),
    "pixel_values": (picture, larger_picture, film),
    "pixel_values_videos": (film,),
    "input_features": (spectrum, turned_spectrum),
    "input_values": (wave, one_channel_wave, turned_spectrum),
    "spectrogram": (turned_spectrum,),
}


def load() -> None:
    """Import what every model needs, before a process is made for each."""
    importlib.import_module("transformers.modeling_utils")
