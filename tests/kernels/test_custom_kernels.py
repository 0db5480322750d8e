"""Kernels of our own: what they compute, how their library is built and found."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.loading import custom_ops_library
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.runtime.kernel_query import has_kernel
from dort_rewriter.runtime.model_files import uses_custom_kernels
from dort_rewriter.runtime.session import create_session, session_options

Array = np.ndarray[Any, Any]
BFLOAT16 = ml_dtypes.bfloat16
TYPES = [np.float32, np.float64, np.float16, BFLOAT16]
FLOATING = [np.float32, np.float16, BFLOAT16]
TOLERANCE = {np.float32: 3e-7, np.float64: 1e-15, np.float16: 1e-3, BFLOAT16: 8e-3}


def _model(
    op_type: str,
    arrays: Sequence[Array],
    ranks: Sequence[int],
    made: Sequence[Any] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node, whose results are of the type of its last input unless it is said.

    NOTE: onnxruntime's Python takes no bfloat16: it is cast from and to float32 around the node.
    """
    count = len(ranks)
    made = made or [arrays[-1].dtype] * count
    types = [
        helper.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (*[a.dtype for a in arrays], *made)
    ]
    names = [*(f"x{i}" for i in range(len(arrays))), *(f"y{i}" for i in range(count))]
    inner = [
        n if t != onnx.TensorProto.BFLOAT16 else f"{n}_inner"
        for n, t in zip(names, types, strict=True)
    ]
    outer = [t if t != onnx.TensorProto.BFLOAT16 else onnx.TensorProto.FLOAT for t in types]
    n = len(arrays)
    around = [(a, b, t) for a, b, t in zip(names, inner, types, strict=True) if a != b]
    nodes = [
        *(helper.make_node("Cast", [a], [b], to=t) for a, b, t in around if a[0] == "x"),
        helper.make_node(op_type, inner[:n], inner[n:], domain=OWN_DOMAIN, **attributes),
        *(helper.make_node("Cast", [b], [a], to=1) for a, b, t in around if a[0] == "y"),
    ]
    all_ranks = [*(a.ndim for a in arrays), *ranks]
    values = [
        helper.make_tensor_value_info(name, t, [None] * rank)
        for name, t, rank in zip(names, outer, all_ranks, strict=True)
    ]
    known = [helper.make_tensor_value_info(b, t, None) for a, b, t in around]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(OWN_DOMAIN, 1)]
    graph = helper.make_graph(nodes, "kernels", values[:n], values[n:], value_info=known)
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def _run(
    op_type: str,
    *arrays: Array,
    ranks: Sequence[int] = (),
    made: Sequence[Any] = (),
    **attributes: Any,
) -> list[Any]:
    ranks = ranks or [max(a.ndim for a in arrays)] * max(len(made), 1)
    made = made or [arrays[-1].dtype] * len(ranks)
    model = _model(op_type, arrays, ranks, made, **attributes)
    session = create_session(model).ort
    feeds = {f"x{i}": _fed(a) for i, a in enumerate(arrays)}
    results = session.run(None, feeds)
    return [r.astype(t) if t == BFLOAT16 else r for r, t in zip(results, made, strict=True)]


def _fed(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == BFLOAT16 else array


def _random(*shape: int, dtype: Any = np.float32) -> Array:
    generator = np.random.default_rng(len(shape) + sum(shape))
    return generator.normal(size=shape).astype(dtype)


OPERATIONS: dict[int, Any] = {
    0: lambda a, b, c: a + b,
    1: lambda a, b, c: a - b,
    2: lambda a, b, c: a * b,
    3: lambda a, b, c: a / b,
    4: lambda a, b, c: np.maximum(a, b),
    5: lambda a, b, c: np.minimum(a, b),
    6: lambda a, b, c: -a,
    7: lambda a, b, c: np.abs(a),
    8: lambda a, b, c: np.sqrt(a),
    9: lambda a, b, c: np.reciprocal(a),
    10: lambda a, b, c: np.where(np.isnan(a), a, np.maximum(a, 0)),
    11: lambda a, b, c: (1 / (1 + np.exp(-a.astype(np.float64)))).astype(a.dtype),
    12: lambda a, b, c: np.exp(a.astype(np.float64)).astype(a.dtype),
    13: lambda a, b, c: (a == b).astype(a.dtype),
    14: lambda a, b, c: (a < b).astype(a.dtype),
    15: lambda a, b, c: (a <= b).astype(a.dtype),
    16: lambda a, b, c: (a > b).astype(a.dtype),
    17: lambda a, b, c: (a >= b).astype(a.dtype),
    18: lambda a, b, c: np.where(a != 0, b, c),
    19: lambda a, b, c: torch.from_numpy(a.astype(np.float64)).erf().numpy().astype(a.dtype),
    20: lambda a, b, c: np.tanh(a.astype(np.float64)).astype(a.dtype),
    21: lambda a, b, c: np.log(a.astype(np.float64)).astype(a.dtype),
    22: lambda a, b, c: (a == 0).astype(a.dtype),
    23: lambda a, b, c: np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype),
}
EXACT = set(OPERATIONS) - {11, 12, 19, 20, 21, 23}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation(operation: int, dtype: Any) -> None:
    """Also of what is not finite; bit for bit, but for exponentials."""
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-3, 80.0, -80.0, 200.0, -200.0]
    grid = np.array(np.meshgrid(special, special), dtype=dtype).reshape(2, -1)
    a = np.concatenate([grid[0], 3 * _random(1000, dtype=dtype)])
    b = np.concatenate([grid[1], _random(1000, dtype=dtype)[::-1]])
    c = np.full_like(a, 7)
    (got,) = _run("Elementwise", a, b, c, program=[operation, 0, -1, -2, -3], results=[0])
    with np.errstate(all="ignore"):
        expected = OPERATIONS[operation](a, b, c)
    got, expected = _fed(got), _fed(expected)
    if operation in EXACT:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=1e-37)


SHAPES = [
    [(2, 3, 4), (2, 3, 4), (2, 3, 4)],
    [(2, 3, 4), (4,), ()],
    [(2, 3, 1), (1, 4), (2, 1, 1)],
    [(1,), (5, 1, 7), (3, 1)],
    [(4, 700), (4, 1), (700,)],
    [(3, 1, 5, 1), (1, 2, 5, 6), (3, 2, 1, 1)],
    [(0, 3), (1, 3), (3,)],
    [(), (), ()],
    [(70, 9, 130), (9, 1), (70, 1, 130)],
]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "shapes", [[(), (1,), ()], [(0,), (3, 0), (7,)], [(40_000,), (3, 5), (), (9, 3000), (2,)]]
)
def test_a_list_runs_a_program_on_each_group(shapes: list[tuple[int, ...]], dtype: Any) -> None:
    groups = [(_random(*s, dtype=dtype), _random(*s[-1:], dtype=dtype)) for s in shapes]
    program = [0, 0, -1, -2, 0, 2, 1, 0, -2, 0]
    how = {"program": program, "results": [1, 0], "count": len(groups)}
    ranks = [len(s) for s in shapes for _ in range(2)]
    got = _run("ElementwiseList", *(x for g in groups for x in g), ranks=ranks, **how)
    for (a, b), product, total in zip(groups, got[::2], got[1::2], strict=True):
        alone = {"program": program, "results": [1, 0], "ranks": [a.ndim] * 2}
        expected = _run("Elementwise", a, b, **alone)
        np.testing.assert_array_equal(product, expected[0])
        np.testing.assert_array_equal(total, expected[1])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("shape", "axis", "places"),
    [
        ((5,), 0, [4, 0]),
        ((2, 6, 3), 1, [3]),
        ((2, 6, 3), 2, [2, 2, 1]),
        ((300, 700), 0, [7, 299]),
        ((2, 0, 3), 2, [1]),
        ((2, 4), 1, []),
    ],
)
def test_rows_are_written(
    shape: tuple[int, ...], axis: int, places: list[int], dtype: Any
) -> None:
    data = _random(*shape, dtype=dtype)
    expected, where = data.copy(), (*[slice(None)] * axis, np.array(places, dtype=np.int64))
    rows = _random(*expected[where].shape, dtype=dtype)
    for i, place in enumerate(places):  # the last of several wins
        where = (*[slice(None)] * axis, place)
        expected[where] = rows[(*[slice(None)] * axis, i)]
    index = np.array(places, dtype=np.int64)
    for given, wrap in ((index, 0), (index - shape[axis], 1)):
        (got,) = _run("WriteRows", given, data, rows, axis=axis, wrap=wrap, ranks=[len(shape)])
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("index", "shape", "how", "words"),
    [
        ([5], (1, 3), {}, "outside"),
        ([-1], (1, 3), {}, "outside"),
        ([-6], (1, 3), {"wrap": 1}, "outside"),
        ([1], (2, 3), {}, "do not fit"),
        ([1], (3,), {}, "do not fit"),
        ([1], (1, 3), {"axis": 2}, "no such axis"),
        ([[1]], (1, 3), {}, "no such axis"),
    ],
)
def test_rows_that_do_not_fit(
    index: Any, shape: tuple[int, ...], how: dict[str, int], words: str
) -> None:
    places = np.array(index, dtype=np.int64)
    with pytest.raises(Exception, match=words):
        _run("WriteRows", places, _random(5, 3), _random(*shape), ranks=[2], **how)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_list_of_programs_that_share_inputs(dtype: Any) -> None:
    """The last inputs, a number and a row, belong to all."""
    groups = [_random(*s, dtype=dtype) for s in ((3, 5), (1, 5), (2_000, 5))]
    shared = [_random(dtype=dtype), _random(5, dtype=dtype)]
    program = {"program": [1, 0, -3, -1, 0, 2, 0, 0, -2, 0], "results": [0]}
    ranks = {"ranks": [2] * len(groups)}
    got = _run("ElementwiseList", *groups, *shared, **ranks, **program, count=3, shared=2)
    for x, result in zip(groups, got, strict=True):
        (expected,) = _run("Elementwise", x, *shared, ranks=[2], **program)
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("shared", [1, 3, 5, -1, 2**40])
def test_a_list_that_shares_what_does_not_fit_is_refused(shared: int) -> None:
    how = {"program": [0, 0, -1, -2, 0], "results": [0], "count": 2, "shared": shared}
    with pytest.raises(ExecutionError, match=r"out of its range|other inputs"):
        _run("ElementwiseList", *[_random(2)] * 4, ranks=[1], **how)


@pytest.mark.parametrize("count", [0, 2, 3, -1, 2**40])
def test_a_list_of_another_length_is_refused(count: int) -> None:
    how = {"program": [0, 0, -1, -2, 0], "results": [0], "count": count}
    with pytest.raises(ExecutionError, match=r"out of its range|other inputs"):
        _run("ElementwiseList", *[_random(2)] * 4, ranks=[1], **how)


def test_a_list_of_several_types() -> None:
    """The first input, and the first result, of each group of one type."""
    x, y = [_random(*s).astype(BFLOAT16) for s in ((3, 5), (700,))]
    f, g = _random(5), _random(1)
    how = {"program": [0, 0, -1, -2, 0], "results": [0, 0], "count": 2}
    types = {"made": [BFLOAT16, np.float32] * 2, "ranks": [2, 2, 1, 1]}
    got = _run("ElementwiseList", x, f, y, g, **types, **how)
    totals = x.astype(np.float32) + f, y.astype(np.float32) + g
    for total, narrow, wide in zip(totals, got[::2], got[1::2], strict=True):
        np.testing.assert_array_equal(_fed(narrow), _fed(total.astype(BFLOAT16)))
        np.testing.assert_array_equal(wide, total)
    with pytest.raises(Exception, match="results of a list are of other types"):
        _run("ElementwiseList", x, f, y, g, made=[BFLOAT16, np.float32, *[BFLOAT16] * 2], **how)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_inputs_are_broadcast(shapes: list[tuple[int, ...]], dtype: Any) -> None:
    """Two results of four instructions, tile by tile, in parts for several threads."""
    a, b, c = (_random(*shape, dtype=dtype) for shape in shapes)
    program = [0, 0, -1, -2, 0, 2, 1, 0, -3, 0, 6, 2, 1, 0, 0, 1, 0, 2, -1, 0]
    rank = max(len(shape) for shape in shapes)
    first, second = _run("Elementwise", a, b, c, ranks=[rank] * 2, program=program, results=[1, 0])
    wide = [x.astype(np.float32) if dtype in (np.float16, BFLOAT16) else x for x in (a, b, c)]
    product = (wide[0] + wide[1]) * wide[2]
    np.testing.assert_array_equal(_fed(first), _fed(product.astype(dtype)))
    np.testing.assert_array_equal(_fed(second), _fed((-product - wide[0]).astype(dtype)))


PERMS = [
    ((3, 5, 2, 70), (0, 2, 1, 3)),
    ((40, 33, 31), (0, 2, 1)),
    ((600, 50), (1, 0)),
    ((4, 3, 2, 5), (3, 1, 0, 2)),
    ((1, 9, 1, 8), (3, 2, 1, 0)),
    ((7, 64, 130), (2, 0, 1)),
    ((300, 300), (0, 1)),
    ((0, 3), (1, 0)),
    ((), ()),
]


CONVERTING = {
    "TransposeToFloat": [(np.float16, np.float32), (BFLOAT16, np.float32)],
    "TransposeToFloat16": [(np.float32, np.float16)],
    "TransposeToBfloat16": [(np.float32, BFLOAT16)],
}


@pytest.mark.parametrize(("name", "types"), [(n, t) for n, ts in CONVERTING.items() for t in ts])
@pytest.mark.parametrize(("shape", "perm"), PERMS[:-1], ids=str)
def test_transposes_that_convert(
    shape: tuple[int, ...], perm: tuple[int, ...], name: str, types: tuple[Any, Any]
) -> None:
    """In blocks and in rows, also of what is too large or too small for float16."""
    x = _random(*shape) * np.float32(10) ** (2 * _random(*shape))
    x.ravel()[:4] = [np.nan, np.inf, -0.0, 1e9][: x.size]
    with np.errstate(over="ignore"):
        given = x.astype(types[0])
        (got,) = _run(name, given, made=[types[1]], perm=list(perm))
        expected = given.astype(types[1]).transpose(perm)
    np.testing.assert_array_equal(_fed(got), _fed(expected))


@pytest.mark.parametrize("size", [1, 7, 33, 70_001])
@pytest.mark.parametrize("types", [*itertools.product(FLOATING, repeat=2)])
def test_programs_that_convert(types: tuple[Any, Any], size: int) -> None:
    """In vectors and their rest, by several threads; also a number that is repeated."""
    given, made = types
    with np.errstate(over="ignore"):
        x = (_random(size) * np.float32(10) ** (2 * _random(size))).astype(given)
        x[:4] = np.array([np.nan, np.inf, -0.0, 1e4], given)[:size]
        (got,) = _run("Elementwise", x, made=[made], program=[5, 0, -1, -1, 0], results=[0])
        np.testing.assert_array_equal(_fed(got), _fed(x.astype(made)))
        other = np.ones((2, 1), given)
        (got,) = _run(
            "Elementwise", x, other, ranks=[2], made=[made], program=[4, 0, -2, -2, 0], results=[0]
        )
        np.testing.assert_array_equal(_fed(got), np.ones((2, size), np.float32))


def test_numbers_are_rounded_to_the_nearest() -> None:
    """Ties to even, tiny ones, the largest, infinities and NaN: each bit pattern beside a tie."""
    upper = np.arange(2**16, dtype=np.uint32) << 16
    bits = np.concatenate([upper + n for n in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    x = bits.astype(np.uint32).view(np.float32)
    copy = {"program": [4, 0, -1, -1, 0], "results": [0]}
    rounding = {"program": [25, 0, -1, 0, 0], "results": [0]}
    expected = torch.from_numpy(x).bfloat16().float().numpy()
    np.testing.assert_array_equal(
        _fed(_run("Elementwise", x, made=[BFLOAT16], **copy)[0]), expected
    )
    np.testing.assert_array_equal(_run("Elementwise", x, **rounding)[0], expected)
    half = torch.from_numpy(x).half().float().numpy()
    rounding["program"][0] = 24
    np.testing.assert_array_equal(_run("Elementwise", x, **rounding)[0], half)
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float16)
    np.testing.assert_array_equal(_run("Elementwise", x, made=[np.float16], **copy)[0], narrow)


def test_inputs_and_results_have_a_type_each() -> None:
    """A mask is 1 and 0; what broadcasts is of any type too."""
    x, y, z = _random(5, 700), _random(700).astype(np.float16), _random(5, 1).astype(BFLOAT16)
    mask = x > 0
    program = [0, 0, -1, -2, 0, 2, 1, 0, -3, 0, 18, 2, -4, 1, 0]
    made = [np.float32, BFLOAT16, np.float16]
    results = {"program": program, "results": [1, 2, 0]}
    got = _run("Elementwise", x, y, z, mask, made=made, **results)
    total = x + y.astype(np.float32)
    product = total * z.astype(np.float32)
    expected = product, np.where(mask, product, total).astype(BFLOAT16), total.astype(np.float16)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(_fed(a), _fed(b))


ROWS: dict[str, tuple[list[tuple[int, ...]], list[tuple[int, ...]], dict[str, Any]]] = {
    "LayerNorm": ([(3, 2, 70)] + [(70,)] * 2, [(3, 2, 70)] + [(3, 2, 1)] * 2, {"epsilon": 1e-5}),
    "LayerNormGrad": (
        [(70, 33), (70, 33), (70, 1), (70, 1), (33,)],
        [(33,), (33,), (70, 33)],
        {},
    ),
    "Variance": ([(5, 70)], [(5, 1), (5, 1)], {"correction": 1.0}),
    "root Variance": ([(5, 70)], [(5, 1), (5, 1)], {"correction": 0.0, "root": 1}),
    "RmsNorm": ([(5, 70), (70,)], [(5, 70), (5, 1)], {"epsilon": 1e-5}),
    "RmsNormGrad": ([(5, 70), (5, 70), (5, 1), (70,)], [(5, 70)], {}),
    "Softmax": ([(5, 70)], [(5, 70)], {}),
    "log Softmax": ([(5, 70)], [(5, 70)], {"log": 1}),
    "SoftmaxGrad": ([(5, 70)] * 2, [(5, 70)], {}),
    "log SoftmaxGrad": ([(5, 70)] * 2, [(5, 70)], {"log": 1}),
    "BatchNorm": (
        [(3, 4, 70), (4,), (4,)],
        [(3, 4, 70), (4,), (4,), (4,)],
        {"epsilon": 1e-5},
    ),
    "small BatchNorm": (
        [(70, 300, 3), (300,), (300,)],
        [(70, 300, 3), (300,), (300,), (300,)],
        {"epsilon": 1e-5},
    ),
    "relu BatchNorm": (
        [(3, 4, 70), (4,), (4,), (3, 4, 70)],
        [(3, 4, 70), (4,), (4,), (4,)],
        {"epsilon": 1e-5, "relu": 1},
    ),
    "large BatchNorm": (
        [(3, 2, 6000), (2,), (2,)],
        [(3, 2, 6000), (2,), (2,), (2,)],
        {"epsilon": 1e-5},
    ),
    "BatchNormGrad": ([(3, 4, 70)] * 2 + [(4,)] * 3, [(4,), (4,), (3, 4, 70)], {}),
    "small BatchNormGrad": ([(70, 600)] * 2 + [(600,)] * 3, [(600,), (600,), (70, 600)], {}),
    "relu BatchNormGrad": (
        [(3, 4, 70)] * 2 + [(4,)] * 3 + [(3, 4, 70)],
        [(4,), (4,), (3, 4, 70)],
        {},
    ),
    "constant BatchNormGrad": (
        [(3, 4, 70)] * 2 + [(4,)] * 3,
        [(4,), (4,), (3, 4, 70)],
        {"training": 0},
    ),
    "BatchNormInference": ([(3, 4, 70)] + [(4,)] * 4, [(3, 4, 70)], {"epsilon": 9.0}),
    "relu BatchNormInference": (
        [(9, 400)] + [(400,)] * 4,
        [(9, 400)],
        {"epsilon": 9.0, "relu": 1},
    ),
    "GeluGrad": ([(5, 700)] * 2, [(5, 700)], {}),
    "tanh GeluGrad": ([(5, 700)] * 2, [(5, 700)], {"tanh": 1}),
    "Sum": ([(300, 70)], [(1, 70)], {"leading": 1}),
    "rows Sum": ([(3, 5000)], [(3, 1)], {"trailing": 1, "mean": 1}),
    "square Sum": ([(300, 70)], [(1, 70)], {"leading": 1, "square": 1}),
    "square rows Sum": ([(3, 5000)], [(3, 1)], {"trailing": 1, "square": 1}),
    "inner Sum": ([(3, 2, 7, 90)], [(3, 1, 1, 90)], {"before": 1, "leading": 2}),
    "Rotary": ([(2, 3, 8), (3, 8), (3, 8)], [(2, 3, 8)], {}),
    "gradient Rotary": ([(2, 3, 8), (3, 8), (3, 8)], [(2, 3, 8)], {"gradient": 1}),
}
MIXTURES = [
    (np.float16,),
    (BFLOAT16,),
    (BFLOAT16, np.float32),
    (np.float32, BFLOAT16, np.float16),
]


@pytest.mark.parametrize("types", MIXTURES, ids=lambda ts: " ".join(np.dtype(t).name for t in ts))
@pytest.mark.parametrize("name", ROWS)
def test_what_is_narrow_is_rounded_once(name: str, types: tuple[Any, ...]) -> None:
    """What is read is what float32 would hold, and what is written is what float32 rounds to."""
    shapes, results, attributes = ROWS[name]
    op_type, ranks = name.split()[-1], [len(s) for s in results]
    turn = itertools.cycle(types)
    arrays = [_random(*s).astype(next(turn)) for s in shapes]
    made = [next(turn) for _ in results]
    got = _run(op_type, *arrays, ranks=ranks, made=made, **attributes)
    wide = [np.float32] * len(made)
    expected = _run(op_type, *map(_widened, arrays), ranks=ranks, made=wide, **attributes)
    for a, b, dtype, shape in zip(got, expected, made, results, strict=True):
        assert a.shape == shape
        np.testing.assert_array_equal(_fed(a), _fed(b.astype(dtype)))


@pytest.mark.parametrize("square", [0, 1])
@pytest.mark.parametrize("mean", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((3, 2, 7, 90), (1, 2)), ((5, 300, 4), (1,)), ((2, 3, 0), (1,)), ((2, 0, 3), (1,))],
)
def test_sums_over_axes_in_between(
    shape: tuple[int, ...], axes: tuple[int, ...], mean: int, square: int
) -> None:
    x = _random(*shape)
    how = {"before": axes[0], "leading": len(axes), "mean": mean, "square": square, "keepdims": 0}
    (got,) = _run("Sum", x, ranks=[x.ndim - len(axes)], **how)
    wide = torch.from_numpy(x).double()
    wide = wide**2 if square else wide
    expected = wide.mean(axes) if mean else wide.sum(axes)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-5, atol=1e-5)


def _widened(array: Array) -> Array:
    return array.astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_a_cross_entropy_of_16_bits(dtype: Any) -> None:
    """As one of float32, rounded."""
    x, places = _random(4, 90).astype(dtype), np.array([3, 0, 89, -1])
    slopes = np.array([0.5, 0, 1, 2], np.float32)
    how = {"ranks": [2], "made": [dtype]}
    (got,) = _run("CrossEntropyGrad", x, places, slopes, **how)
    (wide,) = _run("CrossEntropyGrad", _widened(x), places, slopes, ranks=[2])
    np.testing.assert_array_equal(_fed(got), _fed(wide.astype(dtype)))


SPECIAL = [
    [0.0, 1, 2],
    [np.inf, 0, 1],
    [-np.inf, 0, 1],
    [np.nan, 0, 1],
    [-np.inf] * 3,
    [1e4, 0, 3],
]


@pytest.mark.parametrize("log", [0, 1])
@pytest.mark.parametrize("width", [3, 33, 5000])
def test_softmax(width: int, log: int) -> None:
    """Also of what is not finite; as close to float64 as torch's."""
    x = 3 * _random(len(SPECIAL), width)
    x[:, :3] = SPECIAL
    (got,) = _run("Softmax", x, log=log)
    tensor = torch.from_numpy(x)
    function = torch.log_softmax if log else torch.softmax
    exact = function(tensor.double(), -1).numpy()
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_allclose(got, exact, rtol=2e-6, atol=2e-6 if log else 1e-37)


def test_rms_norm() -> None:
    """The root is a result too, or not."""
    x, weight = 3 * _random(4, 5, 70), _random(70)
    y, root = _run("RmsNorm", x, weight, ranks=[3, 3], epsilon=1e-3)
    exact = 1 / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(root, exact, rtol=1e-6)
    np.testing.assert_allclose(y, x * exact * weight, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(_run("RmsNorm", x, weight, epsilon=1e-3)[0], y)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
@pytest.mark.parametrize("gradient", [0, 1])
def test_a_rotary_that_rounds(dtype: Any, gradient: int) -> None:
    """Bit for bit as tensors of the type, one operator after the other."""
    arrays = [_random(2, 3, 8), _random(3, 8), _random(1, 3, 8)]
    narrow = [torch.from_numpy(a).to(TORCH[dtype]) for a in arrays]
    x, cos, sin = narrow
    if gradient:
        u = x * sin
        expected = x * cos + torch.cat((u[..., 4:], -u[..., :4]), -1)
    else:
        expected = x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin
    code = int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    given = [a.astype(dtype) for a in arrays]
    (got,) = _run("Rotary", *given, gradient=gradient, rounding=code)
    np.testing.assert_array_equal(_fed(got).astype(np.float32), expected.float().numpy())


TORCH = {np.float16: torch.float16, BFLOAT16: torch.bfloat16}


def test_no_order_of_axes() -> None:
    """It is said when the session is made."""
    with pytest.raises(Exception, match="no order of axes"):
        _run("TransposeToFloat16", _random(3, 4), made=[np.float16], perm=[0, 0])


def test_results_may_be_written_over_inputs() -> None:
    """onnxruntime reuses the memory of what nobody reads any more."""
    x = _random(300, 20)
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["": 18, "{OWN_DOMAIN}": 1]>
        g (float[300,20] x) => (float[300,20] y, float[300,20] z)
            <float[300,20] p, float[300,20] q> {{
            a = Exp(x)
            b = Neg(x)
            p, q = {OWN_DOMAIN}.Elementwise<program=[2,0,-1,-2,0, 0,1,-1,-2,0],
                results=[0,1]>(a, b)
            m = Abs(p)
            y = Sqrt(m)
            z = Abs(q)
        }}"""
    )
    y, z = create_session(model).ort.run(None, {"x": x})
    np.testing.assert_allclose(y, np.sqrt(np.abs(np.exp(x) * -x)), rtol=1e-5)
    np.testing.assert_allclose(z, np.abs(np.exp(x) - x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("gradient", [0, 1])
def test_rotary(dtype: Any, gradient: int) -> None:
    """As models write it, and as autograd differentiates that."""
    x = torch.from_numpy(_fed(_random(2, 3, 5, 8, dtype=dtype))).double().requires_grad_()
    cos = torch.from_numpy(_fed(_random(1, 1, 5, 8, dtype=dtype))).double()
    sin = torch.from_numpy(_fed(_random(2, 1, 5, 8, dtype=dtype))).double()
    y = x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin
    (dx,) = torch.autograd.grad(y, x, x.detach())
    arrays = [t.detach().numpy().astype(dtype) for t in (x, cos, sin)]
    (got,) = map(_fed, _run("Rotary", *arrays, gradient=gradient))
    expected = (dx if gradient else y).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=10 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("add", [0, 1])
def test_scatter_zeros(dtype: Any, add: int) -> None:
    """Rows that are written once, twice, never; negative indices."""
    shape = np.array([6, 3], dtype=np.int64)
    indices = np.array([[0], [2], [-1], [2]] if add else [[0], [2], [-1]], dtype=np.int64)
    updates = _random(len(indices), 3, dtype=dtype)
    expected = np.zeros((6, 3), dtype=dtype)
    np.add.at(expected, indices[:, 0], updates)
    (got,) = _run("ScatterZeros", shape, indices, updates, ranks=[2], add=add)
    np.testing.assert_array_equal(_fed(got), _fed(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("shape", [(5, 700), (3, 4, 5, 5), (2, 3, 70), (2, 2, 20000)])
def test_a_relu_of_a_batch_norm_is_that_behind_it(shape: tuple[int, ...], dtype: Any) -> None:
    """Bit for bit, and so is its gradient."""
    x, g = _random(*shape, dtype=dtype), _random(*shape, dtype=dtype)
    x[0, 1] = np.nan
    weight, bias = _random(shape[1]), _random(shape[1])
    ranks, made = [len(shape), 1, 1, 1], [dtype, *[np.float32] * 3]
    how = {"epsilon": 1e-5}
    y, *statistics = _run("BatchNorm", x, weight, bias, ranks=ranks, made=made, **how)
    z, *others = _run("BatchNorm", x, weight, bias, ranks=ranks, made=made, relu=1, **how)
    np.testing.assert_array_equal(_fed(z), _fed(np.where(_widened(y) < 0, np.zeros_like(y), y)))
    for one, other in zip(statistics, others, strict=True):
        np.testing.assert_array_equal(one, other)
    read = [x, weight, *statistics[:2]]
    ranks, made = [1, 1, len(shape)], [np.float32, np.float32, dtype]
    masked = np.where(_widened(z) <= 0, np.zeros_like(g), g)
    wanted = _run("BatchNormGrad", masked, *read, ranks=ranks, made=made)
    for one, other in zip(
        _run("BatchNormGrad", g, *read, z, ranks=ranks, made=made), wanted, strict=True
    ):
        np.testing.assert_array_equal(_fed(one), _fed(other))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
def test_steps_behind_a_convolution_round_as_kernels_of_their_own(dtype: Any) -> None:
    """Only where that is asked for: what float32 was is rounded once."""
    x, w, b = _random(2, 3, 9, 21), _random(5, 3, 3, 3), _random(5)
    norm = [_random(5), _random(5) * 2, _random(5) / 2, _random(5) ** 2 + 1]
    other, windows = _random(2, 5, 9, 21) + 1, [3, 1, 1, 1, 0] * 2
    after = {"epsilon": 0.5, "relu": 1}

    def in_steps(made: Any) -> Array:
        given = [v.astype(made) for v in (x, w, b)]
        (y,) = _run("DirectConv", *given, ranks=[4], windows=windows)
        read = [y, *norm, other.astype(made)]
        return _run("BatchNormInference", *read, ranks=[4], made=[made], **after)[0]

    def at_once(given: Any, **how: int) -> Array:
        read = [v.astype(given) for v in (x, w, b)]
        last = other.astype(given)
        how = {"windows": windows, **after, **how}
        return _run("DirectConv", *read, *norm, last, ranks=[4], made=[dtype], **how)[0]

    assert (in_steps(dtype) > 0).any()
    np.testing.assert_array_equal(at_once(dtype, rounded=1), in_steps(dtype))
    np.testing.assert_array_equal(at_once(np.float32), in_steps(np.float32).astype(dtype))


WRONG: list[tuple[str, list[Array], dict[str, Any], str]] = [
    ("Elementwise", [_random(2), _random(3)], {"program": [0, 0, -1, -2, 0]}, "broadcast"),
    ("Elementwise", [_random(2)], {"program": [0, 0, -1, -2, 0]}, "other inputs"),
    ("Elementwise", [_random(2)], {"program": [99, 0, -1, -1, 0]}, "does not know"),
    ("Elementwise", [_random(2)], {"program": [0, 0, -1]}, "five numbers"),
    ("Rotary", [_random(2, 3)] * 3, {}, "do not fit"),
    ("GeluGrad", [_random(2), _random(3)], {}, "another shape"),
    ("SoftmaxGrad", [_random(2, 2), _random(2, 3)], {}, "another shape"),
    ("RmsNormGrad", [_random(2, 2), _random(2, 3), _random(2), _random(3)], {}, "another shape"),
    ("RmsNormGrad", [_random(2, 3), _random(2, 3), _random(3), _random(3)], {}, "other rows"),
    ("Sum", [_random(2, 2)], {"leading": 2, "trailing": 1}, "more axes"),
    ("Sum", [_random(2, 2)], {"before": 2, "leading": 1}, "more axes"),
    ("Sum", [_random(2, 2, 2)], {"before": 1, "leading": 1, "trailing": 1}, "more axes"),
    ("Columns", [_random(2, 2, 2, 2)], {"windows": [3, 1, 0, 1, 0] * 2}, "larger than"),
    ("Columns", [_random(2, 2, 2, 2)], {"windows": [1, 0, 0, 1, 0] * 2}, "five numbers"),
    ("Rotary", [_random(2, 4), _random(2, 1), _random(2, 4)], {}, "last dimension"),
    ("Elementwise", [_random(2)], {"program": [0, 0, 999, -1, 0]}, "before it writes"),
    ("Elementwise", [_random(2)], {"program": [0, 0, 0, -1, 0]}, "before it writes"),
    ("Elementwise", [_random(2)], {"program": [0, 1, -1, -1, 0, 0, 0, 0, -1, 0]}, "before it"),
    ("Elementwise", [_random(2)], {"program": [18, 0, -1, -1, 1]}, "before it writes"),
    ("Elementwise", [_random(2)], {"program": [0, 2**62, -1, -1, 0]}, "does not know"),
    ("Elementwise", [_random(2)], {"program": [0, 2**63 - 1, -1, -1, 0]}, "does not know"),
    ("Elementwise", [_random(2)], {"program": [0, 256, -1, -1, 0]}, "does not know"),
    ("Elementwise", [_random(2)], {"program": [6, 0, -(2**63), 0, 0]}, "other inputs"),
    ("Elementwise", [_random(2)], {"program": [6, 0, -1, 0, 0] * 600}, "too long"),
    ("Elementwise", [_random(2)], {"program": [6, 1, -1, 0, 0]}, "a result is no register"),
    ("Elementwise", [_random(2)] * 21, {"program": [6, 0, -1, 0, 0]}, "too many inputs"),
    ("Rotary", [_random(2, 2)] * 3, {"gradient": 2}, "gradient is out of its range"),
    ("Rotary", [_random(2, 2)] * 2, {}, "too few or too many inputs"),
    ("Rotary", [_random(2, 2)] * 3, {"rounding": 7}, "rounds to float16 or bfloat16"),
    ("Rotary", [_random(2, 2)] * 2 + [_random(2, 2).astype("f8")], {}, "of other types"),
    (
        "Elementwise",
        [_random(2, dtype=np.float64)],
        {"program": [24, 0, -1, 0, 0]},
        "does not know",
    ),
    ("Sum", [_random(2, 2)], {"leading": 2**63 - 1, "trailing": 1}, "leading is out"),
    ("Sum", [_random(2, 2)], {"trailing": -1}, "trailing is out"),
    ("Columns", [_random(2, 2, 2, 2)], {"windows": [1, 1, 2**62, 1, 0] * 2}, "five numbers"),
    ("Columns", [_random(2, 2, 2, 2)], {"windows": [2**40, 1, 2**40, 1, 0] * 2}, "five numbers"),
    *(
        ("DepthwiseConv", inputs, {"windows": windows}, reason)
        for inputs, windows, reason in (
            (
                [_random(1, 2, 4, 4), _random(2, 1, 3, 2), _random(2)],
                [3, 1, 0, 1, 0] * 2,
                "filters",
            ),
            (
                [_random(1, 2, 4, 4), _random(2, 1, 3, 3), _random(3)],
                [3, 1, 0, 1, 0] * 2,
                "filters",
            ),
            ([_random(2, 4), _random(2, 1, 3), _random(2)], [1, 1, 0, 1, 0] * 2, "four axes"),
            ([_random(1, 2, 4, 4), _random(2, 1, 1, 1), _random(2)], [1, 1, 0, 1, 1] * 2, "whole"),
            (
                [_random(1, 2, 4, 4), _random(2, 1, 5, 5), _random(2)],
                [5, 1, 0, 1, 0] * 2,
                "larger",
            ),
            (
                [_random(1, 2, 4, 4), _random(2, 1, 1, 1), _random(2)],
                [1, 2**24, 2**23, 1, 0, 1, 2**24, 2**23, 1, 0],
                "too large",
            ),
        )
    ),
    *(
        ("DirectConv", [_random(*x), _random(*w), _random(b)], {"windows": windows, **how}, reason)
        for x, w, b, windows, how, reason in (
            ((1, 2, 4, 4), (3, 2, 3, 2), 3, [3, 1, 0, 1, 0] * 2, {}, "filters"),
            ((1, 2, 4, 4), (3, 1, 3, 3), 3, [3, 1, 0, 1, 0] * 2, {}, "filters"),
            ((1, 2, 4, 4), (3, 2, 3, 3), 2, [3, 1, 0, 1, 0] * 2, {}, "biases"),
            ((1, 2, 4, 4), (3, 2, 3, 3), 3, [3, 1, 0, 1, 1] * 2, {}, "whole"),
            ((1, 2, 4, 4), (3, 2, 3, 3), 3, [3, 2, 0, 1, 0] * 2, {"gradient": 1}, "one place"),
            ((1, 2, 4, 4), (3, 2, 3, 3), 3, [3, 1, 0, 1, 0] * 2, {"channels_last": 1}, "filters"),
            ((1, 2, 4, 4), (3, 2, 5, 5), 3, [5, 1, 0, 1, 0] * 2, {}, "larger"),
            ((1, 2, 4, 4), (3, 2, 1, 1), 3, [1, 65, 0, 1, 0] * 2, {}, "far apart"),
            ((1, 2, 4), (3, 2, 3, 3), 3, [3, 1, 0, 1, 0] * 2, {}, "one or two axes"),
            ((1, 2, 4), (3, 2, 3), 3, [3, 1, 1, 1, 0] * 2, {}, "filters"),
            ((1, 0, 4, 4), (3, 0, 3, 3), 3, [3, 1, 0, 1, 0] * 2, {}, "no channels"),
            ((1, 2, 4, 4), (3, 2, 1, 1), 3, [1, 64, 2**20, 1, 0] * 2, {}, "too large"),
        )
    ),
    *(
        (
            "DirectConv",
            [_random(1, 2, 4, 4), _random(3, 2, 3, 3), *map(_random, more)],
            {"windows": [3, 1, 1, 1, 0] * 2, "epsilon": 0.5},
            reason,
        )
        for more, reason in (
            ((3, 3), "another shape"),
            ((3, 3, 3), "scale, bias, mean and variance"),
            ((3, 3, 3, 2, 3), "statistics"),
            ((3, 3, 3, 3, 3, 3, 3), "too many"),
        )
    ),
    *(
        (name, [_random(*s) for s in ((2, 3), *more)], how, "another shape")
        for name, how, more in (
            ("BatchNorm", {"epsilon": 9.0, "ranks": [2, 1, 1, 1]}, ((3,), (3,), (1, 3))),
            ("BatchNormGrad", {"ranks": [1, 1, 2]}, ((2, 3), (3,), (3,), (3,), (2,))),
            ("BatchNormGrad", {"ranks": [1, 1, 2]}, ((3, 2), (3,), (3,), (3,), (2, 3))),
        )
    ),
    *(
        ("BatchNormInference", [_random(*s) for s in given], {"epsilon": 9.0}, reason)
        for given, reason in (
            ([(2, 3), (3,), (3,), (3,), (2,)], "other channels"),
            ([(2, 3), (3,), (3,), (3,), (3,), (1, 3)], "another shape"),
            ([(3,)] * 5, "two axes"),
            ([(2, 3), (3,), (3,)], "too few"),
        )
    ),
    ("ScatterZeros", [np.array([-2, -3]), np.zeros((1, 1), "i8"), _random(1)], {}, "negative"),
    ("ScatterZeros", [np.array([2**62, 4]), np.zeros((1, 1), "i8"), _random(1)], {}, "too large"),
    ("Elementwise", [_random(*[1] * 13)], {"program": [6, 0, -1, 0, 0]}, "dimensions"),
]
"""An operator, its inputs, its attributes, and what is said."""


@pytest.mark.parametrize(("op_type", "arrays", "attributes", "message"), WRONG)
def test_what_cannot_be_computed_is_an_error(
    op_type: str, arrays: list[Array], attributes: Mapping[str, Any], message: str
) -> None:
    """When the session is built, or when it runs; never a crash."""
    results = {"results": [0]} if op_type == "Elementwise" else {}
    with pytest.raises(Exception, match=message):  # onnxruntime's types have no common base
        _run(op_type, *arrays, **attributes, **results)


def _session(graph: str) -> onnxruntime.InferenceSession:
    header = f'<ir_version: 8, opset_import: ["": 18, "{OWN_DOMAIN}": 1]>'
    return create_session(ir.from_onnx_text(f"{header} {graph}")).ort


@pytest.mark.parametrize(
    "graph",
    [
        # results without a name, of an operator that writes them all
        "g (float[2,3] x, float[3] w) => (float[2,3] y) "
        '{ y, "" = D.LayerNorm<axes=1, epsilon=1.0>(x, w, w) }',
        "g (float[2,3] x) => (float[2,3] y) { a = D.BatchNorm<epsilon=1.0>(x, x, x) y = Neg(a) }",
        # types that are not those of the kernel
        "g (float[2] x, double[2] y) => (float[2] z) "
        "{ z = D.Elementwise<program=[0,0,-1,-2,0], results=[0]>(x, y) }",
        "g (float[2] x) => (double[2] z) "
        "{ z = D.Elementwise<program=[6,0,-1,0,0], results=[0]>(x) }",
        "g (float[2,2] x) => (float[2,2] z, float[2,2] w) { z, w = D.Rotary(x, x, x) }",
        "g (float[2,2] x) => (float[2,2] z, float[2,2] w) "
        "{ z, w = D.Elementwise<program=[6,0,-1,0,0], results=[0]>(x) }",
    ],
)
def test_a_node_of_another_signature_is_an_error(graph: str) -> None:
    """When the session is made, by onnxruntime or by the kernel."""
    with pytest.raises(ExecutionError, match="cannot build a session"):
        _session(graph.replace("D.", f"{OWN_DOMAIN}."))


def test_a_result_larger_than_its_declared_size_is_an_error() -> None:
    """onnxruntime plans memory by what a model declares; a kernel must not write behind it."""
    session = _session(
        "g (float[4] x, float[N] w) => (float[4] z) <float[4] a, float[4] y> "
        f"{{ a = Abs(x) y = {OWN_DOMAIN}.Elementwise<program=[0,0,-1,-2,0], results=[0]>(a, w) "
        "z = Neg(y) }"
    )
    w = _random(4)
    np.testing.assert_array_equal(session.run(None, {"x": w, "w": w})[0], -(np.abs(w) + w))
    with pytest.raises(Exception, match=r"re-use buffer|broadcast"):
        session.run(None, {"x": w, "w": _random(4096)})


def test_axes_that_are_known_at_the_call_only() -> None:
    """They are counted then."""
    session = _session(
        "g (float[N] x, int64[M] shape) => (float[P] z) { y = Reshape(x, shape) "
        f"z = {OWN_DOMAIN}.Elementwise<program=[6,0,-1,0,0], results=[0]>(y) }}"
    )
    x = _random(3)
    with pytest.raises(Exception, match="too many inputs, results or dimensions"):
        session.run(None, {"x": x, "shape": np.array([3] + [1] * 12)})


def test_an_index_outside_is_an_error() -> None:
    """As for ScatterND."""
    arrays = np.array([2, 3]), np.array([[2]]), _random(1, 3)
    with pytest.raises(Exception, match="outside"):  # onnxruntime's types have no common base
        _run("ScatterZeros", *arrays, ranks=[2], add=1)


def test_types_with_a_kernel() -> None:
    """What rules ask before they emit one."""
    program = {"program": [0, 0, -1, -2, 0], "results": [0]}
    for dtype, expected in ((1, True), (11, True), (10, True), (7, False), (16, True), (9, False)):
        types, made = [dtype] * 2, [ir.DataType(dtype)]
        found = has_kernel("Elementwise", OWN_DOMAIN, 1, types, attributes=program, outputs=made)
        assert found is expected
    assert not has_kernel("Unknown", OWN_DOMAIN, 1, [1])
    rotary = {"outputs": [ir.DataType.FLOAT], "provider": "CUDAExecutionProvider"}
    assert not has_kernel("Rotary", OWN_DOMAIN, 1, [1] * 3, **rotary)


def test_options_serve_several_sessions() -> None:
    """The library is registered with them once."""
    options = session_options()
    arrays = [_random(3), _random(3)]
    model = _model("Elementwise", arrays, [1], program=[0, 0, -1, -2, 0], results=[0])
    for _ in range(2):
        session = create_session(model, options=options)
        (got,) = session.ort.run(None, {"x0": arrays[0], "x1": arrays[1]})
        np.testing.assert_array_equal(got, arrays[0] + arrays[1])


def test_who_uses_the_kernels() -> None:
    """A model in any form; the library is loaded for no other."""
    proto = _model("Rotary", [_random(2)] * 3, [1])
    plain = helper.make_model(helper.make_graph([], "empty", [], []))
    for convert in (lambda m: m, ir.from_proto, lambda m: m.SerializeToString()):
        assert uses_custom_kernels(convert(proto))
        assert not uses_custom_kernels(convert(plain))


def test_users_can_register_the_library() -> None:
    """By its path."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(custom_ops_library())
    model = _model("Elementwise", [_random(3)], [1], program=[6, 0, -1, 0, 0], results=[0])
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    np.testing.assert_array_equal(session.run(None, {"x0": _random(3)})[0], -_random(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("size", [1, 511, 512, 5000])
@pytest.mark.parametrize("later", [-1, -2])
def test_a_result_takes_the_place_of_an_input_that_is_read_later(
    later: int, size: int, dtype: Any
) -> None:
    """One of two results is computed first, the other one from it and an input."""
    program = [0, 0, -1, -2, 0, 2, 1, 0, later, 0, 1, 2, 1, -1, 0]
    arrays = [_random(size, dtype=dtype), _random(size, dtype=dtype)]
    model = _model("Elementwise", arrays, [1, 1, 1], program=program, results=[0, 1, 2])
    # Between other nodes: memory of what the program reads may become that of a result.
    (node,) = model.graph.node
    before = [helper.make_node("Neg", [f"x{i}"], [f"read{i}"]) for i in range(2)]
    after = [helper.make_node("Neg", [f"written{i}"], [f"y{i}"]) for i in range(3)]
    node.input[:] = [n.output[0] for n in before]
    node.output[:] = [n.input[0] for n in after]
    elements = model.graph.output[0].type.tensor_type.elem_type
    between = [*node.input, *node.output]  # of known size: their memory is not shared otherwise
    told = [helper.make_tensor_value_info(n, elements, [size]) for n in between]
    model.graph.value_info.extend(told)
    for x in model.graph.input:
        x.type.tensor_type.shape.dim[0].dim_value = size
    nodes = [*before, copy.deepcopy(node), *after]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    session = create_session(model).ort
    got = session.run(None, dict(zip(("x0", "x1"), arrays, strict=True)))
    a, b = (-x.astype(np.float64) for x in arrays)
    total = a + b
    product = total * (a, b)[-1 - later]
    tolerance = {np.float16: 1e-2}.get(dtype, TOLERANCE[dtype])  # one rounding for each result
    for one, expected in zip(got, (-total, -product, a - product), strict=True):
        np.testing.assert_allclose(one, expected, rtol=tolerance, atol=4 * tolerance)
