"""What may be written where an argument is: each graph but the first is wrong in one way."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.in_place import written_in_place
from tests.optimize.rewrites import model_of

PROGRAM = "program = [0, 0, -1, -2, 0], results = [0]"
SUM = f"dort_rewriter.Elementwise <{PROGRAM}>"


def _written(text: str, **wanted: str) -> dict[str, str]:
    return written_in_place(model_of(text).graph, wanted)


def test_a_program_writes_what_it_reads() -> None:
    text = f"(float[2,N] p, float[2,N] g) => (float[2,N] q) {{ q = {SUM} (p, g) }}"
    assert _written(text, q="p") == {"q": "p"}


def test_a_reader_before_the_program_does_no_harm() -> None:
    text = f"""(float[2,3] p, float[2,3] g) => (float[2,3] q) {{
        n = ReduceSum <keepdims = 0> (p)
        h = Mul(g, n)
        q = {SUM} (p, h) }}"""
    assert _written(text, q="p") == {"q": "p"}


@pytest.mark.parametrize(
    "nodes",
    [
        "q = Add(p, g)\n z = Mul(g, g)",
        f"q = {SUM} (p, g)\n z = Mul(p, g)",
        f"v = Reshape(p, shape)\n q = {SUM} (p, g)\n z = Mul(v, g)",
        f"n = Neg(p)\n h = Exp(n)\n q = {SUM} (p, h)\n z = Mul(n, g)",
        f"q = {SUM} (p, g)\n z = Identity(p)",
        f"q = {SUM} (p, g)\n z = Gather <axis = 0> (g, shape)",
    ],
    ids=["standard operator", "later reader", "view", "value kept", "returned", "may fail"],
)
def test_what_reads_the_old_value_later_or_may_fail_is_in_the_way(nodes: str) -> None:
    text = (
        "(float[2,2] p, float[2,2] g) => (float[2,2] q, float[2,2] z) "
        f"<int64[2] shape = {{2, 2}}> {{ {nodes} }}"
    )
    wanted = text.replace("shape = {2, 2}", "shape = {1, 0}") if "Gather" in nodes else text
    assert _written(wanted, q="p") == {}


def test_what_may_fail_before_the_program_does_no_harm() -> None:
    text = f"""(float[2,2] p, float[2,2] g, int64[2] i) => (float[2,2] q) {{
        h = Gather <axis = 0> (g, i)
        q = {SUM} (p, h) }}"""
    assert _written(text, q="p") == {"q": "p"}


def test_a_smaller_argument_is_read_again_and_again() -> None:
    text = f"(float[1,3] p, float[2,3] g) => (float[2,3] q) {{ q = {SUM} (p, g) }}"
    assert _written(text, q="p") == {}
    assert _written(text, q="g") == {"q": "g"}


def test_a_body_of_a_condition_reads_too() -> None:
    text = f"""(float[2] p, float[2] g, bool c) => (float[2] q, float[2] z) {{
        q = {SUM} (p, g)
        z = If (c) <then_branch = a () => (float[2] t) {{ t = Neg(p) }},
                    else_branch = b () => (float[2] e) {{ e = Abs(g) }}> }}"""
    assert _written(text, q="p") == {}


def _list(inputs: str) -> str:
    return (
        "(float[2] p, float[2] r, float[2] g) => (float[2] q, float[2] s) "
        f"{{ q, s = dort_rewriter.ElementwiseList <{PROGRAM}, count = 2> ({inputs}) }}"
    )


def test_the_programs_of_a_list_do_not_wait_for_each_other() -> None:
    assert _written(_list("p, g, r, g"), q="p", s="r") == {"q": "p", "s": "r"}
    assert _written(_list("p, g, r, p"), q="p", s="r") == {"s": "r"}
    assert _written(_list("p, r, r, p"), q="p", s="r") == {}


@pytest.mark.parametrize(("step", "fails"), [(1, False), (0, True)])
def test_a_range_fails_without_a_step(step: int, fails: bool) -> None:
    text = f"""(float[3] p, float[3] g) => (float[3] q, int64[N] z)
        <int64 first = {{0}}, int64 end = {{9}}, int64 step = {{{step}}}> {{
        q = {SUM} (p, g)
        z = Range(first, end, step) }}"""
    assert _written(text, q="p") == ({} if fails else {"q": "p"})
