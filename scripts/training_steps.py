"""Train exported steps by plain onnxruntime, beside torch's own loop.

usage: python scripts/training_steps.py [--only REGEX] [--steps 50] [--dynamic] [--json]
                                        [--time SECONDS] [--keep]

For each model ``export_training_step`` writes a folder; its step runs on one thread of
onnxruntime, on the same batches as torch's loop. A line for each model: the largest
relative difference of the losses of the first five steps, of all steps; that of torch's own loop
on two threads, or with each weight moved by a rounding, to the one on one thread; the last loss
over the first, nodes and bytes. ``--time`` adds the processor time of a step, torch's and
onnxruntime's in turns on one thread, medians. ``--keep`` puts what was measured into
``docs/training_steps.json``, out of which ``scripts/make_docs.py`` writes the table of
``docs/training_files.md``.

Exits with 1 if a model is wrong: by more than 1e-5 in the first five steps, by more than twice
torch's own difference (and 1e-6) in all; a loss that is not halved; a file above 2 MB.

Torch's loops of one model are roundings of the same kernels, in the same order: they share most of
what separates them from the truth, and differ by little, or by nothing, by chance. So where the
file differs by more, the same steps in float64 are the judge: the file is right if its losses are
at most twice as far from those as torch's own loops are. Seen with torch 2.8: two loops of
gpt2-4x256 differ by 1e-6, where each of them is 1.3e-5 from float64, and the file 1.2e-5.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402
from training_figures import keep  # noqa: E402

from dort_rewriter import export_training_step  # noqa: E402
from dort_rewriter.tools.benchmark import alternate  # noqa: E402

BATCH = 8
BATCHES = 2
MOST_BYTES = 2_000_000

Example = tuple[Any, Any]
Optimizer = Callable[[Any], torch.optim.Optimizer]


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
        x = torch.relu(self.told(self.a(x), edges))
        return self.told(self.b(x), edges)

    def told(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])


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


def alike(*shape: int) -> Example:
    """Rows that a few numbers describe, as their own target."""
    x = torch.einsum("bk,k...->b...", torch.randn(BATCH, 3), torch.randn(3, *shape))
    return x, x.clone()


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


OF_IMAGES = "ResNetForImageClassification"


def wide(layers: int, size: int) -> dict[str, int]:
    return {"num_hidden_layers": layers, "hidden_size": size, "intermediate_size": 4 * size}


def ids(length: int = 12) -> torch.Tensor:
    return torch.randint(1, 60, (BATCH, length))


def adam(rate: float = 1e-2) -> Optimizer:
    return lambda p: torch.optim.Adam(p, lr=rate)


def adamw(rate: float = 3e-3) -> Optimizer:
    return lambda p: torch.optim.AdamW(p, lr=rate)


def sgd(rate: float = 0.05) -> Optimizer:
    return lambda p: torch.optim.SGD(p, lr=rate, momentum=0.9)


Made = tuple[Callable[[], nn.Module], Any, Optimizer, Callable[[], Example]]

MODELS: dict[str, Made] = {
    "mlp": (lambda: seq(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4)), logits, adam(),
            lambda: (rows(10), classes())),
    "mlp-norms": (lambda: seq(nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4)),
                  logits, adamw(), lambda: (rows(10), classes())),
    "regression": (lambda: seq(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1)), F.mse_loss, sgd(),
                   lambda: (rows(10), rows(1))),
    "huber-rmsprop": (lambda: seq(nn.Linear(10, 32), nn.SiLU(), nn.Linear(32, 1)), F.huber_loss,
                      lambda p: torch.optim.RMSprop(p, lr=3e-3), lambda: (rows(10), rows(1))),
    "logistic-adagrad": (lambda: nn.Linear(10, 1), F.binary_cross_entropy_with_logits,
                         lambda p: torch.optim.Adagrad(p, lr=1.0),
                         lambda: (rows(10), torch.rand(BATCH, 1).round())),
    "cnn": (lambda: seq(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Flatten(), nn.Linear(72, 4)), logits, adam(),
            lambda: (rows(3, 8, 8), classes())),
    "resnet": (lambda: seq(nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8),
                           nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), logits, sgd(),
               lambda: (rows(3, 8, 8), classes())),
    "autoencoder": (lambda: seq(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 12)), F.mse_loss, adam(),
                    lambda: alike(12)),
    "conv-autoencoder": (lambda: seq(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(),
                                     nn.ConvTranspose2d(4, 1, 4, 2, 1)), F.l1_loss, adam(5e-2),
                         lambda: alike(1, 8, 8)),
    "conv1d": (lambda: seq(nn.Conv1d(2, 8, 3), nn.GroupNorm(2, 8), nn.ELU(), nn.Flatten(),
                           nn.Linear(64, 4)), logits, adam(), lambda: (rows(2, 10), classes())),
    "gru": (lambda: Recurrent(nn.GRU), logits, adam(), lambda: (rows(5, 6), classes())),
    "lstm": (lambda: Recurrent(nn.LSTM), logits, adam(), lambda: (rows(5, 6), classes())),
    "rnn": (lambda: Recurrent(nn.RNN), logits, sgd(), lambda: (rows(5, 6), classes())),
    "gnn": (GraphNet, logits, adam(),
            lambda: ((rows(5), torch.randint(0, BATCH, (2, 20))), classes())),
    "embedding-bag": (Embedded, logits, lambda p: torch.optim.Adagrad(p, lr=0.1),
                      lambda: (torch.randint(0, 30, (BATCH, 6)), classes())),
    "encoder": (lambda: Attending(False), logits, adamw(), lambda: (rows(5, 16), classes())),
    "decoder": (lambda: Attending(True), logits, adamw(), lambda: (rows(5, 16), classes())),
    "lora": (Adapted, logits, adam(), lambda: (rows(10), classes())),
    "mapping": (GraphNet, logits, adam(), lambda: (
        {"x": rows(5), "edges": torch.randint(0, BATCH, (2, 20))}, classes())),
    "bert": (lambda: of_transformers("Bert"), logits, adamw(), lambda: (ids(), classes())),
    "distilbert": (lambda: of_transformers("DistilBert", dim=32, hidden_dim=64, n_layers=2,
                                           n_heads=4), logits, adamw(),
                   lambda: (ids(), classes())),
    "gpt2": (lambda: of_transformers("GPT2", kind="GPT2LMHeadModel", n_embd=32, n_layer=2,
                                     n_head=4), logits, adamw(), lambda: (ids(), ids())),
    "llama": (lambda: of_transformers("Llama", kind="LlamaForCausalLM", num_key_value_heads=2),
              logits, adamw(), lambda: (ids(), ids())),
    "qwen2": (lambda: of_transformers("Qwen2", kind="Qwen2ForCausalLM", num_key_value_heads=2),
              logits, adamw(), lambda: (ids(), ids())),
    "vit": (lambda: of_transformers("ViT", image_size=16, patch_size=4, num_channels=3,
                                    kind="ViTForImageClassification"), logits, adamw(),
            lambda: (rows(3, 16, 16), classes())),
    "resnet-bottle": (lambda: of_transformers("ResNet", embedding_size=8, hidden_sizes=[8, 16],
                                              depths=[1, 1], kind=OF_IMAGES), logits, sgd(1e-2),
                      lambda: (rows(3, 16, 16), classes())),
    # As large as those that people train on their own machine.
    "resnet18": (lambda: of_transformers("ResNet", hidden_sizes=[64, 128, 256, 512],
                                         depths=[2, 2, 2, 2], layer_type="basic",
                                         kind=OF_IMAGES), logits, sgd(3e-5),
                 lambda: (rows(3, 64, 64), classes())),
    "bert-12x128": (lambda: of_transformers("Bert", **wide(12, 128)), logits, adamw(3e-4),
                    lambda: (ids(32), classes())),
    "gpt2-4x256": (lambda: of_transformers("GPT2", kind="GPT2LMHeadModel", **wide(4, 256)),
                   logits, adamw(3e-4), lambda: (ids(32), ids(32))),
    "llama-4x256": (lambda: of_transformers("Llama", kind="LlamaForCausalLM",
                                            num_key_value_heads=2, **wide(4, 256)),
                    logits, adamw(3e-4), lambda: (ids(32), ids(32))),
    "vit-6x192": (lambda: of_transformers("ViT", image_size=64, patch_size=8, num_channels=3,
                                          kind="ViTForImageClassification", **wide(6, 192)),
                  logits, adamw(3e-4), lambda: (rows(3, 64, 64), classes())),
}  # fmt: skip


class Torchs:
    """A model trained by torch, on one batch after the other."""

    def __init__(
        self, made: Made, batches: Sequence[Example], *, moved: bool = False, exact: bool = False
    ) -> None:
        build, self.loss, optimizer, _ = made
        torch.manual_seed(0)
        self.model = build().train()
        if exact:
            self.model.double()
            batches = tree_map_only(torch.Tensor, as_exact, batches)
        if moved:  # each weight by a rounding
            with torch.no_grad():
                for p in self.model.parameters():
                    up = torch.rand_like(p) < 0.5
                    p.copy_(torch.nextafter(p, torch.where(up, math.inf, -math.inf)))
        self.optimizer = optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.batches = itertools.cycle(batches)

    def __call__(self) -> float:
        given, target = next(self.batches)
        if isinstance(given, dict):
            output = self.model(**given)
        else:
            output = self.model(*given) if isinstance(given, tuple) else self.model(given)
        value = self.loss(output, target)
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        return float(value.item())


def as_exact(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


class Files:
    """The same by a folder and onnxruntime."""

    def __init__(self, folder: Path, batches: Sequence[Example]) -> None:
        import onnxruntime
        from safetensors.numpy import load_file
        from torch.utils._pytree import tree_leaves

        self.said = json.loads((folder / "training.json").read_text())
        self.state = load_file(str(folder / "state.safetensors"))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(folder / "step.onnx"), settings, ["CPUExecutionProvider"]
        )
        self.names = [o.name for o in self.session.get_outputs()]
        fed = [[leaf.numpy() for leaf in tree_leaves(batch)] for batch in batches]
        self.batches = itertools.cycle(
            dict(zip(self.said["batch"], leaves, strict=True)) for leaves in fed
        )

    def __call__(self) -> float:
        found = self.session.run(None, {**next(self.batches), **self.state})
        results = dict(zip(self.names, found, strict=True))
        self.state |= {name: results[output] for output, name in self.said["feeds_back"].items()}
        return float(results[self.said["loss"]])


def dynamic(part: Any) -> Any:
    """The first dimension of all that has one row a sample varies."""
    if isinstance(part, torch.Tensor):
        return {0: "batch"} if part.dim() and part.shape[0] == BATCH else None
    if isinstance(part, dict):
        return {k: dynamic(v) for k, v in part.items()}
    return tuple(dynamic(v) for v in part)


def losses_of(step: Callable[[], float], steps: int, threads: int = 1) -> list[float]:
    torch.set_num_threads(threads)
    try:
        return [step() for _ in range(steps)]
    finally:
        torch.set_num_threads(1)


def apart(got: Sequence[float], want: Sequence[float]) -> float:
    """The largest relative difference."""
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in zip(got, want, strict=True))


def measure(made: Made, steps: int, is_dynamic: bool, seconds: float) -> dict[str, Any]:
    import onnx

    build, loss, optimizer, example = made
    torch.manual_seed(1)
    batches = [example() for _ in range(BATCHES)]
    torch.manual_seed(0)
    model = build().train()
    of_model = optimizer([p for p in model.parameters() if p.requires_grad])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes = tuple(dynamic(p) for p in batches[0]) if is_dynamic else None
        export_training_step(model, loss, of_model, batches[0], folder, dynamic_shapes=shapes)
        proto = onnx.load(folder / "step.onnx")
        onnx.checker.check_model(proto)
        ours, torchs = Files(folder, batches), Torchs(made, batches)
        size = (folder / "step.onnx").stat().st_size
    losses, want = losses_of(ours, steps), losses_of(torchs, steps)
    others = [losses_of(Torchs(made, batches), steps, threads=2)]
    others += [losses_of(Torchs(made, batches, moved=True), steps)]
    found: dict[str, Any] = {
        "first five": apart(losses[:5], want[:5]), "all": apart(losses, want),
        "torch's own": max(apart(other, want) for other in others),
        "last over first": sum(losses[-BATCHES:]) / sum(losses[:BATCHES]),
        "nodes": len(proto.graph.node), "bytes": size,
        "parameters": sum(p.numel() for p in model.parameters()),
    }  # fmt: skip
    if found["all"] > most_apart(found):
        exact = losses_of(Torchs(made, batches, exact=True), steps)
        found["from float64"] = apart(losses, exact)
        found["torch's from float64"] = max(apart(other, exact) for other in (want, *others))
    if seconds:
        steps_of: dict[str, Callable[[], Any]] = {"torch": torchs, "onnxruntime": ours}
        times = alternate(steps_of, seconds, time.process_time)
        found["milliseconds"] = {k: 1000 * statistics.median(v) for k, v in times.items()}
    return found


def most_apart(found: Mapping[str, Any]) -> float:
    """How far losses may be from torch's."""
    return max(2 * found["torch's own"], 1e-6)


def reasons(found: Mapping[str, Any]) -> list[str]:
    """What is wrong with what was measured."""
    if "error" in found:
        return [found["error"]]
    wrong = {
        "the first five steps": found["first five"] > 1e-5,
        "later steps": found["all"] > most_apart(found)
        and found["from float64"] > 2 * found["torch's from float64"],
        "its loss is not halved": not found["last over first"] <= 0.5,
        "large": found["bytes"] > MOST_BYTES,
    }
    return [what for what, is_so in wrong.items() if is_so]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--time", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    bad: dict[str, list[str]] = {}
    for name, made in MODELS.items():
        if not re.search(arguments.only, name):
            continue
        try:
            found[name] = measure(made, arguments.steps, arguments.dynamic, arguments.time)
        except Exception as error:  # the next model is measured all the same
            found[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            if not arguments.json:
                traceback.print_exc(limit=3)
        if wrong := reasons(found[name]):
            bad[name] = wrong
        if not arguments.json:
            told = {k: f"{v:.3g}" if isinstance(v, float) else v for k, v in found[name].items()}
            print(f"{name:<18} {told} {wrong or ''}", flush=True)
        if arguments.keep and not wrong:
            keep({name: found[name]}, "dynamic" if arguments.dynamic else "static", [*MODELS])
    if arguments.json:
        print(json.dumps(found, indent=1))
    print(f"{len(found)} models, {len(bad)} wrong: {bad}", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
