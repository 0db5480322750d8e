"""One training step of Llama through ONNX Runtime: onnxscript's exporter, then this package's.

usage: python scripts/examples/custom_exporter_llama.py [--layers N] [--hidden N] [--sequence N]
                                                        [--folder DIR]

Both steps write the models they run, forward and backward. The program prints their nodes by
type side by side, and how far the gradients are from those of eager mode.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx
import torch
from transformers import LlamaConfig, LlamaModel

from dort_rewriter import assert_all_close, dump_onnx, make_aot_ort, train_loop

PREFIX = "dort-llama-ort"


@dataclass
class Step:
    """What one training step gave."""

    gradients: tuple[torch.Tensor, ...]
    models: list[Path]
    seconds: float

    def nodes(self) -> list[Counter[str]]:
        return [Counter(n.op_type for n in onnx.load(m).graph.node) for m in self.models]


def make_model(layers: int, hidden: int, sequence: int) -> tuple[LlamaModel, list[torch.Tensor]]:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        vocab_size=1024,
        intermediate_size=hidden,
        max_position_embeddings=max(1024, sequence),
        num_attention_heads=2,
        attn_implementation="eager",
        use_cache=False,
    )
    ids = torch.randint(0, 1024, (2, sequence))
    return LlamaModel(config).train(), [ids, torch.ones(2, sequence)]


def train_compiled(model: LlamaModel, inputs: list[torch.Tensor], folder: Path) -> Step:
    torch._dynamo.reset()
    local_aot_ort, _ = make_aot_ort(dynamic=True, verbose=1)
    optimized_mod = torch.compile(copy.deepcopy(model), backend=local_aot_ort, fullgraph=True)
    start = time.perf_counter()
    with dump_onnx(PREFIX, folder=folder, clean=True) as files:
        gradients = train_loop(optimized_mod, *inputs)
    seconds = time.perf_counter() - start
    return Step(gradients, [file for file in files if file.suffix == ".onnx"], seconds)


def report(title: str, step: Step, eager: tuple[torch.Tensor, ...]) -> float:
    worst = max(
        float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
        for expected, got in zip(eager, step.gradients, strict=True)
    )
    print(f"\n{title}: {step.seconds:.2f} s with compilation, gradients off by {worst:.1e}")
    for model, nodes in zip(step.models, step.nodes(), strict=True):
        print(f"  {model}: {nodes.total()} nodes")
        for name, count in nodes.most_common():
            print(f"    {count:>4} {name}")
    return worst


def compare(baseline: Step, rewritten: Step) -> None:
    """Print the nodes of both exporters side by side, those that are gone first."""
    print("\nNodes of both exporters, forward and backward together:")
    before = sum(baseline.nodes(), Counter[str]())
    after = sum(rewritten.nodes(), Counter[str]())
    print(f"  {'type':<24} {'baseline':>9} {'rewriter':>9} {'change':>7}")
    for name in sorted(before | after, key=lambda n: (after[n] - before[n], n)):
        change = after[name] - before[name]
        print(f"  {name:<24} {before[name]:>9} {after[name]:>9} {change:>+7}")
    print(f"  {'all':<24} {before.total():>9} {after.total():>9}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=1024)
    parser.add_argument("--folder", type=Path, default=Path("dump_llama"))
    options = parser.parse_args()

    model, inputs = make_model(options.layers, options.hidden, options.sequence)
    eager = train_loop(copy.deepcopy(model), *inputs)

    os.environ["ONNXRT_CHANGE_REWRITER"] = "0"
    baseline = train_compiled(model, inputs, options.folder / "baseline")
    report("Baseline, onnxscript's exporter alone", baseline, eager)

    os.environ["ONNXRT_CHANGE_REWRITER"] = "1"
    rewritten = train_compiled(model, inputs, options.folder)
    report("ONNXRT_CHANGE_REWRITER=1", rewritten, eager)

    compare(baseline, rewritten)
    assert_all_close(eager, rewritten.gradients, atol=1e-4, rtol=1e-3)


if __name__ == "__main__":
    main()
