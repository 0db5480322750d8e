"""Train exported steps by plain onnxruntime, beside torch's own loop.

usage: python scripts/training_steps.py [--only REGEX] [--steps 50] [--dynamic] [--json]

For each model ``export_training_step`` writes a folder; its step runs on one thread of
onnxruntime, on the same batches as torch's loop. A line for each model: the largest
relative difference of the losses of the first five steps, of all steps, the same between torch's
own loop on one and on two threads, the last loss over the first, nodes, bytes and seconds a step.
Exits with 1 if a model differs by more than 1e-5 in the first five steps.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import nn

from dort_rewriter import export_training_step

BATCH = 8


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.rnn = kind(6, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


class GraphNet(nn.Module):
    """A graph convolution: nodes add up what their neighbours say."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in (self.a, self.b):
            x = layer(x)
            x = torch.relu(x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]]))
        return x


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.EmbeddingBag(30, 16), nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids))


class Residual(nn.Module):
    def __init__(self, wide: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU(),
            nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


class Attending(nn.Module):
    """One layer of attention, as `nn.MultiheadAttention` has it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head, self.causal = nn.Linear(16, 4), causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if self.causal else None
        return self.head(self.layer(x, src_mask=mask, is_causal=self.causal).mean(1))


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(10, 16), nn.Linear(16, 4)
        self.base.requires_grad_(False)
        self.down, self.up = nn.Linear(10, 2, bias=False), nn.Linear(2, 16, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.base(x) + self.up(self.down(x))))


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(BATCH, *shape)


def classes(count: int = 4, *shape: int) -> torch.Tensor:
    return torch.randint(0, count, (BATCH, *shape))


def seq(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


def of_transformers(name: str, **config: Any) -> nn.Module:
    import transformers

    small: dict[str, Any] = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2}
    small |= {"intermediate_size": 64, "num_attention_heads": 4, "num_labels": 4}
    small |= {"attn_implementation": "eager", **config}
    kind = getattr(transformers, f"{name}Config")(**small)
    for key in [k for k in vars(kind) if "dropout" in k or k.endswith("_pdrop")]:
        if isinstance(getattr(kind, key), float):
            setattr(kind, key, 0.0)
    made: nn.Module = getattr(
        transformers, config.get("kind", f"{name}ForSequenceClassification")
    )(kind)
    return made


def logits(output: Any, target: torch.Tensor) -> torch.Tensor:
    found = output.logits if hasattr(output, "logits") else output
    return F.cross_entropy(found.reshape(-1, found.shape[-1]), target.reshape(-1))


def ids(length: int = 12) -> torch.Tensor:
    return torch.randint(1, 60, (BATCH, length))


def adam(p: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(p, lr=3e-3)


def adamw(p: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(p, lr=3e-3)


def sgd(p: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(p, lr=0.05, momentum=0.9)


Example = tuple[Any, Any]
Made = tuple[Callable[[], nn.Module], Any, Callable[[Any], torch.optim.Optimizer],
             Callable[[], Example]]  # fmt: skip

MODELS: dict[str, Made] = {
    "mlp": (lambda: seq(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)), logits, adam,
            lambda: (rows(10), classes())),
    "mlp-norms": (lambda: seq(nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)),
                  logits, adamw, lambda: (rows(10), classes())),
    "regression": (lambda: seq(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)), F.mse_loss, sgd,
                   lambda: (rows(10), rows(1))),
    "huber-rmsprop": (lambda: seq(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 1)), F.huber_loss,
                      lambda p: torch.optim.RMSprop(p, lr=3e-3), lambda: (rows(10), rows(1))),
    "logistic-adagrad": (lambda: nn.Linear(10, 1), F.binary_cross_entropy_with_logits,
                         lambda p: torch.optim.Adagrad(p, lr=0.3),
                         lambda: (rows(10), torch.rand(BATCH, 1).round())),
    "cnn": (lambda: seq(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Flatten(), nn.Linear(72, 4)), logits, adam,
            lambda: (rows(3, 8, 8), classes())),
    "resnet": (lambda: seq(nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8),
                           nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), logits, sgd,
               lambda: (rows(3, 8, 8), classes())),
    "autoencoder": (lambda: seq(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 12)), F.mse_loss, adam,
                    lambda: (lambda x: (x, x.clone()))(rows(12))),
    "conv-autoencoder": (lambda: seq(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(),
                                     nn.ConvTranspose2d(4, 1, 4, 2, 1)), F.l1_loss, adam,
                         lambda: (lambda x: (x, x.clone()))(rows(1, 8, 8))),
    "conv1d": (lambda: seq(nn.Conv1d(2, 8, 3), nn.GroupNorm(2, 8), nn.ELU(), nn.Flatten(),
                           nn.Linear(64, 4)), logits, adam, lambda: (rows(2, 10), classes())),
    "gru": (lambda: Recurrent(nn.GRU), logits, adam, lambda: (rows(5, 6), classes())),
    "lstm": (lambda: Recurrent(nn.LSTM), logits, adam, lambda: (rows(5, 6), classes())),
    "rnn": (lambda: Recurrent(nn.RNN), logits, sgd, lambda: (rows(5, 6), classes())),
    "gnn": (GraphNet, logits, adam,
            lambda: ((rows(5), torch.randint(0, BATCH, (2, 20))), classes())),
    "embedding-bag": (Embedded, logits, lambda p: torch.optim.Adagrad(p, lr=0.1),
                      lambda: (torch.randint(0, 30, (BATCH, 6)), classes())),
    "encoder": (lambda: Attending(False), logits, adamw, lambda: (rows(5, 16), classes())),
    "decoder": (lambda: Attending(True), logits, adamw, lambda: (rows(5, 16), classes())),
    "lora": (Adapted, logits, adam, lambda: (rows(10), classes())),
    "mapping": (GraphNet, logits, adam, lambda: (
        {"x": rows(5), "edges": torch.randint(0, BATCH, (2, 20))}, classes())),
    "bert": (lambda: of_transformers("Bert"), logits, adamw, lambda: (ids(), classes())),
    "distilbert": (lambda: of_transformers("DistilBert", dim=32, hidden_dim=64, n_layers=2,
                                           n_heads=4), logits, adamw,
                   lambda: (ids(), classes())),
    "gpt2": (lambda: of_transformers("GPT2", kind="GPT2LMHeadModel", n_embd=32, n_layer=2,
                                     n_head=4), logits, adamw, lambda: (ids(), ids())),
    "llama": (lambda: of_transformers("Llama", kind="LlamaForCausalLM", num_key_value_heads=2),
              logits, adamw, lambda: (ids(), ids())),
    "qwen2": (lambda: of_transformers("Qwen2", kind="Qwen2ForCausalLM", num_key_value_heads=2),
              logits, adamw, lambda: (ids(), ids())),
    "vit": (lambda: of_transformers("ViT", image_size=16, patch_size=4, num_channels=3,
                                    kind="ViTForImageClassification"), logits, adamw,
            lambda: (rows(3, 16, 16), classes())),
    "resnet18": (lambda: of_transformers("ResNet", embedding_size=8, hidden_sizes=[8, 16],
                                         depths=[1, 1], layer_type="basic",
                                         kind="ResNetForImageClassification"), logits, sgd,
                 lambda: (rows(3, 16, 16), classes())),
}  # fmt: skip


def torchs_losses(made: Made, batches: Sequence[Example], steps: int, threads: int) -> list[float]:
    build, loss, optimizer, _ = made
    torch.manual_seed(0)
    model = build().train()
    of_model = optimizer([p for p in model.parameters() if p.requires_grad])
    torch.set_num_threads(threads)
    losses = []
    for i in range(steps):
        given, target = batches[i % len(batches)]
        if isinstance(given, dict):
            output = model(**given)
        else:
            output = model(*given) if isinstance(given, tuple) else model(given)
        value = loss(output, target)
        losses.append(value.item())
        of_model.zero_grad()
        value.backward()
        of_model.step()
    torch.set_num_threads(1)
    return losses


def dynamic(part: Any) -> Any:
    """The first dimension of all that has one row a sample varies."""
    if isinstance(part, torch.Tensor):
        return {0: "batch"} if part.dim() and part.shape[0] == BATCH else None
    if isinstance(part, dict):
        return {k: dynamic(v) for k, v in part.items()}
    return tuple(dynamic(v) for v in part)


def measure(made: Made, steps: int, is_dynamic: bool) -> dict[str, Any]:
    import onnx
    import onnxruntime
    from safetensors.numpy import load_file
    from torch.utils._pytree import tree_leaves

    build, loss, optimizer, example = made
    torch.manual_seed(1)
    batches = [example() for _ in range(4)]
    torch.manual_seed(0)
    model = build().train()
    of_model = optimizer([p for p in model.parameters() if p.requires_grad])
    with tempfile.TemporaryDirectory() as folder:
        shapes = tuple(dynamic(p) for p in batches[0]) if is_dynamic else None
        export_training_step(
            model, loss, of_model, batches[0], folder,
            dynamic_shapes=shapes,
        )  # fmt: skip
        said = json.loads((Path(folder) / "training.json").read_text())
        state = load_file(os.path.join(folder, "state.safetensors"))
        path = os.path.join(folder, "step.onnx")
        proto = onnx.load(path)
        onnx.checker.check_model(proto)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, settings, ["CPUExecutionProvider"])
        size = os.path.getsize(path)
    names = [o.name for o in session.get_outputs()]
    losses, seconds = [], []
    for i in range(steps):
        leaves = [leaf.numpy() for leaf in tree_leaves(batches[i % len(batches)])]
        start = time.perf_counter()
        found = session.run(None, {**dict(zip(said["batch"], leaves, strict=True)), **state})
        seconds.append(time.perf_counter() - start)
        results = dict(zip(names, found, strict=True))
        losses.append(float(results[said["loss"]]))
        state |= {name: results[output] for output, name in said["feeds_back"].items()}
    want = torchs_losses(made, batches, steps, 1)
    other = torchs_losses(made, batches, steps, 2)
    apart = [abs(a - b) / max(abs(b), 1e-3) for a, b in zip(losses, want, strict=True)]
    torchs = [abs(a - b) / max(abs(b), 1e-3) for a, b in zip(other, want, strict=True)]
    return {
        "first five": max(apart[:5]), "all": max(apart), "torch's own": max(torchs),
        "last over first": losses[-1] / losses[0], "nodes": len(proto.graph.node), "bytes": size,
        "seconds": statistics.median(seconds),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name, made in MODELS.items():
        if not re.search(arguments.only, name):
            continue
        try:
            found[name] = measure(made, arguments.steps, arguments.dynamic)
        except Exception as error:  # the next model is measured all the same
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            if not arguments.json:
                traceback.print_exc(limit=3)
        if not arguments.json:
            told = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in found[name].items()}
            print(f"{name:<18} {told}", flush=True)
    if arguments.json:
        print(json.dumps(found, indent=1))
    bad = [n for n, r in found.items() if "error" in r or r["first five"] > 1e-5]
    print(f"{len(found)} models, {len(bad)} wrong: {bad}", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
