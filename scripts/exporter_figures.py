"""What comparisons of exporters found, kept in ``docs/exporters.json``, and the page of it.

Standard library only: ``make_docs.py`` reads it where nothing is installed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["is_located", "keep", "page"]

KEPT = Path(__file__).resolve().parents[1] / "docs" / "exporters.json"
EXPORTERS = ("torch", "dort_rewriter")
SHOWN = {"reference": "ONNX's reference evaluator", "openvino": "OpenVINO"}

INTRODUCTION = """\
`dort-rewriter compare` for {count} models, {plain} in plain torch and {others} of transformers, \
all small and in evaluation mode, opset 18: `torch.onnx.export(dynamo=True)` and `to_onnx`. \
{versions}. Results are right within 1e-4 and 1e-3 relative of eager mode. Figures relative to \
torch's exporter are geometric means over the models that both export; below 1 is smaller, or \
faster. `scripts/compare_exporters.py` takes it all."""

DEFECTS = """\
Into each right file a defect was planted that changes its result: an operator for another, an \
attribute, operands in another order. The judge sees the spoiled file only. It names the first \
value that torch's graph has too and that differs, its Python line, and the nodes that compute it \
from values that are right: {located} of {count} are among these, {exact} of them alone, the \
others among {middle} (median; {most} at most), which torch has as one operator."""

Record = Mapping[str, Any]


def keep(found: Mapping[str, Record], versions: Mapping[str, str], plain: Sequence[str]) -> None:
    """Put what was found into the file, in short."""
    models = {name: _short(record) for name, record in found.items()}
    kept = {"versions": versions, "plain": sum(n in plain for n in models), "models": models}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _short(record: Record) -> Record:
    if "results" not in record:
        return record
    of_results = ("error", "nodes", "bytes", "agrees", "max_difference", "elsewhere", "judgment")
    times = ("export_seconds", "run_milliseconds")
    results = {}
    for r in record["results"]:
        results[r["exporter"]] = {k: r[k] for k in of_results}
        results[r["exporter"]] |= {k: r[k] and float(f"{r[k]:.3g}") for k in times}
        if judgment := r["judgment"]:  # its line has a path of this machine
            results[r["exporter"]]["judgment"] = {k: judgment[k] for k in ("fault", "node")}
    defects = [
        {"exporter": who, "planted": d["planted"], "fault": d["fault"], "node": d["node"],
         "nodes": len(d["nodes"]), "located": is_located(d)}
        for who, found in record["defects"].items() for d in found
    ]  # fmt: skip
    return {"results": results, "defects": defects}


def is_located(defect: Record) -> bool:
    """Whether the judge blames the exporter, and names nodes of which the planted one is one."""
    return defect["fault"] == "exporter" and defect["planted"] in defect["nodes"]


def page(note: str) -> str:
    """The page: a summary, what differs, what the judge located."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    models = {n: r for n, r in kept["models"].items() if "results" in r}
    said = INTRODUCTION.format(
        count=len(models),
        plain=kept["plain"],
        others=len(models) - kept["plain"],
        versions=", ".join(f"{n} {v.partition('+')[0]}" for n, v in kept["versions"].items()),
    )
    results = {who: [r["results"][who] for r in models.values()] for who in EXPORTERS}
    table = "\n".join(_summary(results))
    parts = [note, "# Exporters compared", said, table, "## What fails or differs"]
    parts.append("\n".join(_remarks(models)) or "Nothing.")
    parts += ["## Planted defects", *_planted(models)]
    return "\n\n".join(parts) + "\n"


def _summary(results: Mapping[str, Sequence[Record]]) -> Iterator[str]:
    yield f"| | {' | '.join(f'`{who}`' for who in EXPORTERS)} |"
    yield "| --- |" + " --- |" * len(EXPORTERS)
    yield _row("files", [sum(r["agrees"] is not None for r in results[w]) for w in EXPORTERS])
    yield _row(
        "right on onnxruntime", [_right(r["agrees"] for r in results[w]) for w in EXPORTERS]
    )
    for name, shown in SHOWN.items():
        found = {w: [e for r in results[w] for e in r["elsewhere"] if e["runtime"] == name]
                 for w in EXPORTERS}  # fmt: skip
        if any(found.values()):
            yield _row(f"on {shown}", [_right(e["agrees"] for e in found[w]) for w in EXPORTERS])
    for key, shown in (
        ("nodes", "nodes"), ("bytes", "bytes"), ("export_seconds", "time of the export"),
        ("run_milliseconds", "time of a run"),
    ):  # fmt: skip
        yield _row(f"{shown}, relative", ["1", f"{_relative(results, key):.2f}"])


def _row(name: str, cells: Iterable[Any]) -> str:
    return f"| {name} | {' | '.join(map(str, cells))} |"


def _right(agree: Iterable[bool | None]) -> str:
    found = Counter(agree)
    parts = [f"{found[True]} right"]
    parts += [f"{found[False]} differ"] if found[False] else []
    parts += [f"{found[None]} do not run"] if found[None] else []
    return ", ".join(parts)


def _relative(results: Mapping[str, Sequence[Record]], key: str) -> float:
    """The geometric mean of ours over torch's, where both have a file that runs."""
    both = zip(*(results[who] for who in reversed(EXPORTERS)), strict=True)
    pairs = [(ours[key], theirs[key]) for ours, theirs in both if ours[key] and theirs[key]]
    return math.exp(statistics.fmean(math.log(ours / theirs) for ours, theirs in pairs))


def _remarks(models: Mapping[str, Record]) -> Iterator[str]:
    """A line for each reason, with the models that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for model, record in models.items():
        for who, result in record["results"].items():
            for text in _reasons(result):
                found.setdefault((who, text), []).append(model)
    merged: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (who, text), names in found.items():
        merged.setdefault((text, tuple(names)), []).append(who)
    for (text, names), exporters in sorted(merged.items(), key=lambda item: item[0][1]):
        yield f"- {', '.join(names)} ({', '.join(f'`{who}`' for who in exporters)}): {text}"


def _reasons(result: Record) -> Iterator[str]:
    if result["error"]:
        yield _plain(result["error"])
        return
    if judgment := result["judgment"]:
        at = f", first at `{judgment['node']}`" if judgment["node"] else ""
        yield f"differs by {result['max_difference']:.1e}, by the {judgment['fault']}{at}"
    for other in result["elsewhere"]:
        runtime = SHOWN[other["runtime"]]
        if other["error"]:
            yield f"{runtime}: {_plain(other['error'])}"
        elif not other["agrees"]:
            whose = ", where onnxruntime is right" if result["agrees"] else ""
            yield f"{runtime} differs by {other['max_difference']:.1e}{whose}"


def _plain(text: str, most: int = 160) -> str:
    """An error as one line of Markdown."""
    line = " ".join(text.replace("`", "'").split())
    return f"`{line if len(line) <= most else line[:most] + '...'}`"


def _planted(models: Mapping[str, Record]) -> Iterator[str]:
    every = [(model, d) for model, r in models.items() for d in r["defects"]]
    located = [d for _, d in every if d["located"]]
    among = [d["nodes"] for d in located if d["nodes"] > 1]
    yield DEFECTS.format(
        located=len(located),
        count=len(every),
        exact=sum(d["nodes"] == 1 for d in located),
        middle=round(statistics.median(among or [1])),
        most=max(among, default=1),
    )
    missed = [(model, d) for model, d in every if not d["located"]]
    if missed:
        yield "\n".join(
            f"- not located: `{d['planted']}` in the file of {model} by `{d['exporter']}`: "
            f"{d['fault']}, `{d['node']}`"
            for model, d in missed
        )
