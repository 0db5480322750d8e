"""Run torch's ``op_db`` on tensors that are not row-major, each sample a graph of its own.

usage: python scripts/op_db_layouts.py [--samples 2] [--ops REGEX] [--json FILE]

Arguments are made column-major, with all dimensions reversed, channels-last, or with gaps between
their elements. Results and gradients are compared with eager mode: values, dtypes, sizes, strides,
exceptions. Where AOTAutograd with eager mode's kernels (``aot_eager``) differs in the same way the
difference is torch's, and counted apart. Exits with 1 where something is wrong.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from coverage_worker import MEMORY_AS_FOUND
from op_db_entries import (
    Record,
    arguments,
    call_of,
    compare,
    entries_named,
    show_wrong,
    spread,
    summarize,
    sweep,
)
from special_samples import has_gaps
from torch.utils._pytree import tree_leaves

from dort_rewriter.compiler.differences import dense_strides


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


def measure(entry: Any, samples: int) -> Iterator[Record]:
    torch.manual_seed(0)
    grad = entry.supports_autograd
    found = entry.sample_inputs("cpu", torch.float32, requires_grad=grad)
    for number, sample in spread(filter(_has_axes, found), samples):
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
) -> Record | None:
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
    results = len(call(*arranged)) if isinstance(expected, list) else 0
    ours = differences(
        outcome(torch.compile(call, backend="onnxrt")), expected, values_count, results
    )
    if not ours:
        return {"status": "right"}
    theirs = differences(
        outcome(torch.compile(call, backend="aot_eager")), expected, values_count, results
    )
    status = "torch's" if theirs and theirs[0] == ours[0] else "wrong"
    return {"status": status, "kind": ours[0], "detail": ours[1][:300]}


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
    # AOTAutograd gives gradients of another layout that of the result.
    seeds = [torch.empty_like(r).copy_(torch.randn(r.shape)) for r in ends]
    return results + list(torch.autograd.grad(ends, starts, seeds, allow_unused=True))


def differences(
    got: Any, expected: Any, values_count: bool, results: int
) -> tuple[str, str] | None:
    """What kind of difference there is, and its words; behind so many results are gradients,
    which are dense where those of eager mode have gaps."""
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
        if i >= results and b is not None and has_gaps(b):
            continue
        if a is not None and dense_strides(a) != dense_strides(b):
            return (
                "stride",
                f"result {i}: {a.stride()} in place of {b.stride()} for {list(a.shape)}",
            )
    return None


def main() -> int:
    args = arguments(__doc__, samples=2, of="of each entry and layout").parse_args()
    start = time.monotonic()
    logging.disable(logging.WARNING)
    entries = entries_named(args.ops)

    records = sweep(entries, lambda entry: measure(entry, args.samples), args, show_wrong)
    return summarize(records, entries, time.monotonic() - start, args.json)


if __name__ == "__main__":
    sys.exit(main())
