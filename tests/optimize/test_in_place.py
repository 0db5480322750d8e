"""What may be written where an argument is: each graph but the first is wrong in one way."""

from __future__ import annotations

from typing import Any

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


def test_products_of_few_bits_do_not_fail() -> None:
    """A decoder's cache is written in place, whatever its weights are."""
    text = f"""(float[2,32] p, float[2,32] g, uint8[4,1,16] w, float[4] s) =>
        (float[2,32] q, float[2,4] z) {{
        q = {SUM} (p, g)
        z = com.microsoft.MatMulNBits <K = 32, N = 4, bits = 4, block_size = 32> (g, w, s) }}"""
    assert _written(text, q="p") == {"q": "p"}


def _looked_up(table: str, index: str = "i", axis: int = 0, more: str = "") -> str:
    """Rows written to a cache, and a table that is read at the same places or others."""
    return f"""(float[8,2] p, float[1,2] r, {table} t, int64[1] i, int64[1] j) =>
        (float[8,2] q, float[N,M] z) {{
        q = dort_rewriter.WriteRows <axis = 0, wrap = 0> (i, p, r)
        z = Gather <axis = {axis}> (t, {index})
        {more} }}"""


@pytest.mark.parametrize("table", ["float[8,2]", "float[9,2]"])
def test_what_is_looked_up_where_rows_are_written_cannot_fail_alone(table: str) -> None:
    assert _written(_looked_up(table), q="p") == {"q": "p"}


@pytest.mark.parametrize(
    ("table", "options"),
    [
        ("float[7,2]", {}),
        ("float[N,2]", {}),
        ("float[8,2]", {"index": "j"}),
        ("float[8,2]", {"axis": 1}),
    ],
    ids=["smaller", "of any size", "at other places", "along another axis"],
)
def test_what_is_looked_up_elsewhere_may_fail(table: str, options: dict[str, Any]) -> None:
    assert _written(_looked_up(table, **options), q="p") == {}


def test_a_program_that_does_not_need_the_rows_may_be_written_before_they_fail() -> None:
    text = f"""(float[8,2] p, float[1,2] r, float[8,2] t, float[2] o, int64[1] i) =>
        (float[8,2] q, float[1,2] z, float[2] s) {{
        q = dort_rewriter.WriteRows <axis = 0, wrap = 0> (i, p, r)
        z = Gather <axis = 0> (t, i)
        s = {SUM} (o, o) }}"""
    assert _written(text, q="p") == {"q": "p"}
    assert _written(text, s="o") == {}
    assert _written(text, q="p", s="o") == {}


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


def _list(inputs: str, shared: int = 0) -> str:
    how = f"{PROGRAM}, count = 2, shared = {shared}"
    return (
        "(float[2] p, float[2] r, float[2] g) => (float[2] q, float[2] s) "
        f"{{ q, s = dort_rewriter.ElementwiseList <{how}> ({inputs}) }}"
    )


def test_the_programs_of_a_list_do_not_wait_for_each_other() -> None:
    assert _written(_list("p, g, r, g"), q="p", s="r") == {"q": "p", "s": "r"}
    assert _written(_list("p, g, r, p"), q="p", s="r") == {"s": "r"}
    assert _written(_list("p, r, r, p"), q="p", s="r") == {}


def test_what_all_programs_of_a_list_read_stays() -> None:
    assert _written(_list("p, r, g", shared=1), q="p", s="r") == {"q": "p", "s": "r"}
    assert _written(_list("p, g, r", shared=1), q="p", s="g") == {"q": "p", "s": "g"}
    assert _written(_list("g, p, r", shared=1), q="r", s="p") == {"s": "p"}
    assert _written(_list("g, r, p", shared=1), q="p", s="r") == {"s": "r"}


@pytest.mark.parametrize(("step", "fails"), [(1, False), (0, True)])
def test_a_range_fails_without_a_step(step: int, fails: bool) -> None:
    text = f"""(float[3] p, float[3] g) => (float[3] q, int64[N] z)
        <int64 first = {{0}}, int64 end = {{9}}, int64 step = {{{step}}}> {{
        q = {SUM} (p, g)
        z = Range(first, end, step) }}"""
    assert _written(text, q="p") == ({} if fails else {"q": "p"})
