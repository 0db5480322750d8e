"""Entries of torch's ``op_db``: which, their samples as functions of tensors, how their results
are compared, and what measures all of them."""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from children import Lost, measured
from sweeps import require_backend, require_verdicts
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from dort_rewriter.compiler.differences import (
    Tolerance,
    difference,
    farthest,
    first_difference,
    limit_of,
)

__all__ = [
    *("Record", "arguments", "as_near", "call_of", "compare", "entries_named", "entry_name"),
    "evaluate",
    *("show_wrong", "spread", "summarize", "sweep", "within"),
]

Record = dict[str, Any]

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far a number of one operator may be from eager mode's, relative to itself."""


def within(expected: Any, *, sums: bool = True) -> Tolerance:
    """What is accepted for a result of one operator.

    The rounding of sums of large terms of both signs is in proportion to the terms.
    """
    limit = limit_of(expected, TOLERANCE)
    part = limit / 10
    return Tolerance(relative=limit, absolute=part, of_largest=part if sums else 0.0)


def compare(got: Sequence[Any], expected: Sequence[Any], values_count: bool = True) -> str:
    """What differs first of the results of an operator, or nothing."""
    if not values_count:
        got, expected = tree_map_only(torch.Tensor, torch.zeros_like, (got, expected))
    return first_difference(got, expected, within)


def as_near(
    got: Sequence[Any], expected: Sequence[Any], exact: Sequence[Any], factor: float = 1.0
) -> bool:
    """Whether results that differ from eager mode's are hardly farther from float64 than those."""
    return all(
        not difference(a, b, within(b)) or farthest(a, e) <= factor * farthest(b, e) < math.inf
        for a, b, e in zip(got, expected, exact, strict=True)
    )


def entry_name(entry: Any) -> str:
    """The name of an entry of op_db: ``div.no_rounding_mode``."""
    variant = entry.variant_test_name
    return f"{entry.name}.{variant}" if variant else str(entry.name)


def call_of(
    entry: Any, sample: Any, grad: bool
) -> tuple[Callable[..., list[torch.Tensor]], list[torch.Tensor]]:
    """A sample as a function of its tensors."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        full = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            full[i] = tensor
        first, args, kwargs = tree_unflatten(full, spec)
        result = entry.op(first, *args, **kwargs)
        if grad:  # makes what is known up to a sign or a phase comparable
            result = sample.output_process_fn_grad(result)
        return [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]

    return call, [leaves[i] for i in places]


def evaluate(
    function: Callable[..., Sequence[torch.Tensor]],
    tensors: Sequence[torch.Tensor],
    gradients_of: Callable[[int, torch.Tensor], torch.Tensor],
) -> tuple[list[torch.Tensor], list[Any]]:
    """Results, and gradients of what wants some, from copies of the arguments, which lie as they
    do; the random numbers are the same each time. ``gradients_of`` gives those of a result."""
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    torch.default_generator.manual_seed(1)
    results = list(function(*copies))
    ends = [r for r in results if r.requires_grad and r.is_floating_point()]
    starts = [c for c in copies if c.requires_grad]
    if not ends or not starts:
        return results, []
    torch.default_generator.manual_seed(2)
    seeds = [gradients_of(i, r) for i, r in enumerate(ends)]
    return results, list(torch.autograd.grad(ends, starts, seeds, allow_unused=True))


def spread(found: Iterable[Any], count: int, *, middle: bool = False) -> list[tuple[int, Any]]:
    """Samples from all over a list, with their numbers: neighbours are alike."""
    numbered = list(enumerate(itertools.islice(found, 200)))
    count = min(count, len(numbered))
    return [numbered[(2 * i + middle) * len(numbered) // (2 * count)] for i in range(count)]


def arguments(
    doc: str | None, *, samples: int, of: str, timeout: float = 120.0
) -> argparse.ArgumentParser:
    """The arguments of a script that measures entries."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", metavar="REGEX", help="only the entries whose whole name matches")
    parser.add_argument("--samples", type=int, default=samples, help=f"{of} (default {samples})")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--timeout", type=float, default=timeout, help="seconds until a record comes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what is found to this")
    parser.add_argument("--verbose", action="store_true", help="print findings as they come")
    os.environ.update(DORT_CACHE="0", DORT_STRICT="0", ONNXRT_CHANGE_REWRITER="1")
    return parser


def entries_named(pattern: str | None, dtype: torch.dtype | None = torch.float32) -> list[Any]:
    """The entries whose whole name matches, of those that support a type."""
    from torch.testing._internal.common_methods_invocations import op_db

    return [
        entry
        for entry in op_db
        if dtype is None or dtype in entry.supported_dtypes("cpu")
        if pattern is None or re.fullmatch(pattern, entry_name(entry))
    ]


def sweep(
    entries: Sequence[Any],
    measure: Callable[[Any], Iterable[Record]],
    args: argparse.Namespace,
    show: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Measure entries in processes that are replaced when they end, and return the records in
    order; each is shown when it comes.

    Ends this process where nothing, or not nearly all, could be judged.
    """
    require_backend()

    def measured_or_skipped(entry: Any) -> Iterator[Record]:
        warnings.simplefilter("ignore")
        try:
            yield from measure(entry)
        except Exception as e:  # samples that need a library which is not there, mostly
            yield {"status": "skipped", "detail": str(e)}

    torch.set_num_threads(1)
    found: dict[str, list[Record]] = {entry_name(e): [] for e in entries}
    limits: Any = {"workers": args.workers, "limit": args.timeout, "quiet": True}
    for entry, record in measured(entries, measured_or_skipped, **limits):
        if isinstance(record, Lost):
            record = {"graph": "unknown", "status": "error", "detail": str(record)}
        record = {"op": entry_name(entry), **record}
        found[record["op"]].append(record)
        show(record)
    skipped = [
        f"{name}: {records[0]['detail']}"
        for name, records in found.items()
        if records and all(r["status"] == "skipped" for r in records)
    ]
    require_verdicts(sum(map(bool, found.values())) - len(skipped), skipped)
    return [record for records in found.values() for record in records]


def summarize(
    records: Sequence[Record], entries: Sequence[Any], seconds: float, kept: Path | None
) -> int:
    """Print how many records there are of each status, and keep those that are not right;
    return 1 where something is wrong."""
    counts = collections.Counter(r["status"] for r in records)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    print(f"{len(entries)} entries in {seconds:.0f} s")
    if kept is not None:
        found = [r for r in records if r["status"] != "right"]
        kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(counts["wrong"] + counts["error"] > 0)


def show_wrong(record: Record) -> None:
    """Print what is wrong as it comes."""
    if record["status"] in ("wrong", "error"):
        print(json.dumps(record), flush=True)
