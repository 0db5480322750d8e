"""The page of reliability: what runs of the zoo found, kept in ``docs/reliability.json``.

Standard library only: ``make_docs.py`` reads it where nothing is installed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["keep", "page"]

KEPT = Path(__file__).resolve().parents[1] / "docs" / "reliability.json"
STATUSES = ("right", "wrong", "error", "fell back", "too slow")

INTRODUCTION = """\
Models of several libraries, built small, run by `scripts/model_zoo.py`: inference and a \
training step, some of them with symbolic sizes (`dynamic=True`, two sizes) and under \
bfloat16 autocast. Results, gradients and buffers are compared with eager mode; where they \
differ by more than rounding, both are compared with float64, and a model is *wrong* when \
it is farther from there than three times what eager is, its weights moved by a rounding \
or not; where that throws eager mode as far in one of its draws, half of ours decide. \
*Given up*: right, but some graph was left to torch by a failure. Models that \
eager mode or `aot_eager` does not run are left out."""


def keep(name: str, data: Mapping[str, Any]) -> None:
    """Add the counts of a run to the file, and what was not right by name.

    What an earlier run kept as a finding and is right in this one is right there from now on.
    """
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    kept.pop(name, None)  # this run stands for it
    counts: dict[str, Counter[str]] = {}
    findings: dict[str, str] = {}
    for model, records in data["models"].items():
        library = model.partition("/")[0]
        for record in records:
            status = record["status"]
            if status == "right" and _settle(kept, library, f"{model}, {record['way']}"):
                continue
            counts.setdefault(library, Counter())[f"{record['way']}: {status}"] += 1
            if status in STATUSES[1:]:
                findings[f"{model}, {record['way']}"] = f"{status}: {record['detail']}"[:300]
    kept[name] = {
        "versions": data["versions"],
        "counts": counts,
        "findings": findings,
        "left out": data["left out"],
    }
    KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _settle(kept: Mapping[str, Any], library: str, run: str) -> bool:
    """Count a finding of an earlier run as right, and tell whether there was one."""
    for earlier in kept.values():
        if (said := earlier["findings"].pop(run, None)) is not None:
            way, status = run.rpartition(", ")[2], said.partition(":")[0]
            counts = Counter(earlier["counts"][library])
            counts.update({f"{way}: {status}": -1, f"{way}: right": 1})
            earlier["counts"][library] = dict(+counts)
            return True
    return False


def page(note: str) -> str:
    """The page, a section for each run that was kept."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    parts = [note, "# Reliability", INTRODUCTION]
    for name, run in kept.items():
        parts += [f"## {name}", ", ".join(f"{n} {v}" for n, v in run["versions"].items()) + "."]
        parts.append("\n".join(table(run["counts"])))
        lines = [f"- {model}: {said}" for model, said in sorted(run["findings"].items())]
        lines += [f"- {library} was not run: {why}" for library, why in run["left out"].items()]
        parts.append("\n".join(lines) if lines else "Nothing was wrong, in error or fell back.")
    return "\n\n".join(parts) + "\n"


def table(counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    yield f"| library | way | {' | '.join(STATUSES)} | left out |"
    yield "| --- | --- |" + " --- |" * (len(STATUSES) + 1)
    for library, found in sorted(counts.items()):
        for way in ("inference", "training", "dynamic", "autocast"):
            cells = [found.get(f"{way}: {status}", 0) for status in (*STATUSES, "left out")]
            if sum(cells):
                yield f"| {library} | {way} | {' | '.join(map(str, cells))} |"
        if everything := found.get("all: left out"):
            yield f"| {library} | none |{' 0 |' * len(STATUSES)} {everything} |"
