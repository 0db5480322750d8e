"""One token of a Llama through a static cache of keys and values: milliseconds by backend.

usage: python scripts/bench_decode.py [--length 4096] [--width 512] [--layers 4] [--heads 8]
           [--groups 8,2] [--backends eager,inductor,onnxrt,onnxrt-freeze,int8,int4]
           [--threads N] [--seconds S] [--json FILE]

``--groups`` are numbers of heads of keys and values, a row each; ``int8`` and ``int4`` are
``onnxrt-freeze`` with weights of so many bits. Results are compared with eager mode's before
anything is timed (those of rounded weights differ); the steps are made in turns, on a cache that
fills, and begins anew when it is full. It needs transformers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from dort_rewriter import OrtBackend
from dort_rewriter.tools.benchmark import alternate, largest_difference, make_call

VOCABULARY = 4096
LOW_BITS = ("int8", "int4")
"""The backends that are named by an option ``weights``."""


class Decoder(nn.Module):
    """A Llama that holds its cache: the tensors are buffers."""

    def __init__(self, arguments: argparse.Namespace, groups: int) -> None:
        super().__init__()
        config = LlamaConfig(
            hidden_size=arguments.width,
            intermediate_size=arguments.width * 11 // 4,
            num_hidden_layers=arguments.layers,
            vocab_size=VOCABULARY,
            num_attention_heads=arguments.heads,
            num_key_value_heads=groups,
            max_position_embeddings=arguments.length,
        )
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(config).eval()
        self.cache = StaticCache(config=config, max_cache_len=arguments.length)
        size = arguments.width // arguments.heads
        self.cache.early_initialization(1, groups, size, torch.float32, torch.device("cpu"))
        for i, layer in enumerate(self.cache.layers):
            for name in ("keys", "values", "cumulative_length"):
                self.register_buffer(f"{name}_{i}", getattr(layer, name))

    def forward(self, token: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(token, None, None, self.cache, use_cache=True).logits
        return logits

    def begin_anew(self) -> None:
        """Let the next token be the first: what is in the cache is masked."""
        for layer in self.cache.layers:
            layer.cumulative_length.zero_()


def step_of(arguments: argparse.Namespace, groups: int, backend: str) -> Callable[[], Any]:
    """The next token of a decoder of its own."""
    rounded = backend in LOW_BITS
    chosen = OrtBackend({"freeze": True, "weights": backend}) if rounded else backend
    decoder, token = Decoder(arguments, groups), torch.tensor([[3]])
    call, places = make_call(decoder, chosen), itertools.cycle(range(arguments.length))

    def step() -> Any:
        if next(places) == 0:
            decoder.begin_anew()
        with torch.no_grad():
            return call(token)

    return step


def measure(arguments: argparse.Namespace, groups: int) -> dict[str, Any]:
    torch._dynamo.reset()
    names = arguments.backends.split(",")
    steps = {name: step_of(arguments, groups, name) for name in names}
    expected = step_of(arguments, groups, "eager")()
    far = {name: largest_difference([step()], [expected]) for name, step in steps.items()}
    for step in steps.values():
        step()
    spent = alternate(steps, arguments.seconds, time.perf_counter)
    ms = {name: statistics.median(values) * 1e3 for name, values in spent.items()}
    settings = {n: getattr(arguments, n) for n in ("length", "width", "layers", "heads")}
    threads = torch.get_num_threads()
    return {**settings, "groups": groups, "threads": threads, "ms": ms, "difference": far}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--groups", default="8,2")
    parser.add_argument("--backends", default="eager,inductor,onnxrt,onnxrt-freeze")
    parser.add_argument("--threads", type=int, help="of torch and of sessions")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    rows = []
    for groups in map(int, arguments.groups.split(",")):
        rows.append(row := measure(arguments, groups))
        times = "  ".join(f"{name} {t:.2f}" for name, t in row["ms"].items())
        far = "  ".join(f"{name} {d:.1e}" for name, d in row["difference"].items())
        print(f"{row['heads']} heads, {groups} of keys: {times} ms; differences {far}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
