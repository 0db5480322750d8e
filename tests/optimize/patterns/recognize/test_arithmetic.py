"""A value times a number."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from dort_rewriter.optimize.patterns.recognize.operands import scaled
from dort_rewriter.optimize.view import GraphView

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'


def found_in(text: str) -> float | None:
    """The number by which x is multiplied, according to the only node of a graph."""
    model = ir.from_proto(onnx.parser.parse_model(HEADER + text))
    (node,) = model.graph
    found = scaled(node, GraphView(model))
    assert found is None or found[0].name == "x"
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("body", "number"),
    [("Mul(x, c)", 4.0), ("Mul(c, x)", 4.0), ("Div(x, c)", 0.25), ("Div(c, x)", None)],
)
def test_the_number_stands_on_either_side_of_a_product(body: str, number: float | None) -> None:
    assert found_in(f"g (float[N] x) => (float[N] y) <float c = {{4}}> {{ y = {body} }}") == number


@pytest.mark.parametrize(
    "constant", ["float c = {0}", "float[2] c = {4, 4}", "float[1,1] c = {4}"]
)
def test_neither_zero_nor_tensors_nor_what_makes_it_larger(constant: str) -> None:
    text = f"g (float[N] x) => (float[A,B] y) <{constant}> {{ y = Mul(x, c) }}"
    assert found_in(text) is None


def test_a_quotient_of_integers_is_no_product() -> None:
    for operator, number in (("Mul", 4), ("Div", None)):
        text = f"g (int64[N] x) => (int64[N] y) <int64 c = {{4}}> {{ y = {operator}(x, c) }}"
        assert found_in(text) == number
