"""Nodes of one program become one, where nothing waits for what it does not need."""

from __future__ import annotations

from dort_rewriter.optimize.patterns.kernels.elementwise import ElementwiseLists
from tests.optimize.rewrites import assert_refuses, assert_rewrites

SUM = "dort_rewriter.Elementwise <program = [0, 0, -1, -2, 0], results = [0]>"
PRODUCT = "dort_rewriter.Elementwise <program = [2, 0, -1, -2, 0], results = [0]>"


def _list(shared: int, program: str = "0, 0, -1, -2, 0") -> str:
    attributes = f"program = [{program}], results = [0], count = 2, shared = {shared}"
    return f"dort_rewriter.ElementwiseList <{attributes}>"


HEAD = "(float[2,N] p, float[3] r, float g, float h) => (float[2,N] q, float[3] s)"


def test_results_of_one_program() -> None:
    assert_rewrites(
        ElementwiseLists,
        f"{HEAD} {{ q = {SUM} (p, g)\n s = {SUM} (r, h) }}",
        f"{HEAD} {{ q, s = {_list(0)} (p, g, r, h) }}",
        reference=False,
    )


def test_what_all_programs_read_is_given_once() -> None:
    """It comes last, whatever its place."""
    assert_rewrites(
        ElementwiseLists,
        f"{HEAD} {{ q = {SUM} (p, g)\n s = {SUM} (r, g) }}",
        f"{HEAD} {{ q, s = {_list(1)} (p, r, g) }}",
        reference=False,
    )
    difference = SUM.replace("[0, 0, -1, -2, 0]", "[1, 0, -1, -2, 0]")
    assert_rewrites(
        ElementwiseLists,
        f"{HEAD} {{ q = {difference} (g, p)\n s = {difference} (g, r) }}",
        f"{HEAD} {{ q, s = {_list(1, '1, 0, -2, -1, 0')} (p, r, g) }}",
        reference=False,
    )


def test_operators_on_arguments_and_constants() -> None:
    """The counters of the steps of an optimizer."""
    head = "(float p, float r, float g) => (float q, float s) <float one = {1}>"
    assert_rewrites(
        ElementwiseLists,
        f"{head} {{ q = Add(p, one)\n s = Add(r, one) }}",
        f"{head} {{ q, s = {_list(1)} (p, r, one) }}",
        reference=False,
    )


def test_an_operator_that_stands_alone_stays() -> None:
    head = "(float[3] p, float[3] r, float g) => (float[3] q, float[3] s)"
    assert_refuses(ElementwiseLists, f"{head} {{ q = Add(p, g)\n s = Mul(r, g) }}")
    text = f"""{head} {{ a = MatMul(p, r)
        q = Add(p, a)
        s = Add(r, a) }}"""
    assert_refuses(ElementwiseLists, text)


def test_integers_stay() -> None:
    head = "(int64 p, int64 r) => (int64 q, int64 s) <int64 one = {1}>"
    assert_refuses(ElementwiseLists, f"{head} {{ q = Add(p, one)\n s = Add(r, one) }}")


def test_one_after_the_other_stay_two() -> None:
    head = "(float[3] p, float[3] g) => (float[3] q, float[3] s)"
    text = f"{head} {{ q = {SUM} (p, g)\n s = {SUM} (q, g) }}"
    assert_refuses(ElementwiseLists, text)


def test_other_programs_stay_two() -> None:
    text = f"{HEAD} {{ q = {SUM} (p, g)\n s = {PRODUCT} (r, h) }}"
    assert_refuses(ElementwiseLists, text)


def test_other_types_stay_two() -> None:
    """Of what is read, and of what is made."""
    head = "(float[3] p, float16[3] r, float g) => (float[3] q, float16[3] s)"
    assert_refuses(ElementwiseLists, f"{head} {{ q = {SUM} (p, g)\n s = {SUM} (p, g) }}")
    assert_refuses(ElementwiseLists, f"{head} {{ q = {SUM} (p, g)\n s = {SUM} (r, g) }}")


def test_what_others_wait_for_stays_alone() -> None:
    text = f"""{HEAD} {{ a = {SUM} (p, g)
        b = {SUM} (r, h)
        q = Neg(a)
        s = Neg(b) }}"""
    assert_refuses(ElementwiseLists, text)


COPY = "dort_rewriter.Elementwise <program = [4, 0, -1, -1, 0], results = [0]>"


def test_biases_in_another_type() -> None:
    """What is read of the model's inputs, and small; weights wait for their products."""
    head = """(float[3] p, float[5] r, float[64,65] w)
        => (float16[3] q, float16[5] s, float16[64,65] t)
        <float16[3] a, float16[5] b, float16[64,65] c>"""
    few = _list(0, "4, 0, -1, -1, 0")
    rest = "q = Neg(a)\n s = Neg(b)\n t = Neg(c)"
    assert_rewrites(
        ElementwiseLists,
        f"{head} {{ a = {COPY} (p)\n b = {COPY} (r)\n c = {COPY} (w)\n {rest} }}",
        f"{head} {{ a, b = {few} (p, r)\n c = {COPY} (w)\n {rest} }}",
        reference=False,
    )
