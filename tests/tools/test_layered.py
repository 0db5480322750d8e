"""Layers of boxes: what is read is above, nothing stands upon another, arrows meet their boxes."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import onnx
import pytest

from dort_rewriter.tools import layered
from dort_rewriter.tools.dot import ENDS, colours, plot_dot
from tests.tools.test_dot import chain
from tests.tools.test_onnx_text import MODEL

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def drawn(model: onnx.ModelProto | onnx.GraphProto) -> tuple[ET.Element, dict[str, Rectangle]]:
    """The image of a model, and where each box stands by its name in the diagram."""
    diagram = plot_dot(model).diagram
    image = ET.fromstring(layered.draw(diagram, colours(diagram), ENDS))
    rectangles = [
        tuple(float(r.attrib[k]) for k in ("x", "y", "width", "height"))
        for r in image.iter(f"{SVG}rect")
    ]
    names = [box.name for box in diagram.root.all_boxes()]
    return image, dict(zip(names, rectangles, strict=True))  # type: ignore[arg-type]


@pytest.fixture(params=["functions and branches", "a chain"])
def model(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return chain(60) if request.param == "a chain" else onnx.parser.parse_model(MODEL)


def test_what_is_read_is_above_and_nothing_overlaps(model: onnx.ModelProto) -> None:
    _, places = drawn(model)
    for arrow in plot_dot(model).diagram.arrows:
        _, top, _, height = places[arrow.start]
        assert top + height < places[arrow.end][1]
    for (x0, y0, w0, h0), (x1, y1, w1, h1) in itertools.combinations(places.values(), 2):
        apart = x0 + w0 < x1 or x1 + w1 < x0 or y0 + h0 < y1 or y1 + h1 < y0
        assert apart


def test_all_is_inside_of_the_image(model: onnx.ModelProto) -> None:
    image, places = drawn(model)
    left, top, width, height = map(float, image.attrib["viewBox"].split())
    for x, y, w, h in places.values():
        assert left <= x
        assert x + w <= left + width
        assert top <= y
        assert y + h <= top + height


def test_arrows_begin_and_end_at_their_boxes(model: onnx.ModelProto) -> None:
    image, places = drawn(model)
    paths = [p.attrib["d"] for p in image.iter(f"{SVG}path") if "marker-end" in p.attrib]
    for arrow, path in zip(plot_dot(model).diagram.arrows, paths, strict=True):
        numbers = [float(n) for n in re.findall(r"-?[0-9.]+", path)]
        x, y, w, h = places[arrow.start]
        assert numbers[:2] == pytest.approx([x + w / 2, y + h], abs=0.11)
        x, y, w, h = places[arrow.end]
        assert numbers[-2:] == pytest.approx([x + w / 2, y], abs=0.11)


def test_shapes_and_dashes_are_drawn() -> None:
    image, _ = drawn(onnx.parser.parse_model(MODEL))
    texts = {e.text for e in image.iter(f"{SVG}text")}
    assert {"Transpose", "perm=[1, 0]", "local.Gelu", "N x 3"} <= texts
    dashed = [e for e in image.iter(f"{SVG}rect") if "stroke-dasharray" in e.attrib]
    assert len(dashed) >= 5  # of two branches and a function


def test_straight_arrows_where_they_pass_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    curved, _ = drawn(chain(20))
    monkeypatch.setattr(layered, "MOST_PASSED", 3)
    straight, _ = drawn(chain(20))
    longest = [max(len(p.attrib["d"]) for p in i.iter(f"{SVG}path")) for i in (curved, straight)]
    assert longest[0] > 2 * longest[1]


def test_an_empty_graph_is_an_empty_image() -> None:
    image, places = drawn(onnx.GraphProto(name="g"))
    assert not places
    assert image.tag == f"{SVG}svg"
