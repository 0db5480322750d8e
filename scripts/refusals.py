"""Count what eager mode refuses of torch's ``op_db``, and what becomes of it when it is compiled.

A case is a sample of an entry, with types of arguments that eager mode refuses: one that the entry
does not support, two that do not go together (one argument float64 among float32), a gradient of a
type that has none. ``aot_eager`` and ``onnxrt`` compile each; what they raise is compared: the
type of the exception, and whether the call or ``.backward()`` raised it. A refusal is

- kept: as by ``aot_eager``;
- eager's: ``aot_eager`` loses it, or raises another exception, and we raise what eager mode does;
- lost: ``aot_eager`` keeps it, and ours is a number, another exception, or is raised elsewhere;
- lost by both: neither raises.

``--accepted`` traces what eager mode takes, of every type that the entry supports, and lists the
graphs that are left to eager mode all the same: each costs speed, and is wrong of the table or of
what is asked. Exits with 1 if any is lost, or invented.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from op_db_entries import Record, arguments, entries_named, entry_name, sweep
from torch.utils._pytree import tree_leaves, tree_map_only

TYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32),
    *(torch.uint8, torch.int16, torch.int8, torch.bool, torch.complex64),
)
DEVICE = "cpu"

Outcome = tuple[str, str]
"""Where an exception was raised (``call``, ``backward``), and its type; ``values`` if none was."""


def samples_of(entry: Any, dtype: torch.dtype, most: int, grad: bool = False) -> list[Any]:
    """Samples of a type; of one that the entry has none of, those of another, cast."""
    for made in (dtype, *sorted(entry.supported_dtypes(DEVICE), key=str)):
        torch.manual_seed(0)
        try:
            found = itertools.islice(
                entry.sample_inputs(DEVICE, made, requires_grad=grad and made is dtype), most
            )
            samples = list(found)
        except Exception:  # the sample functions are written for the types that are supported
            continue
        if made is dtype:
            return samples
        return [cast(s, lambda t, made=made: t.dtype is made, dtype) for s in samples]
    return []


def cast(sample: Any, chosen: Callable[[torch.Tensor], bool], dtype: torch.dtype) -> Any:
    """A sample whose chosen tensors have another type."""
    return sample.transform(
        lambda x: tree_map_only(torch.Tensor, lambda t: t.to(dtype) if chosen(t) else t, x)
    )


def cases(entry: Any, most: int) -> Iterator[tuple[str, Any, bool]]:
    """What may be refused: a name, the sample, and whether gradients are asked for."""
    supported = entry.supported_dtypes(DEVICE)
    for dtype in TYPES:
        name = str(dtype).removeprefix("torch.")
        if dtype not in supported:
            for i, sample in enumerate(samples_of(entry, dtype, most)):
                yield f"{name} #{i}", sample, False
        elif (dtype.is_floating_point or dtype.is_complex) and entry.supports_autograd:
            for i, sample in enumerate(samples_of(entry, dtype, most, grad=True)):
                yield f"gradient of {name} #{i}", sample, True
    if torch.float32 in supported:
        for i, sample in enumerate(samples_of(entry, torch.float32, most)):
            yield from ((f"{name} #{i}", mixed, False) for name, mixed in mixtures(sample))


def mixtures(sample: Any) -> Iterator[tuple[str, Any]]:
    """A sample with one of its arguments in float64."""
    found = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if is_float(t)]
    if len(found) < 2:
        return
    for i, chosen in enumerate(found[:4]):
        yield f"float64 at {i}", cast(sample, lambda t, c=chosen: t is c, torch.float64)


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def fresh(sample: Any, grad: bool) -> tuple[Any, Any, Any]:
    def copy(tensor: torch.Tensor) -> torch.Tensor:
        made = tensor.detach().clone()
        return made.requires_grad_(tensor.requires_grad and grad)

    return tree_map_only(torch.Tensor, copy, (sample.input, sample.args, dict(sample.kwargs)))


def outcome(function: Callable[..., Any], sample: Any, grad: bool) -> Outcome:
    given = fresh(sample, grad)
    torch.manual_seed(0)
    try:
        made = function(*given)
    except Exception as error:  # any is an outcome
        return "call", type(error).__name__
    results = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor) and t.requires_grad]
    if grad and results:
        try:
            torch.autograd.backward(results, [torch.ones_like(t) for t in results])
        except Exception as error:  # any is an outcome
            return "backward", type(error).__name__
    return "values", ""


def status_of(eager: Outcome, aot: Outcome, ours: Outcome) -> str:
    if ours == aot:
        return "lost by both" if aot[0] == "values" else "kept"
    return "eager's" if ours == eager else "lost"


def refusals(entry: Any, most: int) -> Iterator[Record]:
    """The cases of an entry that eager mode refuses."""
    for name, sample, grad in cases(entry, most):

        def called(value: Any, args: Any, kwargs: Any) -> Any:
            return entry(value, *args, **kwargs)

        eager = outcome(called, sample, grad)
        if eager[0] == "values":
            continue
        found = []
        for backend in ("aot_eager", "onnxrt"):
            torch._dynamo.reset()
            found.append(outcome(torch.compile(called, backend=backend), sample, grad))
        yield {
            "op": entry_name(entry),
            "case": name,
            "eager": eager,
            "aot_eager": found[0],
            "onnxrt": found[1],
            "status": status_of(eager, *found),
        }


def accepted(entry: Any, most: int) -> Iterator[Record]:
    """The samples that eager mode takes and whose graphs are left to it for their types."""
    from dort_rewriter.backends.onnxrt_graphs import make_dispatcher
    from dort_rewriter.capture import aot, taken_types
    from dort_rewriter.export.decompositions import get_tracing_table

    table = get_tracing_table(make_dispatcher())
    left: list[str] = []
    in_eager_mode = taken_types._in_eager_mode

    def noted(graph: Any, refused: Any) -> Any:
        left.append(str(refused))
        return in_eager_mode(graph, refused)

    taken_types._in_eager_mode = noted
    for dtype in TYPES:
        if dtype not in entry.supported_dtypes(DEVICE):
            continue
        can = (dtype.is_floating_point or dtype.is_complex) and entry.supports_autograd
        grad = can and dtype in entry.supported_backward_dtypes(DEVICE)
        for i, sample in enumerate(samples_of(entry, dtype, most, grad=grad)):

            def called(value: Any, args: Any, kwargs: Any) -> Any:
                return entry(value, *args, **kwargs)

            if outcome(called, sample, grad)[0] != "values":
                continue
            torch._dynamo.reset()
            left.clear()

            def backend(graph: Any, args: Any) -> Any:
                return aot.compile_with_aot(
                    graph, args, compile_graph=lambda g, _: g, decompositions=table
                )

            got = outcome(torch.compile(called, backend=backend), sample, grad)
            name = f"{str(dtype).removeprefix('torch.')} #{i}"
            if left:
                status = "invented"
            else:
                status = "taken" if got[0] == "values" else "untraceable"
            yield {
                "op": entry_name(entry),
                "case": name,
                "onnxrt": got,
                "status": status,
                "detail": "; ".join(left),
            }


def report(records: Sequence[Record], seconds: float, asked: bool) -> int:
    counts = collections.Counter(r["status"] for r in records)
    told = ("invented", "untraceable") if asked else ("lost",)
    for r in records:
        if r["status"] in told:
            detail = r.get("detail") or f"aot_eager {r.get('aot_eager')}, onnxrt {r['onnxrt']}"
            print(f"{r['status']:8} {r['op']} ({r['case']}): {detail}")
    print(f"{len(records)} in {seconds:.0f} s, torch {torch.__version__}: {dict(counts)}")
    return int(bool(counts["lost"] or counts["invented"]))


def main() -> int:
    parser = arguments(__doc__, samples=1, of="samples a type")
    parser.add_argument("--accepted", action="store_true", help="what eager mode takes, instead")
    args = parser.parse_args()
    start = time.perf_counter()
    measure = accepted if args.accepted else refusals
    found = sweep(entries_named(args.ops, None), lambda entry: measure(entry, args.samples), args)
    if args.json:
        args.json.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    return report(found, time.perf_counter() - start, args.accepted)


if __name__ == "__main__":
    sys.exit(main())
