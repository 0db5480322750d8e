"""Rewrites of the whole graph."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from dort_rewriter.optimize.patterns.standard.passes import (
    CommonSubexpressions,
    LeavesLast,
    ReshapeElementwise,
    SlicesSplit,
)
from tests.optimize.rewrites import apply, assert_refuses, assert_rewrites, model_of


def test_equal_nodes_become_one() -> None:
    """Also those that are equal only once their inputs are."""
    assert_rewrites(
        CommonSubexpressions,
        """(float[N] x) => (float[N] y) {
            a = Neg(x)
            b = Neg(x)
            c = Exp(a)
            d = Exp(b)
            y = Add(c, d)
        }""",
        """(float[N] x) => (float[N] y) {
            a = Neg(x)
            c = Exp(a)
            y = Add(c, c)
        }""",
        count=2,
    )


def test_attributes_make_a_difference() -> None:
    """The axes are not the same."""
    assert_refuses(
        CommonSubexpressions,
        """(float[2,2] x) => (float[2,2] y) {
            a = Softmax<axis=0>(x)
            b = Softmax<axis=1>(x)
            y = Add(a, b)
        }""",
    )


def test_random_nodes_are_never_merged() -> None:
    """Two draws are two draws."""
    assert_refuses(
        CommonSubexpressions,
        """(float[2,2] x) => (float[2,2] y) {
            a = RandomNormalLike(x)
            b = RandomNormalLike(x)
            y = Add(a, b)
        }""",
    )


def test_two_outputs_keep_their_names() -> None:
    """Each result of a model is a value of its own."""
    assert_refuses(
        CommonSubexpressions,
        "(float[N] x) => (float[N] y, float[N] z) {y = Neg(x) z = Neg(x)}",
    )


HALVES = """(float[N,8] x) => (float[N,8] y)
<int64[1] zero = {0}, int64[1] start = {4}, int64[1] first = {4}, int64[1] end = {8},
 int64[1] axis = {1}> {
    b = Slice(x, start, end, axis)
    n = Neg(b)
    a = Slice(x, zero, first, axis)
    y = Concat<axis=1>(n, a)
}"""


def test_two_halves_are_split() -> None:
    """As a rotary embedding has them, in whatever order."""
    assert_rewrites(
        SlicesSplit,
        HALVES,
        """(float[N,8] x) => (float[N,8] y) <int64[2] sizes = {4, 4}> {
            a, b = Split<axis=1>(x, sizes)
            n = Neg(b)
            y = Concat<axis=1>(n, a)
        }""",
    )


@pytest.mark.parametrize(
    ("start", "first"), [(3, 4), (5, 4), (4, 5)], ids=["overlap", "gap", "overlap at the other"]
)
def test_parts_that_are_no_partition(start: int, first: int) -> None:
    """An element would be in two parts, or in none."""
    before = HALVES.replace("start = {4}", f"start = {{{start}}}")
    before = before.replace("first = {4}", f"first = {{{first}}}")
    assert_refuses(SlicesSplit, before.replace("(float[N,8] y)", "(float[N,K] y)"))


def test_a_part_that_is_returned() -> None:
    """An output keeps its node."""
    assert_refuses(
        SlicesSplit,
        """(float[N,8] x) => (float[N,4] y, float[N,4] b)
        <int64[1] zero = {0}, int64[1] four = {4}, int64[1] end = {8}, int64[1] axis = {1}> {
            a = Slice(x, zero, four, axis)
            b = Slice(x, four, end, axis)
            y = Neg(a)
        }""",
    )


def test_a_part_is_split_again() -> None:
    """The second Split reads what the first one gives."""
    assert_rewrites(
        SlicesSplit,
        """(float[2,8] x) => (float[1,8] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3},
         int64[1] eight = {8}> {
            a = Slice(x, zero, one, zero)
            b = Slice(x, one, two, zero)
            c = Slice(a, zero, three, one)
            d = Slice(a, three, eight, one)
            e = Concat<axis=1>(d, c)
            y = Add(e, b)
        }""",
        """(float[2,8] x) => (float[1,8] y)
        <int64[2] ones = {1, 1}, int64[2] parts = {3, 5}> {
            a, b = Split<axis=0>(x, ones)
            c, d = Split<axis=1>(a, parts)
            e = Concat<axis=1>(d, c)
            y = Add(e, b)
        }""",
        count=2,
    )


SHAPES = "<int64[3] three = {2, 3, 4}, int64[2] two = {6, 4}, float k = {2.0}>"


def test_what_is_read_twice_moves_as_a_whole() -> None:
    """A product of a SiLU, numbers and a vector over the last axis included."""
    assert_rewrites(
        ReshapeElementwise,
        f"""(float[6,4] a, float[6,4] b, float[4] w) => (float[6,4] y) {SHAPES} {{
            x = Reshape(a, three) s = Sigmoid(x) t = Mul(x, s) u = Mul(t, k) v = Mul(w, u)
            z = Reshape(b, three) p = Mul(v, z) q = Reshape(p, two) y = Neg(q) }}""",
        """(float[6,4] a, float[6,4] b, float[4] w) => (float[6,4] y) <float k = {2.0}> {
            s = Sigmoid(a) t = Mul(a, s) u = Mul(t, k) v = Mul(w, u) p = Mul(v, b) y = Neg(p) }""",
    )


def test_others_read_a_result_in_its_shape() -> None:
    """Three Reshapes become one; an output of the model keeps its name and shape."""
    assert_rewrites(
        ReshapeElementwise,
        f"""(float[6,4] a, float[6,4] b) => (float[2,3,4] y, float[6,4] z) {SHAPES} {{
            c = Reshape(a, three) d = Reshape(b, three) y = Add(c, d) r = Reshape(y, two)
            z = Exp(r) }}""",
        f"""(float[6,4] a, float[6,4] b) => (float[2,3,4] y, float[6,4] z) {SHAPES} {{
            s = Add(a, b) y = Reshape(s, three) z = Exp(s) }}""",
    )


def test_an_output_of_the_model_is_read_inside_a_region() -> None:
    """What reads it there reads it in the outer shape, as it does everything else."""
    assert_rewrites(
        ReshapeElementwise,
        f"""(float[6,4] a, float[6,4] b) => (float[2,3,4] y, float[6,4] z) {SHAPES} {{
            c = Reshape(a, three) d = Reshape(b, three) y = Add(c, d) e = Neg(y) f = Mul(e, y)
            g = Reshape(f, two) z = Exp(g) }}""",
        f"""(float[6,4] a, float[6,4] b) => (float[2,3,4] y, float[6,4] z) {SHAPES} {{
            s = Add(a, b) y = Reshape(s, three) e = Neg(s) f = Mul(e, s) z = Exp(f) }}""",
    )


def test_an_input_without_a_reshape_gets_one() -> None:
    """Where that is still a Reshape less."""
    assert_rewrites(
        ReshapeElementwise,
        f"""(float[6,4] a, float[2,3,4] b) => (float[6,4] y) {SHAPES} {{
            c = Reshape(a, three) d = Add(b, c) r = Reshape(d, two) y = Exp(r) }}""",
        f"""(float[6,4] a, float[2,3,4] b) => (float[6,4] y) {SHAPES} {{
            r = Reshape(b, two) d = Add(r, a) y = Exp(d) }}""",
    )


def test_sizes_are_symbols() -> None:
    assert_rewrites(
        ReshapeElementwise,
        """(float[N,12] a, float[N,12] b) => (float[N,12] y)
        <int64[3] three = {0, 3, 4}, int64[2] two = {0, 12}> {
            c = Reshape(a, three) d = Reshape(b, three) s = Sub(c, d) r = Reshape(s, two)
            y = Exp(r) }""",
        "(float[N,12] a, float[N,12] b) => (float[N,12] y) { s = Sub(a, b) y = Exp(s) }",
    )


def test_vectors_alone_do_not_make_the_outer_shape() -> None:
    """What they compute has the shape of one row: some Reshape before it or behind it stays."""
    assert_refuses(
        ReshapeElementwise,
        """(float[4] a, float[4] b) => (float[1,4] y) <int64[1] zero = {0}> {
            p = Mul(a, b) y = Unsqueeze(p, zero) }""",
    )


def test_a_vector_that_gets_its_own_reshape() -> None:
    """Two Reshapes become one: that of ``w``, which nothing larger is read beside."""
    assert_rewrites(
        ReshapeElementwise,
        """(float[1,4] a, float[4] w, float[4] v) => (float[1,4] y, float[1,4] z)
        <int64[1] four = {4}, int64[2] row = {1, 4}> {
            b = Reshape(a, four) p = Mul(w, v) q = Add(p, b) r = Reshape(q, row) y = Exp(r)
            s = Reshape(p, row) z = Exp(s) }""",
        """(float[1,4] a, float[4] w, float[4] v) => (float[1,4] y, float[1,4] z)
        <int64[2] row = {1, 4}> {
            r = Reshape(w, row) p = Mul(r, v) q = Add(p, a) y = Exp(q) z = Exp(p) }""",
    )


@pytest.mark.parametrize(
    "body",
    [
        # one Reshape would come for another
        "(float[6,4] a, float[2,3,4] b) => (float[2,3,4] y) "
        f"{SHAPES} {{ c = Reshape(a, three) y = Add(b, c) }}",
        # an operand broadcasts over an axis that is no axis of the other shape
        "(float[6,4] a, float[2,1,4] b) => (float[6,4] y) "
        f"{SHAPES} {{ c = Reshape(a, three) d = Add(b, c) r = Reshape(d, two) y = Exp(r) }}",
        # a vector over the last axis, which is another in the other shape
        "(float[6,4] a, float[3] b) => (float[6,4] y) <int64[2] t = {8, 3}, int64[2] two = {6, 4}>"
        " { c = Reshape(a, t) d = Add(b, c) r = Reshape(d, two) y = Exp(r) }",
        # the Reshape back gives another shape
        "(float[6,4] a) => (float[8,3] y) <int64[3] three = {2, 3, 4}, int64[2] t = {8, 3}>"
        " { c = Reshape(a, three) d = Exp(c) r = Reshape(d, t) y = Softmax(r) }",
        # sums are no elementwise operators
        "(float[6,4] a) => (float[6,4] y) "
        f"{SHAPES} {{ c = Reshape(a, three) d = Softmax(c) r = Reshape(d, two) y = Exp(r) }}",
    ],
)
def test_what_stays(body: str) -> None:
    assert_refuses(ReshapeElementwise, body)


def test_a_large_group_is_looked_at_once() -> None:
    """Many Reshapes of one group: the work is not done for each."""
    count = 60
    inputs = ", ".join(f"float[6,4] a{i}" for i in range(count))
    nodes = " ".join(f"c{i} = Reshape(a{i}, three)" for i in range(count))
    sums = " ".join(f"s{i} = Add(s{i - 1}, c{i})" for i in range(2, count))
    model = model_of(
        f"""({inputs}) => (float[2,3,4] y) {SHAPES} {{
            {nodes} s1 = Add(c0, c1) {sums} y = Neg(s{count - 1}) }}"""
    )
    report = apply(ReshapeElementwise, model)
    assert report.rules["ReshapeElementwise"].matches == 1
    assert [n.op_type for n in model.graph].count("Reshape") == 1


BACKWARD = """(float[4,4] g, float[4,4] w, float[4,4] x)
=> (float[4,4] a, float[4,4] b, float[4,4] c) {
    s = Neg(g)
    a = MatMul(x, s)
    t = MatMul(s, w)
    b = MatMul(x, t)
    u = MatMul(t, w)
    c = MatMul(x, u)
}"""


def test_leaves_stand_last_in_reverse() -> None:
    """The first that can run is written last."""
    model = model_of(BACKWARD)
    apply(LeavesLast, model)
    assert [n.outputs[0].name for n in model.graph] == ["s", "t", "u", "c", "b", "a"]
    assert apply(LeavesLast, model).rules["LeavesLast"].matches == 0


def test_onnxruntime_then_runs_them_early(tmp_path: Path) -> None:
    """Each as soon as what it reads is there; as written by the exporter, all at the end."""
    model = model_of(BACKWARD)
    before = _order_of_execution(model, tmp_path / "before")
    apply(LeavesLast, model)
    after = _order_of_execution(model, tmp_path / "after")
    assert before.index("a") > before.index("u")
    assert after.index("a") < after.index("t") < after.index("b") < after.index("u")


def _order_of_execution(model: ir.Model, prefix: Path) -> list[str]:
    for node in model.graph:
        node.name = node.outputs[0].name
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(prefix)
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, {name: np.ones((4, 4), np.float32) for name in "gwx"})
    events = json.loads(Path(session.end_profiling()).read_text())
    return [e["name"][0] for e in events if e["name"].endswith("_kernel_time")]


def test_one_leaf_is_where_it_should_be() -> None:
    """There is nothing to order."""
    assert_refuses(LeavesLast, "(float[2] x) => (float[2] y) {a = Neg(x) y = Exp(a)}")
