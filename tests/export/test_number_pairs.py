"""Operators of two tensors, for pairs of types, with the numbers at which arithmetic goes wrong.

One model holds all operators of a pair: a session for each would take minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dort_rewriter.export.dispatcher import Dispatcher
from tests.export.cases import TOLERANCE, overload, run, without_warnings

TYPES = (torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)
PAIRS = [(a, b) for i, a in enumerate(TYPES) for b in TYPES[i:]] + [
    (torch.int64, torch.float16),
    (torch.uint8, torch.int8),
    (torch.bool, torch.int32),
]
OPERATORS = (
    *"add sub mul div rsub fmod remainder copysign xlogy ldexp clamp_min clamp_max".split(),
    *"eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor".split(),
    *"bitwise_left_shift bitwise_right_shift __lshift__ __rshift__".split(),
)
WITHOUT_OVERLOADS = (
    *"maximum minimum fmax fmin atan2 hypot nextafter heaviside special_xlog1py".split(),
    *"logaddexp logaddexp2 logical_and logical_or logical_xor floor_divide gcd".split(),
)
DIVIDING = ("aten::remainder.Tensor", "aten::fmod.Tensor", "aten::floor_divide")


def numbers(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, small numbers, the ends of the type; what is not finite, of floats."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        info = torch.finfo(dtype)
        ends = [info.max, info.min, info.tiny, math.nan, math.inf, -math.inf]
        return torch.tensor([0.0, -0.0, 1, -1, 0.5, -2.5, 3, 7.25, -30, *ends], dtype=dtype)
    limits = torch.iinfo(dtype)
    negative = [-1, -2, -7] if limits.min else []
    wide = [70000, -70000] if limits.bits > 16 else []
    wider = [2**40, -(2**40)] if limits.bits > 32 else []
    ends = [limits.max, limits.max - 1, limits.min]
    return torch.tensor([0, 1, 2, 3, 7, *ends, *negative, *wide, *wider], dtype=dtype)


def calls(a: torch.dtype, b: torch.dtype) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The operators of two types, with what they are given."""
    x, y = numbers(a)[:, None], numbers(b)[None]
    of_integers = not (a.is_floating_point or b.is_floating_point)
    names = [f"aten::{n}.Tensor" for n in OPERATORS] + [f"aten::{n}" for n in WITHOUT_OVERLOADS]
    for name in names:
        divisor = y
        if name in DIVIDING and of_integers:  # by zero torch raises; the lowest by -1 ends it
            divisor = y[:, (y[0] != 0) & (y[0].long() != -1)]
        elif name == "aten::floor_divide" and a != b:
            continue  # large integers are infinities of float16 first in eager: NaN
        yield name, (x, divisor)
    yield "aten::pow.Tensor_Tensor", (x, y[:, y[0] >= 0] if of_integers else y)
    yield "aten::where.self", (torch.arange(len(x))[:, None] % 2 == 0, x, y)
    yield "aten::lerp.Scalar", (x, y, 0.3)


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_pairs_of_types(a: torch.dtype, b: torch.dtype) -> None:
    graph, given, results = torch.fx.Graph(), {}, []
    for name, arguments in calls(a, b):
        try:
            expected = without_warnings(overload(name), *arguments)
        except (RuntimeError, NotImplementedError):  # not for these types
            continue
        for x in arguments:
            if isinstance(x, torch.Tensor) and id(x) not in given:
                with graph.inserting_before():
                    given[id(x)] = graph.placeholder(f"x{len(given)}"), x
                given[id(x)][0].meta["val"] = x
        node = graph.call_function(
            overload(name),
            tuple(given[id(x)][0] if isinstance(x, torch.Tensor) else x for x in arguments),
        )
        node.meta["val"] = expected
        if Dispatcher().refusal(node) is None:
            results.append((name, node, expected))
        else:  # it stays in torch
            graph.erase_node(node)
    graph.output(tuple(node for _, node, _ in results))
    assert len(results) > 15
    tensors = {node.name: x for node, x in given.values()}
    inputs = [tensors[n.name] for n in graph.nodes if n.op == "placeholder"]
    for got, (name, _, expected) in zip(
        run(torch.fx.GraphModule({}, graph), inputs, 18), results, strict=True
    ):
        assert got.dtype == expected.dtype, name
        tolerance = TOLERANCE.get(expected.dtype, 0)
        torch.testing.assert_close(
            got, expected, rtol=tolerance, atol=tolerance, equal_nan=True, msg=f"{name} differs"
        )
