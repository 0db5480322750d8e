"""Lists that are given addresses: each graph but the first two stays as it is, for one reason."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import pytest

from dort_rewriter.optimize.addresses import give_addresses
from dort_rewriter.signature import Addresses
from tests.optimize.rewrites import model_of

LIST = "dort_rewriter.ElementwiseList <program = [0, 0, -1, -2, 0], results = [0], count = 2>"
"""Sums of two pairs."""


def _given(inputs: str, outputs: str, nodes: Sequence[str]) -> tuple[ir.Model, Addresses] | None:
    results, inner = outputs.split(" <") if " <" in outputs else (outputs, "")
    known = f"<{inner}>" if inner else ""
    model = model_of(f"({inputs}) => ({results}) {known} {{ {' '.join(nodes)} }}")
    names = [str(v.name) for v in model.graph.outputs]
    before = str(model.graph)
    arguments = {str(v.name): i for i, v in enumerate(model.graph.inputs)}
    found = give_addresses(model, {n: n.replace("q", "p") for n in names}, arguments, 7)
    assert str(model.graph) == before
    return found


ARGUMENTS = "float[2,3] p0, float[2,3] g0, float[4] p1, float[4] g1"
RESULTS = "float[2,3] q0, float[4] q1"


def test_a_list_is_given_addresses() -> None:
    found = _given(ARGUMENTS, RESULTS, [f"q0, q1 = {LIST} (p0, g0, p1, g1)"])
    assert found is not None
    model, addresses = found
    assert addresses.places == (0, 1, "q0", 2, 3, "q1")
    graph = model.graph
    assert [v.name for v in graph.inputs] == [addresses.input]
    assert tuple(v.name for v in graph.outputs) == addresses.done
    (node,) = graph
    assert node.op_type == "ElementwiseListAt"
    assert node.attributes["sizes"].as_ints() == (6, 4)


def test_what_another_list_gives_stays_a_tensor() -> None:
    found = _given(
        "float s0, float s1, float[5] p0, float[6] p1",
        "float[5] q0, float[6] q1 <float n0, float n1",
        [f"n0, n1 = {LIST} (s0, s0, s1, s1)", f"q0, q1 = {LIST} (p0, n0, p1, n1)"],
    )
    assert found is not None
    model, addresses = found
    assert addresses.places == (2, "q0", 3, "q1")
    first, second = model.graph
    assert first.op_type == "ElementwiseList"
    assert [v.name for v in second.inputs if v is not None] == [addresses.input, "n0", "n1"]
    assert [v.name for v in model.graph.inputs] == [addresses.input, "s0", "s1"]


REFUSED = {
    "another node": (ARGUMENTS, RESULTS, [f"h = Neg(g0) q0, q1 = {LIST} (p0, h, p1, g1)"]),
    "a result that is read": (
        ARGUMENTS,
        f"{RESULTS}, float[2,3] q2, float[4] q3",
        [f"q0, q1 = {LIST} (p0, g0, p1, g1) q2, q3 = {LIST} (q0, q0, q1, q1)"],
    ),
    "repeated numbers": (
        "float[2,3] p0, float[3] g0, float[4] p1, float[4] g1",
        RESULTS,
        [f"q0, q1 = {LIST} (p0, g0, p1, g1)"],
    ),
    "a size that is no number": (
        "float[N] p0, float[N] g0, float[4] p1, float[4] g1",
        "float[N] q0, float[4] q1",
        [f"q0, q1 = {LIST} (p0, g0, p1, g1)"],
    ),
    "another type": (
        "double[3] p0, double[3] g0, double[4] p1, double[4] g1",
        "double[3] q0, double[4] q1",
        [f"q0, q1 = {LIST} (p0, g0, p1, g1)"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_graphs_that_stay(name: str) -> None:
    assert _given(*REFUSED[name]) is None


def test_what_is_not_written_in_place_stays() -> None:
    model = model_of(f"({ARGUMENTS}) => ({RESULTS}) {{ q0, q1 = {LIST} (p0, g0, p1, g1) }}")
    assert give_addresses(model, {"q0": "p0"}, {"p0": 0}, 7) is None
    assert give_addresses(model, {}, {}, 7) is None
