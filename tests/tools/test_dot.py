"""Drawings: what is in them, with graphviz's program and without."""

from __future__ import annotations

import re
import stat
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch

from dort_rewriter import DortError, OptionError, plot_dot
from dort_rewriter.tools import dot
from dort_rewriter.tools.dot import DotPlot, find_dot
from tests.tools.test_onnx_text import MODEL

NEEDS_DOT = pytest.mark.skipif(find_dot() is None, reason="graphviz is not installed")
PNG = b"\x89PNG"
HEAD = '<ir_version: 9, opset_import: ["": 18]>'


@pytest.fixture
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


@pytest.fixture
def without_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dot, "find_dot", lambda: None)


def chain(length: int) -> onnx.ModelProto:
    """A model of ``length`` nodes, each reading the two before it and a weight."""
    lines = [f"v{i} = Sum(v{i - 1}, v{max(i - 7, 0)}, w)" for i in range(1, length + 1)]
    body = "\n".join(lines)
    return onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]>'
        f"g (float[N,4] v0) => (float[N,4] v{length}) <float[4] w = {{1,2,3,4}}> {{ {body} }}"
    )


def boxes(plot: DotPlot) -> dict[str, Any]:
    return {box.title: box for box in plot.diagram.root.all_boxes()}


def test_constants_are_lines_of_the_nodes_that_read_them(model: onnx.ModelProto) -> None:
    found = boxes(plot_dot(model))
    assert set(found) == {
        *("x", "c", "s", "o", "y", "a", "b"),
        *("Transpose", "Cast", "Clip", "If", "Neg", "Add", "LeakyRelu", "Identity"),
        *("local.Gelu", "com.microsoft.FusedMatMul"),
    }
    assert found["x"].lines == ("float32 N x 3",)
    assert found["Transpose"].lines == ("perm=[1, 0]",)
    assert found["Clip"].lines == ("#2: [1.5]",)
    assert found["Add"].lines == ("#1: [2.]",)


def test_subgraphs_and_functions_have_frames(model: onnx.ModelProto) -> None:
    plot = plot_dot(model)
    titles = [frame.title for frame in plot.diagram.root.frames]
    assert titles == ["If then_branch", "If else_branch", "function local.Gelu"]
    assert plot.dot.count("subgraph cluster_") == 3
    assert plot.dot.count("style=dashed") == 2
    into = {(arrow.start, arrow.end) for arrow in plot.diagram.arrows}
    found = boxes(plot)
    assert (found["com.microsoft.FusedMatMul"].name, found["Neg"].name) in into
    assert (found["Neg"].name, found["If"].name) in into
    assert (found["LeakyRelu"].name, found["Identity"].name) in into


def test_arrows_carry_shapes_and_domains_have_colours(model: onnx.ModelProto) -> None:
    source = plot_dot(model).dot
    assert 'label="N x 3"' in source
    assert 'label="bool scalar"' in source
    fills = set(re.findall(r'fillcolor="(#\w+)"', source))
    assert fills == {"#d5edd3", *dot.PALETTE[:3]}


def test_many_domains_have_colours() -> None:
    lines = "\n".join(f"v{i + 1} = d{i}.Op(v{i})" for i in range(9))
    imports = ", ".join(f'"d{i}": 1' for i in range(9))
    graph = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18, {imports}]> g (float[1] v0) => (float[1] v9) '
        f"{{ {lines} }}"
    )
    colours = dot.colours(plot_dot(graph).diagram)
    assert len(colours) == 10
    assert set(colours.values()) == set(dot.PALETTE)


@pytest.mark.parametrize("form", ["proto", "graph", "ir", "ir graph", "bytes"])
def test_a_model_in_any_form(form: str, model: onnx.ModelProto) -> None:
    as_ir = ir.from_proto(model)
    forms = {
        "proto": model,
        "graph": model.graph,
        "ir": as_ir,
        "ir graph": as_ir.graph,
        "bytes": model.SerializeToString(),
    }
    assert "com.microsoft.FusedMatMul" in plot_dot(forms[form]).dot


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(OptionError, match="not Tensor"):
        plot_dot(torch.zeros(1))


STRANGE = 'a"<b>&\\'


def strangely_named() -> DotPlot:
    x = onnx.helper.make_tensor_value_info(STRANGE, 1, [1])
    y = onnx.helper.make_tensor_value_info("y", 1, [1])
    node = onnx.helper.make_node("Neg", [STRANGE], ["y"], name='n"')
    return plot_dot(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y])))


def test_a_strange_name_is_quoted() -> None:
    source = strangely_named().dot
    assert 'label="a\\"<b>&\\\\' in source
    assert 'tooltip="n\\""' in source


# -- without the program


@pytest.mark.usefixtures("without_program")
def test_without_the_program_all_but_png_is_there(model: onnx.ModelProto, tmp_path: Path) -> None:
    plot = plot_dot(model)
    with pytest.raises(DortError, match=r"needs the program `dot` .*apt-get install graphviz"):
        plot.save(tmp_path / "m.png")
    assert plot.save(tmp_path / "m.svg").read_text() == plot.svg() == plot._repr_svg_()
    assert plot.save(tmp_path / "m.dot").read_text() == plot.dot
    assert plot.dot.startswith("digraph model {")
    assert plot._repr_mimebundle_() == {"text/plain": repr(plot), "image/svg+xml": plot.svg()}


@pytest.mark.usefixtures("without_program")
def test_a_strange_name_is_drawn_without_the_program() -> None:
    texts = {e.text for e in ET.fromstring(strangely_named().svg()).iter()}
    assert STRANGE in texts


# -- with the program


@NEEDS_DOT
def test_notebooks_get_an_image(model: onnx.ModelProto) -> None:
    plot = plot_dot(model)
    bundle = plot._repr_mimebundle_()
    assert bundle["image/svg+xml"] == plot._repr_svg_() == plot.svg()
    assert bundle["text/plain"] == repr(plot)
    assert re.fullmatch(r"DotPlot\(\d+ boxes, \d+ arrows\)", repr(plot))
    assert list(plot._repr_mimebundle_(include={"text/plain"})) == ["text/plain"]
    assert list(plot._repr_mimebundle_(exclude={"image/svg+xml"})) == ["text/plain"]


@NEEDS_DOT
def test_an_empty_graph_is_drawn() -> None:
    ET.fromstring(plot_dot(onnx.GraphProto(name="g")).svg())


@NEEDS_DOT
def test_a_strange_name_is_drawn() -> None:
    texts = {e.text for e in ET.fromstring(strangely_named().svg()).iter()}
    assert STRANGE in texts


@NEEDS_DOT
def test_files_of_graphviz(model: onnx.ModelProto, tmp_path: Path) -> None:
    plot = plot_dot(model)
    assert plot.save(tmp_path / "m.png").read_bytes().startswith(PNG)
    assert "<svg" in plot.save(str(tmp_path / "m.svg")).read_text()
    image = ET.fromstring(plot.svg())
    texts = {element.text for element in image.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Transpose", "If then_branch", "function local.Gelu", "N x 3"} <= texts


@NEEDS_DOT
def test_graphviz_draws_three_hundred_nodes(tmp_path: Path) -> None:
    image = plot_dot(chain(300)).save(tmp_path / "m.svg").read_text()
    assert image.count('class="node"') == 302


def program(folder: Path, text: str) -> str:
    path = folder / "dot"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_failure_of_graphviz_is_told(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = program(tmp_path, "echo no font >&2; exit 3")
    monkeypatch.setattr(dot, "find_dot", lambda: fails)
    with pytest.raises(DortError, match="graphviz failed: no font"):
        plot_dot(model).save(tmp_path / "m.svg")
    hangs = program(tmp_path, "exec sleep 20")
    monkeypatch.setattr(dot, "find_dot", lambda: hangs)
    monkeypatch.setattr(dot, "SECONDS", 0.2)
    with pytest.raises(DortError, match=r"within 0\.2 seconds"):
        plot_dot(model).save(tmp_path / "m.svg")


def test_another_suffix_or_folder_is_refused(model: onnx.ModelProto, tmp_path: Path) -> None:
    plot = plot_dot(model)
    with pytest.raises(OptionError, match=r"\.svg, \.png or \.dot, not '\.jpg'"):
        plot.save(tmp_path / "m.jpg")
    with pytest.raises(OptionError, match="cannot be written"):
        plot.save(tmp_path / "none" / "m.dot")
