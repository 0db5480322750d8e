"""What onnxruntime's own profiler says about a session: the time of each kernel, run by run."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

if TYPE_CHECKING:
    import onnx
    import onnxruntime

    from dort_rewriter.runtime.session import Session

_SUFFIX = "_kernel_time"


@dataclass(frozen=True, kw_only=True)
class ProfiledRun:
    """One run of a session, in seconds."""

    seconds: float
    kernels: Sequence[tuple[str, str, float]]
    """The operator, the node and the time of each kernel, without that of kernels inside it."""


@contextlib.contextmanager
def profiling(options: onnxruntime.SessionOptions, prefix: Path) -> Iterator[None]:
    """Let the sessions that are built in the block write a profile, and no others.

    NOTE: one prefix is for one session: onnxruntime names files by the second only.
    """
    before = options.enable_profiling, options.profile_file_prefix
    options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    try:
        yield
    finally:
        options.enable_profiling, options.profile_file_prefix = before


def read_profile(session: Session) -> list[ProfiledRun]:
    """End the profile of a session, and read it."""
    return split_by_run(json.loads(Path(session.ort.end_profiling()).read_text(encoding="utf-8")))


def split_by_run(events: Sequence[Mapping[str, Any]]) -> list[ProfiledRun]:
    """Tell the runs of a profile apart; what is in no run is left out."""
    runs = sorted((e for e in events if e["name"] == "model_run"), key=lambda e: e["ts"])
    kernels: list[list[tuple[str, str, float]]] = [[] for _ in runs]
    for event, microseconds in _own_times(events):
        index = sum(run["ts"] <= event["ts"] for run in runs) - 1
        if index >= 0:
            node = event["name"].removesuffix(_SUFFIX)
            kernels[index].append((event["args"]["op_name"], node, microseconds / 1e6))
    return [
        ProfiledRun(seconds=run["dur"] / 1e6, kernels=tuple(found))
        for run, found in zip(runs, kernels, strict=True)
    ]


def _own_times(events: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Take from the time of If, Loop and Scan that of the kernels they run."""
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX)]
    nodes.sort(key=lambda e: (e["ts"], -e["dur"]))
    own = [float(e["dur"]) for e in nodes]
    around: dict[int, list[int]] = {}
    """For each thread, the kernels that have not ended, the innermost last."""
    for i, event in enumerate(nodes):
        open_ = around.setdefault(event["tid"], [])
        while open_ and event["ts"] >= nodes[open_[-1]]["ts"] + nodes[open_[-1]]["dur"]:
            open_.pop()
        if open_:
            own[open_[-1]] = max(0.0, own[open_[-1]] - event["dur"])
        open_.append(i)
    return list(zip(nodes, own, strict=True))


def sources_of(model: onnx.ModelProto | ir.Model) -> dict[str, str]:
    """The Python line of each node of a model, by its name; the text may be empty."""
    if isinstance(model, ir.Model):
        return {
            n.name: n.metadata_props.get("source", "") for n in model.graph.all_nodes() if n.name
        }
    return sources_of(ir.from_proto(model))


def source_of(node: str, sources: Mapping[str, str]) -> str:
    """The Python line of a kernel, given those of the nodes of the model.

    What onnxruntime's optimizer makes is named after one of the nodes it stands for; what it adds
    of its own has no line.
    """
    if node in sources:
        return sources[node]
    inside = [n for n in sources if re.search(rf"{re.escape(n)}(?!\d)", node)]
    return sources[max(inside, key=len)] if inside else ""
