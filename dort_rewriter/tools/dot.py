"""plot_dot: a model drawn in a file or in a notebook, by graphviz where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from dort_rewriter.errors import DortError, OptionError
from dort_rewriter.tools.diagram import Arrow, Box, Diagram, Frame, make_diagram
from dort_rewriter.tools.layered import draw
from dort_rewriter.tools.models import load_model, load_part

Format = Literal["svg", "png", "dot"]

PALETTE = ("#dbe9f6", "#fde0c5", "#e6d9f2", "#fbd5dc", "#f3ecc2", "#d9d9d9")
"""The first is for ONNX's own operators, the next for the other domains in their order."""

ENDS = {"input": "#d5edd3", "output": "#d5edd3"}
SECONDS = 300
"""Time after which graphviz is stopped."""

_ADVICE = (
    "it needs the program `dot` of graphviz, which is not found: install it "
    "(`apt-get install graphviz`, `brew install graphviz`, `conda install graphviz`), "
    "or take an SVG image, save('model.svg')."
)


def plot_dot(model: Any) -> DotPlot:
    """Draw a model: an object that notebooks display, and that saves itself to a file.

    Initializers and constants are written in the nodes that read them, nodes are coloured by
    domain, arrows carry the shape (and the type unless it is float32). ``plot_dot(m).dot`` is the
    source for graphviz, ``plot_dot(m).save("m.svg")`` draws it, without graphviz too.

    Args:
        model: a model or a graph of ``onnx`` or ``onnx_ir``, the bytes or the path of a model.

    Raises:
        OptionError: for anything else.

    """
    part = load_part(model)
    return DotPlot(make_diagram(part if isinstance(part, ir.Graph) else load_model(part)))


class DotPlot:
    """A drawing; its source is in ``dot``."""

    def __init__(self, diagram: Diagram) -> None:
        self.diagram = diagram
        self.dot = "\n".join(_write(diagram)) + "\n"

    def __repr__(self) -> str:
        boxes = sum(1 for _ in self.diagram.root.all_boxes())
        return f"DotPlot({boxes} boxes, {len(self.diagram.arrows)} arrows)"

    def svg(self) -> str:
        """An SVG image without a header, so that it fits into a page.

        Graphviz draws it where it is installed: only there subgraphs have frames.
        """
        if find_dot() is None:
            return draw(self.diagram, colours(self.diagram), ENDS)
        image = _run_dot(self.dot, "svg").decode("utf-8")
        return image[image.index("<svg") :]

    def save(self, path: str | Path) -> Path:
        """Write the drawing to ``.svg``, to ``.png`` with graphviz, or its source to ``.dot``.

        Raises :class:`OptionError` for another suffix, :class:`DortError` for a ``.png`` without
        graphviz.
        """
        target = Path(path)
        match target.suffix:
            case ".svg":
                content = self.svg().encode("utf-8")
            case ".png":
                content = _run_dot(self.dot, "png")
            case ".dot":
                content = self.dot.encode("utf-8")
            case other:
                raise OptionError(f"A drawing is saved as .svg, .png or .dot, not {other!r}.")
        try:
            target.write_bytes(content)
        except OSError as error:
            raise OptionError(f"The drawing cannot be written: {error}.") from error
        return target

    def _repr_svg_(self) -> str:
        return self.svg()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Mapping[str, str]:
        makers = {"text/plain": self.__repr__, "image/svg+xml": self.svg}
        return {
            kind: make()
            for kind, make in makers.items()
            if (not include or kind in include) and not (exclude and kind in exclude)
        }


def find_dot() -> str | None:
    """The path of graphviz's program, if it is installed."""
    return shutil.which("dot")


def _run_dot(source: str, kind: Format) -> bytes:
    program = find_dot()
    if program is None:
        raise DortError(f"No {kind} was drawn: {_ADVICE}")
    try:
        done = subprocess.run(
            [program, f"-T{kind}"], input=source.encode(), capture_output=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise DortError(f"graphviz did not draw the graph within {SECONDS} seconds.") from error
    if done.returncode:
        raise DortError(f"graphviz failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def colours(diagram: Diagram) -> dict[str, str]:
    """The colour of each domain; ONNX's own always has the same."""
    others = [domain for domain in diagram.domains if domain]
    found = {"": PALETTE[0]}
    for position, domain in enumerate(others):
        found[domain] = PALETTE[1 + position % (len(PALETTE) - 1)]
    return found


def _write(diagram: Diagram) -> Iterator[str]:
    fills = colours(diagram)
    yield "digraph model {"
    yield '  graph [rankdir=TB, ranksep=0.35, nodesep=0.25, fontname="Helvetica"];'
    yield '  node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11,'
    yield '        color="#8a94a0", margin="0.10,0.05", height=0.3];'
    yield '  edge [color="#6b7580", fontname="Helvetica", fontsize=9, fontcolor="#4a525a",'
    yield "        arrowsize=0.6];"
    yield from _frame(diagram.root, fills, "  ")
    for arrow in diagram.arrows:
        yield f"  {_arrow(arrow)}"
    yield "}"


def _frame(frame: Frame, fills: Mapping[str, str], indent: str) -> Iterator[str]:
    for box in frame.boxes:
        yield f"{indent}{_box(box, fills)}"
    for position, inner in enumerate(frame.frames):
        # The first box makes the name unique: graphviz joins clusters of the same name.
        first = next((box.name for box in inner.all_boxes()), f"empty{position}")
        yield f"{indent}subgraph cluster_{first} {{"
        yield f'{indent}  label={_quote(inner.title)}; style="rounded,dashed"; color="#8a94a0";'
        yield from _frame(inner, fills, f"{indent}  ")
        yield f"{indent}}}"


def _box(box: Box, fills: Mapping[str, str]) -> str:
    fill = ENDS.get(box.kind) or fills[box.domain]
    label = "\n".join([box.title, *box.lines])
    details = [f"label={_quote(label)}", f'fillcolor="{fill}"']
    if box.tooltip:
        details.append(f"tooltip={_quote(box.tooltip)}")
    return f"{box.name} [{', '.join(details)}];"


def _arrow(arrow: Arrow) -> str:
    details = []
    if arrow.label:
        details.append(f"label={_quote(arrow.label)}")
    if arrow.tooltip:
        details.append(f"tooltip={_quote(arrow.tooltip)}")
    if arrow.returns:
        details.append("style=dashed")
    return f"{arrow.start} -> {arrow.end} [{', '.join(details)}];"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
