"""An explanation as tables of HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dort_rewriter import notebook
from dort_rewriter.tools.explain_times import Times

__all__ = ["explanation_html"]


def explanation_html(found: Any) -> str:
    """An :class:`Explanation`: its graphs, what runs in torch and why, its breaks, its times."""
    return "".join(_parts(found))


def _parts(found: Any) -> Iterator[str]:
    yield notebook.heading(f"{len(found.graphs)} graph(s), {len(found.breaks)} break(s)")
    graphs = [(i, graph) for i, captured in enumerate(found.graphs) for graph in captured.lowered]
    wheres = list(graphs[0][1].counts()) if graphs else []
    header = ("graph", "kind", "operators", *wheres, "models", "nodes")
    yield notebook.table([_row(i, graph) for i, graph in graphs], header)
    outside = [
        (i, where, left.count, left.op, left.reason, "\n".join(left.where))
        for i, graph in graphs
        for where, found_there in (
            ("called by a session", graph.torch_kernels),
            ("beside the sessions", graph.in_torch),
        )
        for left in found_there
    ]
    if outside:
        yield notebook.heading("In torch")
        yield notebook.table(outside, ("graph", "", "count", "operator", "reason", "Python"))
    if found.breaks:
        yield notebook.heading("Breaks")
        rows = [(b.reason, b.where[-1] if b.where else "") for b in found.breaks]
        yield notebook.table(rows, ("reason", "Python"))
    if found.times is not None:
        yield from _times(found.times)
    if found.low_bits is not None:
        yield notebook.text(str(found.low_bits))
    yield notebook.details("all of it as text", f"<pre>{notebook.escaped(str(found))}</pre>")


def _row(number: int, graph: Any) -> list[object]:
    nodes = sum(sum(model.values()) for model in graph.models)
    total = sum(graph.ops.values())
    return [number, graph.kind, total, *graph.counts().values(), len(graph.models), nodes]


def _times(times: Times) -> Iterator[str]:
    yield notebook.heading(times.summary())
    if times.busy:
        yield notebook.text(f"NOTE: {times.busy}.")
    for title, rows in times.tables().items():
        made = [(seconds * 1e3, f"{share:.0%}", name) for seconds, share, name in rows]
        yield notebook.details(title, notebook.table(made, ("ms", "share", "")))
