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

import argparse
import collections
import itertools
import json
import logging
import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from opset_coverage import Record, Worker, list_entries, measure_all
from special_samples import Sample

DTYPES = ("float32", "float64", "bfloat16")
MEMORY_AS_FOUND = "empty|empty_like|empty_permuted|empty_strided|new_empty|new_empty_strided"


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
        listed = list(enumerate(itertools.islice(found, 100)))
        count = min(samples, len(listed))
        for i in range(count):
            number, sample = listed[(2 * i + 1) * len(listed) // (2 * count)]
            for record in Sample(entry, sample, grad).judge():
                yield {"dtype": name, "sample": number, **record}


def serve(dtypes: Sequence[str], samples: int) -> None:
    """Read names of entries, write what is wrong with them: what :class:`Worker` talks to."""
    from op_db_entries import entry_name
    from torch.testing._internal.common_methods_invocations import op_db

    import dort_rewriter
    from dort_rewriter.compiler.safety_net import forget_warnings

    records = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.getLogger("dort_rewriter").propagate = False
    logging.getLogger("torch._dynamo").setLevel(logging.CRITICAL)
    torch._dynamo.config.suppress_errors = False
    dort_rewriter.install()
    entries = {entry_name(e): e for e in op_db}
    for line in sys.stdin:
        name = line.strip()
        try:
            for record in measure(entries[name], dtypes, samples):
                records.write(json.dumps({"op": name, **record}) + "\n")
                forget_warnings()
        except Exception as e:  # samples that need a library which is not there, mostly
            records.write(json.dumps({"op": name, "status": "skipped", "detail": str(e)}) + "\n")
        records.write(json.dumps({"done": name}) + "\n")


def sweep(names: Sequence[str], args: argparse.Namespace) -> list[Record]:
    """Measure entries, in processes that are replaced when they end."""
    options = ["--serve", "--samples", str(args.samples), "--dtypes", *args.dtypes]

    def make() -> Worker:
        return Worker(options, args.timeout, Path(__file__))

    def show_record(record: Record) -> None:
        if args.verbose:
            print(json.dumps(record), flush=True)

    return measure_all(names, args.workers, make, show_record)


def show(records: Sequence[Record]) -> int:
    """Print a line for each operator and type; return how many operators are wrong."""
    by_status: dict[str, dict[tuple[str, str], list[Record]]] = collections.defaultdict(dict)
    for record in records:
        key = (record["op"], record.get("dtype", "?"))
        by_status[record["status"]].setdefault(key, []).append(record)
    for status, found in sorted(by_status.items()):
        for (op, dtype), those in sorted(found.items()):
            kinds = sorted({f"{r.get('what', '')}" for r in those})
            first = those[0]
            where = f"#{first.get('sample')} {first.get('fill', '')} r{first.get('result', '')}"
            print(f"{status:9} {op} {dtype} {'/'.join(kinds)} ({where}): {first.get('detail')}")
    counts = {status: len({op for op, _ in found}) for status, found in by_status.items()}
    print(
        ", ".join(f"{count} operators {status}" for status, count in counts.items()) or "0 wrong"
    )
    return counts.get("wrong", 0) + counts.get("error", 0)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ops", metavar="REGEX", help="only the entries whose whole name matches")
    parser.add_argument("--dtypes", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--samples", type=int, default=2, help="samples a type (default 2)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120, help="seconds until a record comes")
    parser.add_argument("--json", metavar="FILE", help="write the records to this file")
    parser.add_argument("--verbose", action="store_true", help="print records as they come")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.dtypes, args.samples)
        return 0
    os.environ.update(DORT_CACHE="0", DORT_STRICT="0", ONNXRT_CHANGE_REWRITER="1")
    start = time.monotonic()
    names = [n for n in list_entries(args.ops) if not re.fullmatch(MEMORY_AS_FOUND, n)]
    records = sweep(names, args)
    if args.json:
        Path(args.json).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    wrong = show(records)
    print(f"{len(names)} entries in {time.monotonic() - start:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
