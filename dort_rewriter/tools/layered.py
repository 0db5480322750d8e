"""A diagram drawn without graphviz: layers of boxes, from what is read down to what is made of it.

Each box is below all that it reads. Within a layer boxes stand near what they read and what reads
them; an arrow that passes other layers has a place of its own in each. Boxes of a subgraph have a
dashed outline: graphviz draws a frame around them.
"""

from __future__ import annotations

import html
import itertools
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dort_rewriter.tools.diagram import Arrow, Box, Diagram

LETTER, LINE, PADDING = 6.3, 14, 8
"""Pixels: the width of a letter of 11 pixels, the height of a line, around a text."""

GAP, BETWEEN = 14, 38
"""Pixels between boxes of a layer, and between layers."""

SWEEPS = 6
MOST_PASSED = 20_000
"""Places of arrows in the layers they pass: beyond it arrows are straight."""


@dataclass(eq=False)
class Place:
    """Where a box stands, or an arrow passes a layer."""

    layer: int
    width: float = 4.0
    height: float = 0.0
    x: float = 0.0
    """The middle."""
    y: float = 0.0
    above: list[Place] = field(default_factory=list)
    below: list[Place] = field(default_factory=list)


def draw(diagram: Diagram, fills: Mapping[str, str], ends: Mapping[str, str]) -> str:
    """An SVG image; ``fills`` are the colours of domains, ``ends`` those of inputs and outputs."""
    boxes = {box.name: box for box in diagram.root.all_boxes()}
    inner = {b.name for frame in diagram.root.frames for b in frame.all_boxes()}
    places = _stand(boxes, diagram.arrows)
    routes = _route(places, diagram.arrows)
    layers: dict[int, list[Place]] = defaultdict(list)
    for place in (*places.values(), *(p for route in routes for p in route[1:-1])):
        layers[place.layer].append(place)
    rows = [layers[number] for number in sorted(layers)]
    _order(rows)
    _spread(rows)
    height = _descend(rows)
    left = min((p.x - p.width / 2 for row in rows for p in row), default=0.0) - GAP
    right = max((p.x + p.width / 2 for row in rows for p in row), default=0.0) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right - left:.0f}" '
        f'height="{height:.0f}" viewBox="{left:.0f} 0 {right - left:.0f} {height:.0f}" '
        'font-family="Helvetica,Arial,sans-serif" font-size="11" text-anchor="middle" '
        'style="background:#fff">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#6b7580"/></marker></defs>',
        *(_arrow(arrow, route) for arrow, route in zip(diagram.arrows, routes, strict=True)),
        *(
            _box(box, places[name], ends.get(box.kind) or fills[box.domain], name in inner)
            for name, box in boxes.items()
        ),
        "</svg>",
    ]
    return "\n".join(parts)


def _stand(boxes: Mapping[str, Box], arrows: Sequence[Arrow]) -> dict[str, Place]:
    """The boxes in their layers: below what they read, and inputs right above their reader."""
    read, readers = defaultdict(list), defaultdict(list)
    for arrow in arrows:
        read[arrow.end].append(arrow.start)
        readers[arrow.start].append(arrow.end)
    layer: dict[str, int] = {}
    waiting = {name: len(read[name]) for name in boxes}
    ready = [name for name, count in waiting.items() if not count]
    for name in ready:  # it grows
        layer[name] = max((layer[r] + 1 for r in read[name]), default=0)
        for reader in readers[name]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    result = {}
    for name, box in boxes.items():
        if not read[name] and readers[name]:
            layer[name] = min(layer[r] for r in readers[name]) - 1
        lines = [box.title, *box.lines]
        width = LETTER * max(map(len, lines)) + 2 * PADDING
        result[name] = Place(layer[name], width, LINE * len(lines) + PADDING)
    return result


def _route(places: Mapping[str, Place], arrows: Sequence[Arrow]) -> list[list[Place]]:
    """For each arrow where it begins, the layers that it passes, and where it ends."""
    passed = sum(places[a.end].layer - places[a.start].layer - 1 for a in arrows)
    routes = []
    for arrow in arrows:
        start, end = places[arrow.start], places[arrow.end]
        between = range(start.layer + 1, end.layer) if passed <= MOST_PASSED else ()
        route = [start, *(Place(number) for number in between), end]
        for upper, lower in itertools.pairwise(route):
            upper.below.append(lower)
            lower.above.append(upper)
        routes.append(route)
    return routes


def _order(rows: Sequence[list[Place]]) -> None:
    """Order each layer by where the neighbours of its places stand in theirs."""
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            for number, place in enumerate(row):
                near = place.above if sweep % 2 == 0 else place.below
                place.x = statistics.fmean(p.x for p in near) if near else place.x or number
            row.sort(key=lambda p: p.x)
            for number, place in enumerate(row):
                place.x = number


def _spread(rows: Sequence[Sequence[Place]]) -> None:
    """Move the places of each layer to the middle of their neighbours, none upon another."""
    for row in rows:
        _set_apart(row, [p.x * 100 for p in row])
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = []
            for place in row:
                near = (place.above if sweep % 2 == 0 else place.below) or [place]
                wanted.append(statistics.fmean(p.x for p in near))
            _set_apart(row, wanted)


def _set_apart(row: Sequence[Place], wanted: Sequence[float]) -> None:
    """Give each place the wanted middle, or the nearest that leaves room for all: those that
    would touch share their distance."""
    offsets, offset = [], 0.0
    for before, place in zip((None, *row), row, strict=False):
        if before is not None:
            offset += (before.width + place.width) / 2 + GAP
        offsets.append(offset)
    groups: list[list[float]] = []  # sum of what is wanted, less the offset, and how many want it
    for want, offset in zip(wanted, offsets, strict=True):
        groups.append([want - offset, 1])
        while len(groups) > 1 and groups[-2][0] / groups[-2][1] >= groups[-1][0] / groups[-1][1]:
            total, count = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    middles = [total / count for total, count in groups for _ in range(int(count))]
    for place, middle, offset in zip(row, middles, offsets, strict=True):
        place.x = middle + offset


def _descend(rows: Sequence[Sequence[Place]]) -> float:
    """Set the height of each layer, and return that of all."""
    y = float(GAP)
    for row in rows:
        highest = max(p.height for p in row)
        for place in row:
            place.y = y + highest / 2
        y += highest + BETWEEN
    return y - BETWEEN + GAP


def _arrow(arrow: Arrow, route: Sequence[Place]) -> str:
    start, end = route[0], route[-1]
    points = [
        (start.x, start.y + start.height / 2),
        *((p.x, p.y) for p in route[1:-1]),
        (end.x, end.y - end.height / 2),
    ]
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        half = (y0 + y1) / 2
        path += f"C{x0:.1f} {half:.1f} {x1:.1f} {half:.1f} {x1:.1f} {y1:.1f}"
    dashes = ' stroke-dasharray="4"' if arrow.returns else ""
    (x0, y0), (x1, y1) = points[:2]
    label = (
        f'<text x="{(x0 + x1) / 2 + 4:.1f}" y="{(y0 + y1) / 2 + 3:.1f}" font-size="9" '
        f'text-anchor="start" fill="#4a525a">{html.escape(arrow.label)}</text>'
    )
    return (
        f'<g><title>{html.escape(arrow.tooltip)}</title><path d="{path}" fill="none" '
        f'stroke="#6b7580"{dashes} marker-end="url(#tip)"/>{label if arrow.label else ""}</g>'
    )


def _box(box: Box, place: Place, fill: str, inner: bool) -> str:
    dashes = ' stroke-dasharray="4"' if inner else ""
    x, y = place.x - place.width / 2, place.y - place.height / 2
    lines = "".join(
        f'<text x="{place.x:.1f}" y="{y + LINE * (number + 1):.1f}">{html.escape(line)}</text>'
        for number, line in enumerate([box.title, *box.lines])
    )
    return (
        f'<g><title>{html.escape(box.tooltip)}</title><rect x="{x:.1f}" y="{y:.1f}" rx="5" '
        f'width="{place.width:.1f}" height="{place.height:.1f}" fill="{fill}" '
        f'stroke="#8a94a0"{dashes}/>{lines}</g>'
    )
