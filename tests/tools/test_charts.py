"""Charts: what is in them, at the edges too."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from dort_rewriter.tools.charts import bar_chart, line_chart, sparkline

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], ""),
        ([1.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 1.0], "▁█"),
        ([0.0, math.nan, 7.0, math.inf], "▁?█?"),
        ([math.nan], "?"),
    ],
)
def test_a_curve_as_text(values: list[float], text: str) -> None:
    assert sparkline(values) == text


def test_a_long_curve_is_sampled() -> None:
    assert len(sparkline([float(i) for i in range(1000)], width=20)) == 20


def test_curves_keep_their_order_and_their_names() -> None:
    image = ET.fromstring(line_chart({"a<b": [3.0, 1.0], "c": [2.0, math.nan]}, "title"))
    first, second = image.findall(f"{SVG}polyline")
    (x1, y1), (x2, y2) = (
        tuple(map(float, point.split(","))) for point in first.attrib["points"].split()
    )
    assert x1 < x2
    assert y1 < y2  # down: SVG counts from the top
    assert len(second.attrib["points"].split()) == 1
    texts = [element.text for element in image.findall(f"{SVG}text")]
    assert {"a<b", "c", "title"} <= set(texts)
    assert float(first.attrib["stroke-width"]) > float(second.attrib["stroke-width"])


def test_curves_over_places_of_their_own() -> None:
    drawn = line_chart(
        {"a": [0.0, 1.0], "b": [0.0, 1.0]}, "t", at={"a": [0.0, 1.0], "b": [0.0, 4.0]}, unit=" s"
    )
    image = ET.fromstring(drawn)
    (a0, a1), (b0, b1) = (
        [float(p.split(",")[0]) for p in line.attrib["points"].split()]
        for line in image.findall(f"{SVG}polyline")
    )
    assert a0 == b0
    assert b1 - b0 == pytest.approx(4 * (a1 - a0), rel=0.01)
    assert {"0 s", "4 s"} <= {e.text for e in image.findall(f"{SVG}text")}


def test_bars_are_in_proportion() -> None:
    image = ET.fromstring(bar_chart({"a": 2.0, "b": 1.0}, "t", " ms"))
    widths = [float(bar.attrib["width"]) for bar in image.findall(f"{SVG}rect")]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert "2 ms" in [element.text for element in image.findall(f"{SVG}text")]


def test_long_names_of_bars_are_not_cut() -> None:
    name = "default+onnxruntime+experimental"
    image = ET.fromstring(bar_chart({name: 1.0}, "t"))
    (label,) = (e for e in image.findall(f"{SVG}text") if e.text == name)
    assert label.attrib["text-anchor"] == "end"
    assert float(label.attrib["x"]) >= 7 * len(name)
    (bar,) = image.findall(f"{SVG}rect")
    assert float(bar.attrib["width"]) > 100


@pytest.mark.parametrize("chart", [line_chart, bar_chart])
def test_nothing_is_drawn_of_nothing(chart: object) -> None:
    ET.fromstring(chart({}, "empty"))
