"""Heads of rotary embeddings are not moved for torch's attention."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.attention import TransposeRotary
from tests.optimize.rewrites import assert_refuses, assert_rewrites

FLASH = "dort_rewriter._scaled_dot_product_flash_attention_for_cpu"
ROTARY = "dort_rewriter.Rotary<gradient = 0>"
GIVEN = "(float[2,5,3,8] x, float[{c}] c, float[{c}] d, float[2,3,6,8] k, float[2,3,6,8] v) =>"


@pytest.mark.parametrize(
    ("sizes", "moved"), [("1,1,5,8", "1,5,1,8"), ("2,1,5,8", "2,5,1,8")], ids=["one", "each"]
)
def test_heads_stay_where_they_are(sizes: str, moved: str) -> None:
    """Before attention; also where the numbers are kept in the order that they came in."""
    inner = "float[2,3,5,8] t, float[2,3,5,8] r, float[2,3,5] s, float[2,5,3,8] u"
    inner += f", float[{moved}] e, float[{moved}] f"
    head = f"{GIVEN.format(c=sizes)} (float[2,3,5,8] y, float[2,5,3,8] w) <{inner}>"
    attend = f"y, s = {FLASH}<is_causal = 0>(r, k, v) w = Transpose<perm = [0, 2, 1, 3]>(r)"
    assert_rewrites(
        TransposeRotary,
        f"{head} {{ t = Transpose<perm = [0, 2, 1, 3]>(x) r = {ROTARY}(t, c, d) {attend} }}",
        f"""{head} {{
            e = Transpose<perm = [0, 2, 1, 3]>(c) f = Transpose<perm = [0, 2, 1, 3]>(d)
            u = {ROTARY}(x, e, f) r = Transpose<perm = [0, 2, 1, 3]>(u) {attend}
        }}""",
        reference=False,
        rtol=0,
        atol=0,
    )


ATTEND = f"y, s = {FLASH}<is_causal = 0>(r, k, v)"
REFUSED = {
    "each head has angles of its own": ("2,3,5,8", ATTEND, "more than heads are moved"),
    "something else reads it": ("1,1,5,8", f"{ATTEND} z = Neg(r)", "others read it too"),
    "nobody attends to it": ("1,1,5,8", "y = Neg(r)", None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_others_are_moved(case: str) -> None:
    """As they were."""
    sizes, rest, reason = REFUSED[case]
    more = ", float[2,3,5,8] z" if "z =" in rest else ""
    inner = "float[2,3,5,8] t, float[2,3,5,8] r, float[2,3,5] s"
    assert_refuses(
        TransposeRotary,
        f"{GIVEN.format(c=sizes)} (float[2,3,5,8] y{more}) <{inner}> "
        f"{{ t = Transpose<perm = [0, 2, 1, 3]>(x) r = {ROTARY}(t, c, d) {rest} }}",
        reason,
    )
