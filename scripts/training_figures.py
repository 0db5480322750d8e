"""What trained steps measured, kept in ``docs/training_steps.json``, and the table of it.

Standard library only: ``make_docs.py`` reads it where nothing is installed.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["keep", "section"]

KEPT = Path(__file__).resolve().parents[1] / "docs" / "training_steps.json"

INTRODUCTION = """\
Fifty steps of each on one thread, by onnxruntime {onnxruntime} and by torch {torch}, on the \
same batches; all losses at least halve. *Differ* is the largest relative difference of a loss, \
with a batch of one size and of any; *torch's own* is how far torch's loop is from itself on two \
threads, or with its weights moved by a rounding; where a file differs by more than twice that, \
the same loop in float64 is the judge. Milliseconds are processor time of a step \
(forward, gradients, optimizer), medians of steps made in turns on one thread of {processor}; the \
runner is the loop above, which copies each new value."""


REST = """\
Small models gain most: torch's calls, which a file does not make, are most of their step. In \
ResNet-18 the gradients of convolutions are convolutions of other operands, for which torch has \
kernels of its own."""


def keep(found: Mapping[str, Any], way: str, order: Sequence[str]) -> None:
    """Put what was measured of models into the file, ``way`` being static or dynamic."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"models": {}}
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    kept["processor"] = next(s.partition(":")[2].strip() for s in lines if "model name" in s)
    named = ("torch", "onnxruntime")  # whatever it was installed as
    kept["versions"] = {n: importlib.import_module(n).__version__ for n in named}
    for name, record in found.items():
        kept["models"].setdefault(name, {})[way] = _short(record)
    kept["models"] = {name: kept["models"][name] for name in order if name in kept["models"]}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _short(value: Any) -> Any:
    """Figures with the digits that say something."""
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def section() -> str:
    """What the page of training steps says of them."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    versions, processor = kept["versions"], kept["processor"]
    said = INTRODUCTION.format(
        torch=versions["torch"].partition("+")[0],
        onnxruntime=versions["onnxruntime"],
        processor=f"an {processor}" if processor.startswith("AMD") else processor,
    )
    ratios = [_speed(r["static"]) for r in kept["models"].values() if "static" in r]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    last = f"Geometric mean of the {len(ratios)} speeds: {mean:.2g}. {REST}"
    return "\n\n".join([said, "\n".join(_table(kept["models"])), last])


def _speed(record: Mapping[str, Any]) -> float:
    times = record["milliseconds"]
    return float(times["torch"] / times["onnxruntime"])


def _table(models: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "| model | parameters | `step.onnx`, kB | torch, ms | onnxruntime, ms | speed "
        "| differ, fixed | any size | torch's own |"
    )
    yield "| --- |" + " --- |" * 8
    for name, ways in models.items():
        fixed, any_size = ways["static"], ways.get("dynamic", {})
        times = fixed["milliseconds"]
        cells = [
            f"{fixed['parameters']:,}",
            f"{fixed['bytes'] / 1000:,.0f}",
            *(f"{times[who]:.3g}" for who in ("torch", "onnxruntime")),
            f"{_speed(fixed):.2g}",
            *(f"{way['all']:.0e}" if way else "-" for way in (fixed, any_size)),
            f"{fixed[OWN]:.0e}",
        ]
        yield f"| {name} | {' | '.join(cells)} |"


OWN = "torch's own"
