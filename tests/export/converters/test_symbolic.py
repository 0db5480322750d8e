"""Python's operators on numbers, against Python."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.export.cases import Case, T, run, table_test

CASES = [
    Case("aten::sym_size.int", (T(2, 3), 0)),
    Case("aten::sym_size.int", (T(2, 3), -1)),
    Case("aten::sym_numel", (T(2, 3),)),
    Case("aten::sym_stride.int", (T(2, 3, 4), 0)),
]
INTEGERS = (-7, -2, 1, 3, 8)
FLOATS = (-7.5, -0.5, 0.5, 2.5, 7.0)
PAIRS = [*itertools.product(INTEGERS, INTEGERS), *itertools.product(FLOATS, (-2, 0.1, 3.0))]


def graph_of(function: Any, values: tuple[Any, ...], result: Any) -> torch.fx.GraphModule:
    """A graph that calls a function of numbers, with the metadata of a symbolic trace."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"n{i}") for i in range(len(values))]
    for node, value in zip(inputs, values, strict=True):
        node.meta["val"] = value
    called = graph.call_function(function, tuple(inputs))
    called.meta["val"] = result
    graph.output((called,))
    return torch.fx.GraphModule({}, graph)


def assert_same(function: Callable[..., Any], values: tuple[Any, ...], result: Any) -> None:
    tensors = [
        torch.tensor(v, dtype=torch.float64 if isinstance(v, float) else None) for v in values
    ]
    (got,) = run(graph_of(function, values, result), tensors, 18)
    assert type(got.item()) is type(result)
    assert got.item() == result


@pytest.mark.parametrize("values", PAIRS, ids=str)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "floordiv", "truediv", "mod", "eq", "ne", "lt", "le", "gt", "ge"]
)
def test_binary(name: str, values: tuple[Any, Any]) -> None:
    function = getattr(operator, name)
    assert_same(function, values, function(*values))


@pytest.mark.parametrize("values", [(3, 4), (-2, 5), (2, 0), (2.5, 2), (4, 0.5), (2, -1)], ids=str)
def test_power(values: tuple[Any, Any]) -> None:
    graph = graph_of(operator.pow, values, operator.pow(*values))
    call = next(n for n in graph.graph.nodes if n.op == "call_function")
    call.args = (call.args[0], values[1])  # the exponent is a number in a graph
    last = list(graph.graph.nodes)[1]
    assert last.op == "placeholder"
    graph.graph.erase_node(last)
    graph.recompile()
    dtype = torch.float64 if isinstance(values[0], float) else torch.int64
    (got,) = run(graph, [torch.tensor(values[0], dtype=dtype)], 18)
    assert got.item() == operator.pow(*values)


@pytest.mark.parametrize("value", [*INTEGERS, *FLOATS, 1.5], ids=str)
@pytest.mark.parametrize(
    "function",
    [operator.neg, operator.pos, operator.abs, math.floor, math.ceil, math.trunc, round],
)
def test_unary(function: Callable[[Any], Any], value: Any) -> None:
    assert_same(function, (value,), function(value))


@pytest.mark.parametrize(
    ("function", "values", "result"),
    [
        (torch.sym_max, (3, 5), 5),
        (torch.sym_max, (3, 5.5), 5.5),
        (torch.sym_min, (3, -5), -5),
        (max, (3, 5), 5),
        (min, (3, 5), 3),
        (torch.sym_not, (True,), False),
        (operator.not_, (False,), True),
        (torch.sym_int, (-2.7,), -2),
        (torch.sym_float, (3,), 3.0),
        (torch.sym_ite, (True, 3, 4), 3),
        (torch.sym_ite, (False, 3, 4), 4),
        (operator.and_, (True, False), False),
        (operator.or_, (True, False), True),
        (operator.xor, (True, True), False),
        (operator.and_, (6, 3), 2),
        (math.sqrt, (16,), 4.0),
        (torch._sym_sqrt, (2.25,), 1.5),
        (math.exp, (0,), 1.0),
        (math.log, (1,), 0.0),
    ],
)
def test_function(function: Callable[..., Any], values: tuple[Any, ...], result: Any) -> None:
    assert_same(function, values, result)


test_op = table_test(CASES, static=False)
