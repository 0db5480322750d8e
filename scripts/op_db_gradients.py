"""Write the gradients of torch's ``op_db`` as files of standard operators, and run the files.

usage: python scripts/op_db_gradients.py [--samples 2] [--ops REGEX] [--reference N] [--json FILE]

Each sample is a model that calls its operator and returns ``torch.autograd.grad``; ``to_onnx``
writes it, plain onnxruntime runs the file, and eager mode is the judge, in float64 where two
roundings differ. With ``--reference N`` ONNX's reference evaluator runs each Nth file as well.
Exits with 1 where a number is wrong.
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from op_db_entries import (
    Record,
    arguments,
    as_near,
    call_of,
    compare,
    entries_named,
    show_wrong,
    spread,
    summarize,
    sweep,
)
from torch.utils._python_dispatch import TorchDispatchMode


class Gradients(torch.nn.Module):
    """The gradients of a function, each result weighted by numbers of its own."""

    def __init__(self, call: Callable[..., list[torch.Tensor]], needed: Sequence[bool]) -> None:
        super().__init__()
        self.call = call
        self.needed = needed

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        given = [t.detach().requires_grad_(n) for t, n in zip(tensors, self.needed, strict=True)]
        ends = [r for r in self.call(*given) if r.requires_grad]
        starts = [t for t in given if t.requires_grad]
        weights = [torch.cos(torch.arange(r.numel())).reshape(r.shape).to(r.dtype) for r in ends]
        found = torch.autograd.grad(ends, starts, weights, allow_unused=True)
        return [g for g in found if g is not None]


def measure(entry: Any, samples: int, reference: int) -> Iterator[Record]:
    if not entry.supports_autograd:
        return
    torch.manual_seed(0)
    found = entry.sample_inputs("cpu", torch.float32, requires_grad=True)
    for number, sample in spread(found, samples):
        if (record := judge(entry, sample, reference)) is not None:
            yield {"sample": number, **record}


class Draws(TorchDispatchMode):
    """Notes whether random numbers are drawn: a file draws others."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


EVALUATOR = {
    "index can't contain negative values": "ONNX's evaluator has no Pad with negative amounts "
    "(an axis that is cropped on one side and padded on the other), which the standard allows",
    "at most 64 array objects": "ONNX's evaluator gathers and scatters elements by numpy.choose, "
    "which takes 64 arrays (an axis of more than that)",
}
"""What ONNX's reference evaluator raises for files that are right, and why: its own limits."""

_files = itertools.count()


def judge(entry: Any, sample: Any, reference: int) -> Record | None:
    """What becomes of a sample; None of one without a gradient in eager mode, or that draws."""
    from dort_rewriter import CaptureError, UnsupportedOpError, to_onnx

    call, tensors = call_of(entry, sample, grad=True)
    model = Gradients(call, [t.requires_grad for t in tensors])
    plain = [t.detach().clone() for t in tensors]
    try:
        with Draws() as draws:
            expected = model(*plain)
    except Exception:  # eager mode's own: there is nothing to compare with
        return None
    if draws.seen:
        return None
    if not expected or any(g.is_complex() for g in expected):
        return None
    try:
        proto = to_onnx(model, tuple(plain))
    except (CaptureError, UnsupportedOpError) as error:
        return {"status": "refused", "detail": " ".join(str(error).split())[:400]}
    try:
        got = run_file(proto, plain)
    except Exception as error:  # whatever breaks is the finding
        return {"status": "error", "detail": f"{type(error).__name__}: {error}"[:400]}
    if (text := compare(got, expected)) and not is_noise(model, plain, got, expected):
        return {"status": "wrong", "detail": text[:400]}
    if reference and next(_files) % reference == 0:
        return by_reference(proto, plain, expected)
    return {"status": "right"}


def run_file(proto: Any, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    import onnxruntime

    assert {o.domain for o in proto.opset_import} <= {""}
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [torch.from_numpy(v) for v in session.run(None, feeds(proto, tensors))]


def feeds(proto: Any, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    return {i.name: t.numpy() for i, t in zip(proto.graph.input, tensors, strict=True)}


def by_reference(
    proto: Any, tensors: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> Record:
    """The second judge. What it has no implementation for says nothing about the file."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    try:
        found = ReferenceEvaluator(proto).run(None, feeds(proto, tensors))
    except Exception as error:  # it fails in many ways
        return {"status": "right", "reference": f"{type(error).__name__}: {error}"[:200]}
    text = compare([torch.from_numpy(np.array(v)) for v in found], expected)
    return {"status": "right", "reference": text[:200] or "right"}


def is_noise(
    model: torch.nn.Module,
    tensors: Sequence[torch.Tensor],
    got: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> bool:
    """Whether float64 tells that the file is no farther from the truth than eager mode is."""
    try:
        exact = model(*(t.double() if t.dtype is torch.float32 else t for t in tensors))
    except Exception:  # it insists on float32
        return False
    return as_near(got, expected, exact, 2.0)


def main() -> int:
    parser = arguments(__doc__, samples=2, of="of each entry")
    parser.add_argument("--reference", type=int, default=0, help="each Nth file by onnx.reference")
    args = parser.parse_args()
    start = time.monotonic()
    logging.disable(logging.WARNING)
    entries = entries_named(args.ops)

    def measured(entry: Any) -> Iterator[Record]:
        return measure(entry, args.samples, args.reference)

    records = sweep(entries, measured, args, show_wrong)
    judged = [r["reference"] for r in records if "reference" in r]
    if judged:
        print(f"reference evaluator: {judged.count('right')} of {len(judged)} right")
        for record in records:
            said = record.get("reference", "right")
            if said != "right":
                known = next((why for text, why in EVALUATOR.items() if text in said), "")
                print(f"  {record['op']} {record['sample']}: {known or said}")
    return summarize(records, entries, time.monotonic() - start, args.json)


if __name__ == "__main__":
    sys.exit(main())
