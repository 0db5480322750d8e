"""Compare operators with eager mode where numbers are not finite, huge, tiny or zeros of a sign.

usage: python scripts/special_values.py [--ops REGEX] [--dtypes float32 float64] [--samples 2]

Entries of torch's ``op_db``, forward and gradients, through ``torch.compile`` and the ``onnxrt``
backend. Each sample is compiled once, a graph of its own, and called again and again, with
numbers of ``special_samples.py`` among the elements of one argument, of all of them, of the
gradients that come in. The same seed gives the same numbers. Wrong is another type, shape or
stride, other places of NaN or of an infinity, another sign of an infinity or a zero, and numbers
that are farther off than rounding; not what ``aot_eager`` has as well. Prints what is wrong, a
line for each operator and type, what fell back, and apart from that what differs by the order of a
sum, which is out of range on the way. Exits with 1 if an operator is wrong.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from op_db_entries import Record, arguments, entries_named, entry_name, spread, sweep
from special_samples import Sample

from dort_rewriter.compiler.safety_net import forget_warnings

DTYPES = ("float32", "float64", "bfloat16")


@dataclasses.dataclass(frozen=True)
class Known:
    """A difference that ``docs/troubleshooting.md`` names: of which entries, where, and why."""

    ops: str
    kinds: str
    numbers: str
    reason: str
    dtypes: str = ""
    only_eager: bool = False
    """Eager mode has NaN there, and we have none that it has not."""


BY_PLACE = "eager: the result hangs on where an element lies, in a whole vector or behind"
BY_ORDER = "either: out of range on the way, or not, by the order of a product or a sum"
BY_LIBRARY = "either: the sign of a sum of zeros, which some of MKL's begin with 0.0"
BY_PADDING = "eager: its library multiplies the padding and what is behind the last window"
BY_ROUNDING = "eager: a rounding times infinity, or nearly so"
COSTS = "ours: what is right costs ordinary numbers too much"
KNOWN = (
    Known(r"clamp(_max|_min)?|(max|min)\.binary|maximum|minimum", "zero", "zeros", BY_PLACE),
    Known(r"a?m(ax|in)(\..*)?|aminmax", "zero", "zeros", BY_PLACE),
    Known(r"scatter_reduce\.am(ax|in)", "zero", "zeros", COSTS),
    Known(
        r"nn\.functional\.(hardswish|hardtanh|relu6|[cs]?elu)|logit",
        "nan|value",
        "nan",
        BY_PLACE,
    ),
    Known(r".*scaled_dot_product.*", "nan", "-?infs?|nan", BY_PLACE),
    Known(r".*scaled_dot_product.*", "nan|inf|zero", "max|large|1e-?30|tiny", BY_ORDER),
    Known(r"nn\.functional\.gelu", "nan", "-?infs?", "eager: it has NaN for infinity"),
    Known(r"mode", "nan|value", "nan", "eager: by the order of the elements"),
    Known(
        r"linalg\.lstsq.*",
        "nan|value",
        "-?infs?|nan|1e-30",
        "eager: two calls with equal matrices differ, in one of five",
    ),
    Known(r"fmod.*|__rmod__|remainder.*", "nan", "tiny", "eager: it flushes a denormal divisor"),
    Known(r".*mm.*|.*matmul.*|einsum|nn\.functional\.(bi)?linear.*", "zero", ".*", BY_LIBRARY),
    Known(
        r"linalg\.(inv|solve|svdvals|tensor|matrix_power|(matrix_)?norm)\w*|nn\.functional\.conv.*",
        "zero",
        ".*",
        BY_LIBRARY,
    ),
    Known(r"(cum)?prod|nn\.functional\.linear_cross_entropy.*", "nan", "max|large|1e30", BY_ORDER),
    Known(r"std.*", "nan|zero", "max|large", BY_ORDER, dtypes="float64"),
    Known(r"(native_|nn\.functional\.)layer_norm", "nan", "-?infs?|large|max", BY_ROUNDING),
    Known(r"(masked\.|nan)median", "nan|value", "nan", "eager: by the order of the elements"),
    Known(r"diff|(cumulative_)?trap(ezoid|z)", "zero", "zeros", COSTS),
    Known(r"nn\.functional\.conv.*", "nan", "-?infs?|nan", BY_PADDING, only_eager=True),
)
"""What is not wrong, with its reason: eager mode is the odd one, neither is, or we are."""
UNTOLD = ("right", "torch's")
"""What is counted, and has no line."""
LEFT_OUT = (
    "empty|empty_like|empty_permuted|empty_strided|new_empty|new_empty_strided|grid_sampler_2d|"
    r"nn\.functional\.grid_sample"
)
"""Entries that show memory as it was, and those that end the process in eager mode, given an
infinity."""


def measure(entry: Any, dtypes: Sequence[str], samples: int) -> Iterator[Record]:
    """Yield what is wrong with an entry."""
    supported = entry.supported_dtypes("cpu")
    for name in dtypes:
        dtype = getattr(torch, name)
        if dtype not in supported:
            continue
        grad = entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu")
        torch.manual_seed(0)
        found = entry.sample_inputs("cpu", dtype, requires_grad=grad)
        for number, sample in spread(found, samples, middle=True):
            for record in Sample(entry, sample, grad).judge():
                if (known := known_as(entry_name(entry), name, record)) is not None:
                    record |= {"status": "known", "reason": known.reason}
                yield {"dtype": name, "sample": number, **record}


def known_as(op: str, dtype: str, record: Record) -> Known | None:
    """The difference that the documentation names, if one is."""
    numbers = record.get("fill", "").partition(" ")[0]
    return next(
        (
            known
            for known in KNOWN
            if record["status"] == "wrong"
            and re.fullmatch(known.ops, op)
            and dtype.startswith(known.dtypes)
            and re.fullmatch(known.numbers, numbers)
            and re.fullmatch(known.kinds, record.get("what", ""))
            and not (known.only_eager and record.get("more"))
        ),
        None,
    )


def prepare() -> None:
    """What the processes that measure have in common."""
    logging.getLogger("dort_rewriter").propagate = False
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    torch._dynamo.config.suppress_errors = False


def show(records: Sequence[Record]) -> int:
    """Print a line for each operator and type; return how many operators are wrong."""
    by_status: dict[str, dict[tuple[str, str], list[Record]]] = collections.defaultdict(dict)
    for record in records:
        key = (record["op"], record.get("dtype", "?"))
        by_status[record["status"]].setdefault(key, []).append(record)
    for status, found in sorted(by_status.items()):
        if status in UNTOLD:
            continue
        for (op, dtype), those in sorted(found.items()):
            kinds = sorted({f"{r.get('what', '')}" for r in those})
            first = those[0]
            where = f"#{first.get('sample')} {first.get('fill', '')} r{first.get('result', '')}"
            told = first.get("reason") or first.get("detail")
            print(f"{status:9} {op} {dtype} {'/'.join(kinds)} ({where}): {told}")
    counts = {status: len({op for op, _ in found}) for status, found in by_status.items()}
    print(", ".join(f"{count} operators {status}" for status, count in counts.items()))
    samples = collections.Counter(r["status"] for r in records)
    print("records: " + ", ".join(f"{n} {status}" for status, n in sorted(samples.items())))
    return counts.get("wrong", 0) + counts.get("error", 0)


def main() -> int:
    parser = arguments(__doc__, samples=2, of="samples a type")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    args = parser.parse_args()
    start = time.monotonic()
    prepare()
    entries = [e for e in entries_named(args.ops) if not re.fullmatch(LEFT_OUT, entry_name(e))]

    def measured(entry: Any) -> Iterator[Record]:
        for record in measure(entry, args.dtypes, args.samples):
            yield record
            forget_warnings()

    def show_record(record: Record) -> None:
        if args.verbose:
            print(json.dumps(record), flush=True)

    records = sweep(entries, measured, args, show_record)
    if args.json:
        args.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    wrong = show(records)
    print(f"{len(entries)} entries in {time.monotonic() - start:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
