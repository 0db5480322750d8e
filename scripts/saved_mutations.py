"""Descriptions of saved models with values that nobody has written: each is refused, or is right.

A program of its own, for ``sanitize_kernels.py --saved``: what ends it is told by its end.

usage: python scripts/saved_mutations.py FOLDER CASES SEED
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import os
import random
import shutil
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dort_rewriter
from dort_rewriter import ExecutionError, OrtBackend

SAYS_WHAT = frozenset(
    "views order offset outputs inputs name source result dict list tuple".split()
)
"""What a description alone says, and nothing can be held against: which part of a tensor a result
or a weight is, which weight an input is, which results there are, and which of a model's."""

LIMIT = 120
"""Seconds for a case, which takes some milliseconds."""

NUMBERS = (*(-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 1000), *(2**24, 2**31, 2**32, 2**40))
NUMBERS += (2**61, 2**62, 2**63 - 1, 2**63, 2**64, 10**30)
WORDS = (
    *("", "x", "class", "a.b", "../x", "/etc/passwd", "\n", "0", "nan", "cuda", "meta", "cpu:1"),
    *("float64", "float16", "bfloat16", "int8", "bool", "complex64", "quint8", "float8_e5m2"),
    *("aten::_reshape_alias", "aten::as_strided_", "aten::as_strided", "aten::view"),
    *("aten::slice_inverse", "aten::unfold", "aten::expand", "aten::select.int", "aten::t"),
    *("lay_out", "permute_", "getitem", "from_pairs", "aten::view.dtype", "aten::diagonal"),
    *("tensor", "int", "none", "input", "output", "model", "constant", "size", "state", "tuple"),
    *("InputDim", "InputSize", "SizeExpression", "ViewStep", "dtype", "floordiv", "mod", "mul"),
)


class Views(nn.Module):
    """Results that are views of one another, of arguments and of pairs."""

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = x * 2
        first, *more = y.split(2)
        turned = (x + 1).t()
        return {
            "parts": [first, *more],
            "turned": (turned, turned[1:, ::2], y.as_strided((2, 2), (1, 2), 1)),
            "argument": x[1:],
            "mask": (x > 0).unsqueeze(0),
            "rows": y.unfold(0, 2, 1).diagonal(0, 0, 1),
        }


class Counts(nn.Module):
    """Buffers that calls write to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8, 4))
        self.register_buffer("length", torch.tensor([0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.index_copy_(0, self.length % 8, x[:1])
        self.length.add_(1)
        return self.seen.sum(0) + x


class Attention(nn.Module):
    """Products, attention and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 4, 3, padding=1, groups=2)
        self.project = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.project(self.convolution(x)).view(x.shape[0], 4, 2, 8).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)


def save_all(folder: Path) -> dict[str, tuple[torch.Tensor, bool]]:
    """Save some models; their argument, and whether they were saved with gradients."""
    torch.manual_seed(0)
    small, image = torch.randn(4, 4), torch.randn(3, 4, 16)
    mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))
    wide = nn.Sequential(nn.Linear(4, 256), nn.ReLU(), nn.Linear(256, 4))
    subjects: dict[str, tuple[nn.Module, torch.Tensor, bool, bool | None]] = {
        "mlp": (mlp, small, False, True),
        "frozen": (wide, small, False, True),
        "views": (Views(), small, False, None),
        "counts": (Counts(), small, False, None),
        "attention": (Attention(), image, False, None),
        "step": (nn.Sequential(nn.Linear(4, 8), nn.ReLU()), small, True, None),
    }
    for name, (model, x, training, dynamic) in subjects.items():
        backend = OrtBackend({"freeze": name == "frozen"})
        compiled = torch.compile(model, backend=backend, dynamic=dynamic)
        with torch.set_grad_enabled(training):
            compiled(x)
            dort_rewriter.save(compiled, folder / name, x, training=training)
    return {name: (x, training) for name, (_, x, training, _) in subjects.items()}


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the ways to all values in a description, but for versions."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        if key in ("made_by", "format", "digest"):
            continue
        yield (*place, key)
        if isinstance(child, dict | list):
            yield from _places(child, (*place, key))


def _other(r: random.Random, value: Any, words: list[str]) -> Any:
    """Another value, most often of the same type."""
    if r.random() < 0.1:
        return r.choice((None, True, 1, -1, 1.5, "x", [], {}, [1], {"x": 1}))
    match value:
        case bool():
            return not value
        case int():
            near = (value + 1, value - 1, value * 2)
            return r.choice(near if r.random() < 0.3 else NUMBERS)
        case str():
            return r.choice(words if r.random() < 0.5 else WORDS)
        case list():
            return _other_list(r, value)
        case dict() if value:
            gone = r.choice(list(value))
            return {k: v for k, v in value.items() if k != gone}
    return r.choice((*NUMBERS, *words, [], {}))


def _other_list(r: random.Random, value: list[Any]) -> list[Any]:
    changed = list(value)
    match r.randrange(4) if value else 3:
        case 0:
            changed.pop(r.randrange(len(changed)))
        case 1:
            changed.insert(r.randint(0, len(changed)), r.choice(value))
        case 2:
            r.shuffle(changed)
        case _:
            changed += [r.choice(NUMBERS)] * r.choice((1, 2, 70))
    return changed


def mutate(r: random.Random, content: dict[str, Any]) -> set[str]:
    """Change one value, or some; what they belong to."""
    words = sorted({w for w in _words(content) if len(w) < 40})
    names: set[str] = set()
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        *way, last = r.choice(list(_places(content)))
        inner: Any = content
        for key in way:
            inner = inner[key]
        inner[last] = _other(r, inner[last], words)
        names.add(next(key for key in (last, *reversed(way)) if isinstance(key, str)))
    return names


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _words(child)


def call(folder: Path, x: torch.Tensor, *, training: bool) -> list[Any]:
    """Load a model and call it; the results, and the gradients of its parameters."""
    loaded = dort_rewriter.load(folder)
    with torch.set_grad_enabled(training):
        result = loaded(x.clone())
    found = list(_tensors(result))
    if derived := [t.sum() for t in found if t.requires_grad and not t.is_complex()]:
        torch.stack([t.float() for t in derived]).sum().backward()
        found += [p.grad for p in loaded.parameters()]
    return [_copy(t) for t in found if isinstance(t, torch.Tensor)]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for child in value.values() if isinstance(value, dict) else value:
            yield from _tensors(child)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy, of memory that has to be there: an address beyond it is found, not read."""
    last = tensor.storage_offset() + sum(
        (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    held = tensor.untyped_storage().nbytes()
    if tensor.numel() and (last + 1) * tensor.itemsize > held:
        raise AssertionError(f"{tensor.shape}, {tensor.stride()} of {held} bytes")
    return tensor.detach().clone() if tensor.numel() < 2**24 else tensor.detach()


def _alike(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        s.shape == t.shape and s.dtype == t.dtype and torch.equal(s, t)
        for s, t in zip(a, b, strict=True)
    )


def outcome(work: Callable[[], list[Any]], expected: list[Any], names: set[str]) -> str:
    """What a case came to: ``refused``, ``right``, ``other`` (a description of something else, by
    what was changed), or what it must not: ``believed``, or what it raised, and where."""
    try:
        if _alike(work(), expected):
            return "right"
        return "other" if names & SAYS_WHAT else "believed"
    except ExecutionError:
        return "refused"
    except Exception as error:  # counted, and told at the end
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised {type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def main(folder: Path, cases: int, seed: int) -> Counter[str]:
    """Count what became of changed descriptions, by model."""
    logging.disable()
    warnings.simplefilter("ignore")
    subjects = save_all(folder)
    right = {n: call(folder / n, x, training=t) for n, (x, t) in subjects.items()}
    counts: Counter[str] = Counter()
    for number in range(cases):
        r = random.Random(f"{seed} {number}")
        name = r.choice(list(subjects))
        changed = folder / "changed"
        shutil.rmtree(changed, ignore_errors=True)
        shutil.copytree(folder / name, changed, copy_function=os.link)
        path = changed / "saved.json"
        content = json.loads(path.read_text())["content"]
        path.unlink()
        names = mutate(r, content)
        text = json.dumps(content, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        path.write_text(f'{{"sha256": "{digest}",\n"content": {text}}}\n')
        print(f"{number} {name}", file=sys.stderr, flush=True)
        x, training = subjects[name]
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        found = outcome(partial(call, changed, x, training=training), right[name], names)
        faulthandler.cancel_dump_traceback_later()
        counts[f"{name} {found}"] += 1
    return counts


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))), flush=True)
