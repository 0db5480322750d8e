"""A mask that is made as the upper part of a matrix."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from dort_rewriter.optimize.patterns.recognize.attention import is_causal
from dort_rewriter.optimize.view import GraphView

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
LOWEST = "-3.4e38"


def _found(number: str, first: str = "1", rows: int = 4, columns: int = 4, how: str = "1") -> bool:
    text = f"""g () => (float[{rows},{columns}] y)
    <int64[2] n = {{{rows}, {columns}}}, int64 first = {{{first}}}> {{
        m = ConstantOfShape<value = float[1] {{{number}}}>(n)
        y = Trilu<upper = {how}>(m, first)
    }}"""
    model = ir.from_proto(onnx.parser.parse_model(HEADER + text))
    return is_causal(model.graph.outputs[0], GraphView(model))


@pytest.mark.parametrize("number", ["-inf", LOWEST])
def test_what_is_above_the_diagonal_is_hidden(number: str) -> None:
    assert _found(number)


@pytest.mark.parametrize(
    "choice",
    [
        {"number": "-1e9"},
        {"number": "nan"},
        {"number": "1"},
        {"first": "0"},
        {"first": "2"},
        {"how": "0"},
        {"rows": 3},
        {"columns": 3},
        {"rows": 1, "columns": 1},
    ],
)
def test_another_mask_is_not_causal(choice: dict[str, str]) -> None:
    assert not _found(**{"number": "-inf", **choice})  # type: ignore[arg-type]
