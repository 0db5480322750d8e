"""Entries of torch's ``op_db``: their names, their samples as functions of tensors, and the loop
of a process that measures them."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

__all__ = ["call_of", "entry_name", "serve"]


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
