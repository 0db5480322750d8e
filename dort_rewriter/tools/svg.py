"""A drawing without graphviz: boxes on layers, in the order of their neighbours.

The layout is that of Sugiyama in its simplest form: a box stands below everything it depends on,
and each layer is sorted by the mean position of its neighbours above, then below, a few times.
Arrows go straight to their box, also past others; subgraphs stand among the rest.
"""

from __future__ import annotations

import html
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dort_rewriter.tools.diagram import Arrow, Box, Diagram

__all__ = ["draw"]

CHARACTER, LINE, GAP, LAYER_GAP, MARGIN = 6.2, 14.0, 22.0, 46.0, 12.0
ROUNDS = 8
"""Sweeps over the layers; the order rarely changes after the first four."""

STYLE = "".join(
    # NOTE: within one class, since a page may show other images: a style holds for all of it.
    f".onnx-graph {rule}"
    for rule in (
        "text{font:11px Helvetica,Arial,sans-serif;text-anchor:middle;fill:#1f2529}",
        ".t{font-weight:bold}",
        ".s{font-size:9px}",
        # Lines that pass behind a label do not strike it out.
        ".l{font-size:9px;fill:#4a525a;stroke:#fff;stroke-width:3px;paint-order:stroke}",
        "rect{stroke:#8a94a0}",
        "path{fill:none;stroke:#6b7580;marker-end:url(#tip)}",
    )
)
MARKER = (
    '<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto">'
    '<path d="M0,0 L6,3 L0,6 z" style="fill:#6b7580;stroke:none"/></marker></defs>'
)


@dataclass
class Placed:
    """A box and its place: the middle of its upper edge."""

    box: Box
    x: float
    y: float
    width: float
    height: float


def draw(diagram: Diagram, colours: Mapping[str, str], ends: str = "#d5edd3") -> str:
    """Return the diagram as an SVG image; ``ends`` is the colour of inputs and outputs."""
    boxes = {box.name: box for box in diagram.root.all_boxes()}
    placed = _place(boxes, diagram.arrows)
    width = max((p.x + p.width / 2 for p in placed.values()), default=0.0) + MARGIN
    height = max((p.y + p.height for p in placed.values()), default=0.0) + MARGIN
    leaving = Counter(arrow.start for arrow in diagram.arrows)
    body = [_arrow(arrow, placed) for arrow in diagram.arrows]
    # After all arrows, so that none is drawn over a label.
    body += [_label(a, placed, leaving[a.start] > 1) for a in diagram.arrows if a.label]
    for item in placed.values():
        fill = colours[item.box.domain] if item.box.kind == "node" else ends
        body += _box(item, fill)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" class="onnx-graph" '
            'style="background:#fff">',
            f"<style>{STYLE}</style>{MARKER}",
            *body,
            "</svg>",
        ]
    )


def _place(boxes: Mapping[str, Box], arrows: list[Arrow]) -> dict[str, Placed]:
    layers = _order(_layers(list(boxes), arrows), arrows)
    placed: dict[str, Placed] = {}
    y = MARGIN
    widest = max((_width(layer, boxes) for layer in layers), default=0.0)
    for layer in layers:
        x = MARGIN + (widest - _width(layer, boxes)) / 2
        height = 0.0
        for name in layer:
            box = boxes[name]
            item = Placed(box, 0.0, y, _box_width(box), LINE * (1 + len(box.lines)) + 8)
            item.x = x + item.width / 2
            x += item.width + GAP
            height = max(height, item.height)
            placed[name] = item
        y += height + LAYER_GAP
    return placed


def _width(layer: list[str], boxes: Mapping[str, Box]) -> float:
    return sum(_box_width(boxes[name]) + GAP for name in layer) - GAP


def _box_width(box: Box) -> float:
    return max(len(text) for text in (box.title, *box.lines)) * CHARACTER + 18


def _layers(names: list[str], arrows: list[Arrow]) -> list[list[str]]:
    """Return the boxes by depth: each one below all the boxes it depends on."""
    above: dict[str, list[str]] = defaultdict(list)
    below: dict[str, list[str]] = defaultdict(list)
    for arrow in arrows:
        above[arrow.end].append(arrow.start)
        below[arrow.start].append(arrow.end)
    waiting = {name: len(above[name]) for name in names}
    depth = dict.fromkeys(names, 0)
    ready = [name for name in names if not waiting[name]]
    for name in ready:  # grows while it is read
        for follower in below[name]:
            depth[follower] = max(depth[follower], depth[name] + 1)
            waiting[follower] -= 1
            if not waiting[follower]:
                ready.append(follower)
    # What merges nothing stands just above its first reader, so that its arrows are short: inputs,
    # the transposes of weights.
    for name in reversed(ready):
        if below[name] and len(above[name]) <= 1:
            depth[name] = min(depth[follower] for follower in below[name]) - 1
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in names:
        layers[depth[name]].append(name)
    return layers


def _order(layers: list[list[str]], arrows: list[Arrow]) -> list[list[str]]:
    """Sort each layer by the mean place of its neighbours, downwards and upwards in turn."""
    neighbours: dict[str, list[str]] = defaultdict(list)
    for arrow in arrows:
        neighbours[arrow.start].append(arrow.end)
        neighbours[arrow.end].append(arrow.start)
    # Places from 0 to 1, so that layers of different lengths compare.
    place = {name: (i + 0.5) / len(layer) for layer in layers for i, name in enumerate(layer)}
    for turn in range(ROUNDS):
        for layer in layers if turn % 2 == 0 else reversed(layers):
            mean = {
                name: sum(place[n] for n in neighbours[name]) / len(neighbours[name])
                if neighbours[name]
                else place[name]
                for name in layer
            }
            layer.sort(key=mean.__getitem__)
            place.update({name: (i + 0.5) / len(layer) for i, name in enumerate(layer)})
    return layers


def _box(item: Placed, fill: str) -> Iterator[str]:
    left = item.x - item.width / 2
    yield "<g>"
    if item.box.tooltip:
        yield f"<title>{html.escape(item.box.tooltip)}</title>"
    yield (
        f'<rect x="{left:.1f}" y="{item.y:.1f}" width="{item.width:.1f}" '
        f'height="{item.height:.1f}" rx="5" fill="{fill}"/>'
    )
    for number, text in enumerate((item.box.title, *item.box.lines)):
        y = item.y + 15 + number * LINE
        style = "s" if number else "t"
        yield f'<text class="{style}" x="{item.x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'
    yield "</g>"


def _arrow(arrow: Arrow, placed: Mapping[str, Placed]) -> str:
    start, end = placed[arrow.start], placed[arrow.end]
    x1, y1, x2, y2 = start.x, start.y + start.height, end.x, end.y
    bend = max(20.0, (y2 - y1) / 2)
    dashes = ' stroke-dasharray="4 3"' if arrow.returns else ""
    return (
        f'<path d="M{x1:.1f},{y1:.1f} C{x1:.1f},{y1 + bend:.1f} {x2:.1f},{y2 - bend:.1f} '
        f'{x2:.1f},{y2:.1f}"{dashes}><title>{html.escape(arrow.tooltip)}</title></path>'
    )


def _label(arrow: Arrow, placed: Mapping[str, Placed], towards_end: bool) -> str:
    """Write the label where arrows are apart: near the end of those that share their start."""
    start, end = placed[arrow.start], placed[arrow.end]
    x1, y1, x2, y2 = start.x, start.y + start.height, end.x, end.y
    bend = max(20.0, (y2 - y1) / 2)
    # A point of the curve.
    t = 0.7 if towards_end else 0.3
    far, near = t * t * (3 - 2 * t), (1 - t) * (1 - t) * (1 + 2 * t)
    x = near * x1 + far * x2
    y = near * y1 + far * y2 + 3 * t * (1 - t) * (1 - 2 * t) * bend
    return f'<text class="l" x="{x:.1f}" y="{y + 3:.1f}">{html.escape(arrow.label)}</text>'
