"""Transposes that our kernels do while they convert."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.kernels.transposes import TransposeCast
from tests.optimize.rewrites import (
    apply,
    assert_refuses,
    assert_rewrites,
    model_of,
)

FASTER = "onnxruntime's transpose is faster"

CASTS = {
    "TransposeToFloat": ("float16", "float", 1),
    "TransposeToFloat16": ("float", "float16", 10),
}
PERMS = {
    "two": ("40,N", "[1, 0]", "N,40"),
    "last two": ("2,3,40,50", "[0, 1, 3, 2]", "2,3,50,40"),
    "heads": ("2,5,3,64", "[0, 2, 1, 3]", "2,3,5,64"),
}


@pytest.mark.parametrize("cast_first", [True, False])
@pytest.mark.parametrize("perm", PERMS)
@pytest.mark.parametrize("name", CASTS)
def test_a_transpose_converts(name: str, perm: str, cast_first: bool) -> None:
    """Bit for bit, in both orders."""
    given, to, code = CASTS[name]
    before, axes, after = PERMS[perm]
    nodes = (
        f"a = Cast<to = {code}>(x) z = Transpose<perm = {axes}>(a)"
        if cast_first
        else f"a = Transpose<perm = {axes}>(x) z = Cast<to = {code}>(a)"
    )
    header = f"({given}[{before}] x) => ({to}[{after}] z)"
    assert_rewrites(
        TransposeCast,
        f"{header} {{{nodes}}}",
        f"{header} {{z = dort_rewriter.{name}<perm = {axes}>(x)}}",
        rtol=0,
        atol=0,
        reference=False,
    )


@pytest.mark.parametrize(
    ("shape", "perm"),
    [("4,6", "[1, 0]"), ("40,3", "[1, 0]"), ("2,8,4,16", "[0, 2, 1, 3]"), ("40,40", "[0, 1]")],
)
def test_few_numbers_in_a_row(shape: str, perm: str) -> None:
    """Measured: slower than onnxruntime's transpose of images with three colours, and patches."""
    text = f"""(float16[{shape}] x) => (float[{", ".join("PQRS"[: shape.count(",") + 1])}] z) {{
        a = Cast<to = 1>(x)
        z = Transpose<perm = {perm}>(a)
    }}"""
    assert_refuses(TransposeCast, text, FASTER)


REFUSED = {
    "other types": "(double[40,50] x) => (float[50,40] z) {a = Cast<to = 1>(x) z = Transpose(a)}",
    "integers": "(int64[40,50] x) => (float[50,40] z) {a = Cast<to = 1>(x) z = Transpose(a)}",
    "read twice": """(float16[40,40] x) => (float[40,40] z) {
        a = Cast<to = 1>(x)
        b = Transpose(a)
        z = Add(a, b)
    }""",
    "something between": """(float16[40,40] x) => (float[40,40] z) {
        a = Cast<to = 1>(x)
        b = Neg(a)
        z = Transpose(b)
    }""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_casts_that_are_left_alone(name: str) -> None:
    """For no fault of their own: no near miss is reported."""
    assert_refuses(TransposeCast, REFUSED[name])


def test_what_is_read_in_any_order() -> None:
    """torch's kernels read rounded numbers as they lie, unless others want them too."""
    nodes = "a = Cast<to = 10>(x) t = Transpose(a) z = dort_rewriter.mm(t, w)"
    inputs = "float[40,50] x, float16[40,60] w"
    assert_refuses(TransposeCast, f"({inputs}) => (float16[50,60] z) {{{nodes}}}")
    model = model_of(f"({inputs}) => (float16[50,60] z, float16[50,40] t) {{{nodes}}}")
    apply(TransposeCast, model)
    assert [n.op_type for n in model.graph] == ["TransposeToFloat16", "mm"]


def test_a_cast_without_a_kernel() -> None:
    """It is said."""
    text = "(float16[40,50] x) => (float[50,40] z) {a = Cast<to = 1>(x) z = Transpose(a)}"
    assert_refuses(TransposeCast, text, "no kernel", kernels=False)
