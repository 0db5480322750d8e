"""Charts as SVG and as a line of text, with nothing but the standard library."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

COLOURS = ("#2166ac", "#d6604d", "#4d9221", "#762a83", "#8c6d31")
TEXT = 'font-family="Helvetica,Arial,sans-serif" font-size="12" fill="#1f2529"'
BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 48) -> str:
    """A curve as one line of text; what is not finite is a question mark."""
    if not values:
        return ""
    step = max(len(values) / width, 1.0)
    picked = [values[int(i * step)] for i in range(min(width, len(values)))]
    finite = [v for v in picked if math.isfinite(v)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((v - low) * scale)] if math.isfinite(v) else "?" for v in picked)


def line_chart(
    series: Mapping[str, Sequence[float]],
    title: str,
    *,
    at: Mapping[str, Sequence[float]] | None = None,
    unit: str = "",
) -> str:
    """Curves as SVG, thinner from one to the next: over the same steps, or from 0 over what ``at``
    says of each.

    Curves that coincide stay visible: each one is narrower than the one it is drawn upon.
    """
    width, height = 640, 300
    left, top, right, bottom = 60, 34, 130, 30
    values = [v for curve in series.values() for v in curve if math.isfinite(v)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    span = (high - low) or 1.0
    steps = max((len(curve) for curve in series.values()), default=1)
    if at is None:
        at, first, last, labels = {}, 0.0, float(steps - 1), ("step 1", f"{steps}")
    else:
        first, last = 0.0, max((x for places in at.values() for x in places), default=1.0)
        labels = (f"0{unit}", f"{_number(last)}{unit}")

    def place(x: float, v: float) -> str:
        across = left + (width - left - right) * (x - first) / ((last - first) or 1.0)
        return f"{across:.1f},{place_y(v):.1f}"

    def place_y(v: float) -> float:
        return top + (height - top - bottom) * (high - v) / span

    lines = [_svg(width, height), _label(left, 20, title)]
    for mark in (low, (low + high) / 2, high):
        start, end = place(first, mark), place(last, mark)
        lines.append(f'<path d="M{start} L{end}" stroke="#dde2e6" fill="none"/>')
        lines.append(_label(left - 6, place_y(mark) + 4, _number(mark), "end"))
    lines.append(_label(left, height - 8, labels[0]))
    lines.append(_label(width - right, height - 8, labels[1], "end"))
    for number, (name, curve) in enumerate(series.items()):
        places = at.get(name, range(len(curve)))
        pairs = zip(places, curve, strict=True)
        points = " ".join(place(x, v) for x, v in pairs if math.isfinite(v))
        colour = COLOURS[number % len(COLOURS)]
        thickness = max(7 - 2.5 * number, 1.5)
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" '
            f'stroke-width="{thickness:g}"/>'
        )
        y = top + 18 * (number + 1)
        x = width - right + 14
        lines.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        lines.append(_label(x + 18, y, name))
    return "\n".join([*lines, "</svg>"])


def bar_chart(bars: Mapping[str, float], title: str, unit: str = "", width: int = 640) -> str:
    """Horizontal bars with their values as SVG."""
    # As wide as the longest name, whatever the font: 7 is a wide letter of 12 pixels.
    left, row, top = 24 + 7 * max((len(name) for name in bars), default=0), 26, 34
    longest = max(bars.values(), default=0.0) or 1.0
    lines = [_svg(width, top + row * len(bars) + 8), _label(10, 20, title)]
    for number, (name, value) in enumerate(bars.items()):
        y = top + row * number
        length = (width - left - 110) * value / longest
        lines.append(_label(left - 8, y + 15, name, "end"))
        lines.append(
            f'<rect x="{left}" y="{y + 2}" width="{length:.1f}" height="{row - 8}" '
            f'fill="{COLOURS[number % len(COLOURS)]}"/>'
        )
        lines.append(_label(left + length + 6, y + 15, f"{_number(value)}{unit}"))
    return "\n".join([*lines, "</svg>"])


def _number(value: float) -> str:
    """Three digits, and all that are before the point."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def _svg(width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="background:#fff">'
    )


def _label(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {TEXT}>{html.escape(text)}</text>'
