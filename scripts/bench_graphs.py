"""The graphs that benchmarks of the optimizer run on: captured from small models, with arguments.

Every model is built with a fixed seed, compiled through AOTAutograd and run once in torch; what is
kept of each graph is its text, the arguments it was called with, and what it returned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import nn

from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher

Inputs = dict[str, torch.Tensor]
Factory = Callable[[], tuple[nn.Module, Inputs]]


@dataclass(frozen=True, kw_only=True)
class Captured:
    """One graph of ATen operators."""

    name: str
    graph_module: torch.fx.GraphModule
    args: tuple[Any, ...]
    expected: tuple[Any, ...]

    def copy(self) -> torch.fx.GraphModule:
        """The graph for a compilation, which changes it."""
        return copy.deepcopy(self.graph_module)


class FirstTensor(nn.Module):
    """A model of transformers called with fixed options; returns the first tensor it computes."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        outputs = self.model(**inputs, **self.options, return_dict=True)
        result: torch.Tensor = outputs.to_tuple()[0]
        return result


class OneInput(nn.Module):
    """Layers called by the name of their input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layers(x)
        return result


def mlp() -> tuple[nn.Module, Inputs]:
    layers = nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 16), nn.Softmax(-1)
    return OneInput(*layers), {"x": torch.randn(32, 16)}


def cnn() -> tuple[nn.Module, Inputs]:
    layers = (
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.SiLU(),
        nn.AvgPool2d(7),
        nn.Flatten(),
        nn.Linear(16, 4),
    )
    return OneInput(*layers), {"x": torch.randn(4, 3, 16, 16)}


SIZES = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
TEXT = {**SIZES, "vocab_size": 64, "intermediate_size": 48, "max_position_embeddings": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokens(batch: int = 2, length: int = 16, vocabulary: int = 64) -> Inputs:
    return {"input_ids": torch.randint(0, vocabulary, (batch, length))}


def llama() -> tuple[nn.Module, Inputs]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**TEXT, num_key_value_heads=1, attn_implementation="eager")
    return FirstTensor(LlamaForCausalLM(config), use_cache=False), tokens()


def gpt2() -> tuple[nn.Module, Inputs]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=32,
        n_head=2,
        n_layer=2,
        n_positions=32,
        vocab_size=64,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        attn_implementation="eager",
    )
    return FirstTensor(GPT2LMHeadModel(config), use_cache=False), tokens()


def bert() -> tuple[nn.Module, Inputs]:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**TEXT, **NO_DROPOUT, attn_implementation="eager")
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 12:] = 0
    return FirstTensor(BertForMaskedLM(config)), {**tokens(), "attention_mask": mask}


def vit() -> tuple[nn.Module, Inputs]:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        **SIZES,
        **NO_DROPOUT,
        intermediate_size=48,
        image_size=16,
        patch_size=4,
        attn_implementation="eager",
    )
    model = ViTForImageClassification(config)
    return FirstTensor(model), {"pixel_values": torch.randn(2, 3, 16, 16)}


MODELS: dict[str, Factory] = {
    "mlp": mlp,
    "cnn": cnn,
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
}


def capture(name: str, factory: Factory, *, dynamic: bool, training: bool) -> list[Captured]:
    """The forward and backward graphs of a training step, or the one of inference."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = factory()
    kinds = ("forward", "backward") if training else ("inference",)
    sizes = "dynamic" if dynamic else "static"
    found: list[Captured] = []

    def keep(graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        original = copy.deepcopy(graph)

        def run(*args: Any) -> Any:
            label = f"{name}/{kinds[len(found)]}/{sizes}"
            kept = _own(args)  # before the run: running statistics change in place
            results = graph.forward(*args)
            found.append(
                Captured(name=label, graph_module=original, args=kept, expected=_own(results))
            )
            return results

        return make_boxed_func(run)

    def backend(graph: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        table = get_decomposition_table(OxsDispatcher())
        return compile_with_aot(graph, args, compile_graph=keep, decompositions=table)

    _run_once(model, inputs, backend, dynamic=dynamic, training=training)
    return found


def _own(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(v.detach().clone() if isinstance(v, torch.Tensor) else v for v in values)


def _run_once(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], backend: Any, **how: bool
) -> None:
    compiled = torch.compile(model, backend=backend, dynamic=how["dynamic"], fullgraph=True)
    if how["training"]:
        model.train()
        result = compiled(**inputs)
        (result * torch.linspace(-1, 1, result.numel()).reshape(result.shape)).sum().backward()
    else:
        model.eval()
        with torch.no_grad():
            compiled(**inputs)
