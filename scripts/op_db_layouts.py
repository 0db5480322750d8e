"""Run torch's ``op_db`` on tensors that are not row-major, each sample a graph of its own.

usage: python scripts/op_db_layouts.py [--samples 2] [--only REGEX] [--json FILE]

Arguments are made column-major, with all dimensions reversed, channels-last, or with gaps between
their elements. Results and gradients are compared with eager mode: values, dtypes, sizes, strides,
exceptions. Where AOTAutograd with eager mode's kernels (``aot_eager``) differs in the same way the
difference is torch's, and counted apart. Exits with 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import multiprocessing
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from child_records import receive_until_closed
from coverage_worker import MEMORY_AS_FOUND, compare
from op_db_entries import call_of, entry_name
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

FORKS = multiprocessing.get_context("fork")
AT_ONCE = 20
SECONDS = 600.0
"""How long a process may take for so many entries."""


def column_major(value: torch.Tensor) -> torch.Tensor:
    return value.mT.contiguous().mT if value.dim() > 1 else value


def reversed_axes(value: torch.Tensor) -> torch.Tensor:
    axes = tuple(reversed(range(value.dim())))
    return value.permute(axes).contiguous().permute(axes)


def channels_last(value: torch.Tensor) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return value.contiguous(memory_format=formats.get(value.dim(), torch.contiguous_format))


def with_gaps(value: torch.Tensor) -> torch.Tensor:
    if value.dim() == 0:
        return value
    wide = value.new_zeros((*value.shape[:-1], 2 * value.shape[-1]))
    wide[..., ::2] = value
    return wide[..., ::2]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    f.__name__: f for f in (column_major, reversed_axes, channels_last, with_gaps)
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=2, help="of each entry and layout")
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--json", type=Path, help="write what differs to this file")
    arguments = parser.parse_args()
    chosen = [e for e in op_db if re.search(arguments.only, entry_name(e))]
    counts: Counter[str] = Counter()
    found = []
    for first in range(0, len(chosen), AT_ONCE):
        for record in run_in_a_process(chosen[first : first + AT_ONCE], arguments.samples):
            counts[record["verdict"]] += 1
            if record["verdict"] != "right":
                found.append(record)
            if record["verdict"] == "wrong":
                print(json.dumps(record), flush=True)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    return int(counts["wrong"] > 0)


def run_in_a_process(entries: list[Any], samples: int) -> Iterator[dict[str, Any]]:
    """The records of entries; the one at which the process ends, and no other, is lost."""
    while entries:
        receiver, sender = FORKS.Pipe(duplex=False)
        process = FORKS.Process(target=send_records, args=(entries, samples, sender))
        process.start()
        sender.close()
        records, _ = receive_until_closed(receiver)
        process.kill()
        process.join()
        yield from (r for r in records if "verdict" in r)
        done = [r["done"] for r in records if "done" in r]
        entries = entries[len(done) :]
        if entries:
            detail = f"the process ended with {process.exitcode}"
            yield {"verdict": "wrong", "op": entry_name(entries[0]), "detail": detail}
            entries = entries[1:]


def send_records(entries: list[Any], samples: int, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    with sender:
        for entry in entries:
            for record in measure(entry, samples):
                sender.send({"op": entry_name(entry), **record})
            sender.send({"done": entry_name(entry)})


def measure(entry: Any, samples: int) -> Iterator[dict[str, Any]]:
    if torch.float32 not in entry.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    grad = entry.supports_autograd
    try:
        numbered = list(
            enumerate(
                itertools.islice(
                    entry.sample_inputs("cpu", torch.float32, requires_grad=grad), 200
                )
            )
        )
    except Exception:  # it needs a library that is not there
        return
    numbered = [(i, s) for i, s in numbered if _has_axes(s)]
    count = min(samples, len(numbered))
    for number, sample in [numbered[i * len(numbered) // count] for i in range(count)]:
        seen: set[Any] = set()
        for layout, arrange in LAYOUTS.items():
            record = judge(entry, sample, arrange, grad, seen)
            if record is not None:
                yield {"layout": layout, "sample": number, **record}


def _has_axes(sample: Any) -> bool:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return any(isinstance(t, torch.Tensor) and t.dim() > 0 for t in leaves)


def judge(
    entry: Any,
    sample: Any,
    arrange: Callable[[torch.Tensor], torch.Tensor],
    grad: bool,
    seen: set[Any],
) -> dict[str, Any] | None:
    call, tensors = call_of(entry, sample, grad)
    arranged = [arrange(t.detach()) for t in tensors]
    key = tuple(t.stride() for t in arranged)
    if key in seen or all(t.is_contiguous() for t in arranged):
        return None
    seen.add(key)

    needed = [t.requires_grad for t in tensors]

    def outcome(function: Callable[..., list[torch.Tensor]]) -> Any:
        torch._dynamo.reset()
        copies = [
            arrange(t.clone()).requires_grad_(n) for t, n in zip(arranged, needed, strict=True)
        ]
        try:
            return evaluate(function, copies)
        except Exception as error:  # whatever is raised is compared
            return error

    expected = outcome(call)
    if not isinstance(expected, Exception) and not expected:
        return None
    values_count = entry.name not in MEMORY_AS_FOUND
    ours = differences(outcome(torch.compile(call, backend="onnxrt")), expected, values_count)
    if not ours:
        return {"verdict": "right"}
    theirs = differences(outcome(torch.compile(call, backend="aot_eager")), expected, values_count)
    verdict = "torch's" if theirs and theirs[0] == ours[0] else "wrong"
    return {"verdict": verdict, "kind": ours[0], "detail": ours[1][:300]}


def evaluate(
    function: Callable[..., list[torch.Tensor]], tensors: list[torch.Tensor]
) -> list[Any]:
    torch.manual_seed(1)
    results = list(function(*tensors))
    ends = [r for r in results if r.requires_grad]
    starts = [t for t in tensors if t.requires_grad]
    if not ends or not starts:
        return results
    torch.manual_seed(2)
    seeds = [torch.randn(r.shape, dtype=r.dtype) for r in ends]
    return results + list(torch.autograd.grad(ends, starts, seeds, allow_unused=True))


def differences(got: Any, expected: Any, values_count: bool) -> tuple[str, str] | None:
    """What kind of difference there is, and its words."""
    if isinstance(got, Exception) or isinstance(expected, Exception):
        if type(got) is type(expected):
            return None
        names = [
            f"{type(x).__name__}: {' '.join(str(x).split())}"
            if isinstance(x, Exception)
            else "numbers"
            for x in (got, expected)
        ]
        return "exception", " in place of ".join(n[:140] for n in names)
    if text := compare(got, expected, values_count):
        return "value", text
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a is not None and _steps(a) != _steps(b):
            return (
                "stride",
                f"result {i}: {a.stride()} in place of {b.stride()} for {list(a.shape)}",
            )
    return None


def _steps(value: torch.Tensor) -> list[int]:
    """The strides that say where elements are."""
    if value.numel() == 0:
        return []
    return [s for s, n in zip(value.stride(), value.shape, strict=True) if n > 1]


if __name__ == "__main__":
    sys.exit(main())
