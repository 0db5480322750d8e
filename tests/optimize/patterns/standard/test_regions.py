"""Groups of elementwise operators between Reshapes."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.passes import ReshapeElementwise
from tests.optimize.rewrites import apply, assert_refuses, assert_rewrites, model_of

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
