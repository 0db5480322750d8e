"""Training steps of Llama with more and more rewriting rules, against eager mode.

usage: python scripts/examples/llama_fused_102.py [--config {small,medium,large}]
           [--num_hidden_layers N] [--with_mask {0,1}] [--repeat N] [--warmup N] [--folder DIR]

``--config small`` (or ``--size small``) is for two cores, ``medium`` for a few more, ``large`` for
a GPU. The steps of all variants alternate; ``avg_time`` is their median. The table is also written
as CSV, and as a bar chart.
"""

from __future__ import annotations

import argparse
import copy
import csv
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import onnx
import torch
from tqdm import tqdm
from transformers import LlamaConfig, LlamaModel

from dort_rewriter import dump_onnx, make_aot_ort
from dort_rewriter.tools.charts import bar_chart

CONFIGS = {
    "small": {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2},
    "medium": {"hidden_size": 1024, "intermediate_size": 1024, "num_attention_heads": 2},
    "large": {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32},
}
TEXT = {
    "small": {"vocab_size": 256, "batch": 2, "sequence": 64},
    "medium": {"vocab_size": 1024, "batch": 2, "sequence": 1024},
    "large": {"vocab_size": 32000, "batch": 2, "sequence": 1024},
}
VARIANTS = ("default", "default+onnxruntime", "default+onnxruntime+experimental")
TOLERANCE = 1e-3

Step = Callable[[], tuple[torch.Tensor, ...]]


@dataclass
class Row:
    """One line of the table; times are in seconds."""

    optim: str
    processor: str
    avg_time: float
    warmup: float
    N: int
    n_custom_ops: int
    speedup: float
    difference: float


def make_model(name: str, layers: int, mask: bool) -> tuple[LlamaModel, list[torch.Tensor]]:
    torch.manual_seed(0)
    text = TEXT[name]
    config = LlamaConfig(
        **CONFIGS[name],
        vocab_size=text["vocab_size"],
        num_hidden_layers=layers,
        max_position_embeddings=2048,
        attn_implementation="eager",
        use_cache=False,
    )
    shape = (text["batch"], text["sequence"])
    inputs = [torch.randint(0, text["vocab_size"], shape)]
    if mask:
        lengths = torch.arange(shape[1]).expand(shape)
        inputs.append((lengths < shape[1] - 3).to(torch.float32))
    return LlamaModel(config).train(), inputs


def training_step(model: Any, inputs: Sequence[torch.Tensor]) -> Step:
    parameters = list(model.parameters())

    def step() -> tuple[torch.Tensor, ...]:
        model.zero_grad(set_to_none=True)
        model(*inputs)[0].square().mean().backward()
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        return tuple(p.grad for p in parameters if p.grad is not None)

    return step


def timed(step: Step) -> tuple[float, tuple[torch.Tensor, ...]]:
    start = time.perf_counter()
    gradients = step()
    return time.perf_counter() - start, gradients


def difference(expected: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> float:
    return max(
        float((a - b).abs().max() / a.abs().max().clamp_min(1e-12))
        for a, b in zip(expected, got, strict=True)
    )


def custom_nodes(files: Sequence[Path]) -> int:
    """Count the nodes that are not ONNX's; some of onnxruntime's are in ONNX's domain."""
    models = [onnx.load(file) for file in files if file.suffix == ".onnx"]
    nodes = [node for model in models for node in model.graph.node]
    return sum(not onnx.defs.has(node.op_type, node.domain) for node in nodes)


def run(options: argparse.Namespace) -> list[Row]:
    """Compile every variant, then let their steps alternate."""
    model, inputs = make_model(options.config, options.num_hidden_layers, options.with_mask == 1)
    model = model.to(options.device)
    inputs = [tensor.to(options.device) for tensor in inputs]
    processor = "CUDA" if options.device == "cuda" else "CPU"
    steps = {"eager": training_step(copy.deepcopy(model), inputs)}
    for variant in VARIANTS:
        backend, _ = make_aot_ort(enable_pattern=variant, processor=processor)
        compiled = torch.compile(copy.deepcopy(model), backend=backend, fullgraph=True)
        steps[variant] = training_step(compiled, inputs)

    rows = []
    expected: tuple[torch.Tensor, ...] = ()
    for name, step in tqdm(steps.items(), desc="warm-up", disable=None):
        with dump_onnx(f"llama_{name}", folder=options.folder, clean=True) as files:
            first, gradients = timed(step)
        warmup = first + sum(timed(step)[0] for _ in range(options.warmup - 1))
        expected = expected or tuple(g.clone() for g in gradients)
        rows.append(
            Row(
                optim=name,
                processor=processor,
                avg_time=0.0,
                warmup=warmup,
                N=options.repeat,
                n_custom_ops=custom_nodes(files),
                speedup=1.0,
                difference=difference(expected, gradients),
            )
        )
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in tqdm(range(options.repeat), desc="repeat", disable=None):
        for name, step in steps.items():
            times[name].append(timed(step)[0])
    for row in rows:
        row.avg_time = statistics.median(times[row.optim])
        row.speedup = statistics.median(times["eager"]) / row.avg_time
    return rows


def print_table(rows: Sequence[Row]) -> None:
    names = [field.name for field in fields(Row)]
    table = [names] + [
        [f"{v:.4g}" if isinstance(v, float) else str(v) for v in asdict(row).values()]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in table) for i in range(len(names))]
    for line in table:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]))


def write(rows: Sequence[Row], folder: Path) -> None:
    with (folder / "llama_fused.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    bars = {row.optim: row.speedup for row in rows}
    chart = bar_chart(bars, "speed of a training step, eager = 1", width=820)
    (folder / "llama_fused.svg").write_text(chart, encoding="utf-8")
    print(f"\nAlso in {folder / 'llama_fused.csv'} and {folder / 'llama_fused.svg'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", "--size", choices=CONFIGS, default="small")
    parser.add_argument("--num_hidden_layers", type=int, default=1)
    parser.add_argument("--with_mask", type=int, choices=(0, 1), default=1)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, default=Path("llama_fused"))
    rows = run(options := parser.parse_args())
    print_table(rows)
    write(rows, options.folder)
    if wrong := [row.optim for row in rows if not row.difference < TOLERANCE]:
        raise SystemExit(f"The gradients of {', '.join(wrong)} are not those of eager mode.")


if __name__ == "__main__":
    main()
