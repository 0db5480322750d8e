"""Entries of torch's ``op_db``: their names, their samples as functions of tensors, and the loop
of a process that measures them."""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from dort_rewriter.compiler.differences import (
    Tolerance,
    difference,
    farthest,
    first_difference,
    limit_of,
)

__all__ = ["as_near", "call_of", "compare", "entry_name", "serve", "within"]

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


def serve(
    entries: Mapping[str, Any], measure: Callable[[Any], Iterable[Mapping[str, Any]]]
) -> None:
    """Read names of entries, write their records: what ``opset_coverage.Worker`` talks to."""
    # What torch or a kernel prints must not mix with the records.
    records = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for line in sys.stdin:
        name = line.strip()
        try:
            for record in measure(entries[name]):
                records.write(json.dumps({"op": name, **record}) + "\n")
        except Exception as e:  # samples that need a library which is not there, mostly
            records.write(json.dumps({"op": name, "status": "skipped", "detail": str(e)}) + "\n")
        records.write(json.dumps({"done": name}) + "\n")
