"""Transposes that our kernels do while they compute or convert."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from dort_rewriter.optimize.patterns.kernels.transposes import AddMulTranspose, TransposeCast
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import (
    apply,
    assert_refuses,
    assert_rewrites,
    model_of,
    random_inputs,
    run_onnxruntime,
)

PROGRAM = "program = [0,0,-1,-2,0, 2,0,0,-3,0], results = [0]"


def _programmed(node: str, dtype: str = "float", last: str = "64", program: str = PROGRAM) -> str:
    inputs = f"{dtype}[B,S,2,{last}] x, {dtype}[{last}] y, {dtype}[1] w"
    return f"""({inputs}) => ({dtype}[B,P,Q,R] z) <{dtype}[B,S,2,{last}] a> {{
        a = dort_rewriter.Elementwise<{program}>(x, y, w)
        {node}
    }}"""


def _transposed(dtype: str, perm: str) -> str:
    inputs = f"{dtype}[B,S,2,64] x, {dtype}[64] y, {dtype}[1] w"
    return f"""({inputs}) => ({dtype}[B,P,Q,R] z) {{
        z = dort_rewriter.TransposedElementwise<{PROGRAM}, perm = {perm}>(x, y, w)
    }}"""


@pytest.mark.parametrize("perm", ["[0, 2, 1, 3]", "[1, 0, 2, 3]", "[2, 0, 1, 3]"])
@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
def test_a_program_writes_transposed_results(dtype: str, perm: str) -> None:
    """Bit for bit."""
    assert_rewrites(
        AddMulTranspose,
        _programmed(f"z = Transpose<perm = {perm}>(a)", dtype),
        _transposed(dtype, perm),
        rtol=0,
        atol=0,
        reference=False,
    )


def test_add_mul_transpose_by_the_set() -> None:
    """The program is made first; the same numbers, and nothing is left to do."""
    model = model_of("""(float[2,S,4,32] x, float[32] y, float[32] w) => (float[2,4,S,32] z) {
        a = Add(x, y)
        b = Mul(a, w)
        z = Transpose<perm = [0, 2, 1, 3]>(b)
    }""")
    original = ir.to_proto(model)
    options = OptimizationOptions(patterns="experimental")
    optimize(model, options, has_kernel=kernel_query())
    assert [n.op_type for n in model.graph] == ["TransposedElementwise"]
    again = optimize(model, options, has_kernel=kernel_query())
    assert not any(r.matches for r in again.rules.values())
    feeds = random_inputs(original)
    (got,), (expected,) = (run_onnxruntime(m, feeds) for m in (ir.to_proto(model), original))
    assert (got == expected).all()


FASTER = "onnxruntime's transpose is faster"


def test_other_transposes_of_programs_stay() -> None:
    """Measured: 0.4 to 0.8 of onnxruntime's speed where the last axis moves."""
    assert_refuses(AddMulTranspose, _programmed("z = Transpose<perm = [0, 2, 3, 1]>(a)"), FASTER)
    assert_refuses(AddMulTranspose, _programmed("z = Transpose(a)"), FASTER)
    text = _programmed("z = Transpose<perm = [0, 2, 1, 3]>(a)", last="8")
    assert_refuses(AddMulTranspose, text, FASTER)


def test_programs_that_are_not_looked_at() -> None:
    """One instruction gains nothing; what others read is written as it is."""
    one = "program = [0,0,-1,-2,0], results = [0]"
    text = _programmed("z = Transpose<perm = [0, 2, 1, 3]>(a)", program=one)
    assert_refuses(AddMulTranspose, text)
    text = _programmed("b = Transpose<perm = [0, 2, 1, 3]>(a) z = Concat<axis = 1>(b, a)")
    assert_refuses(AddMulTranspose, text)
    assert_refuses(
        AddMulTranspose,
        """(float[2,3,4,32] x, float[2,3,4,32] y) => (float[2,4,3,32] z) {
            a = Add(x, y)
            z = Transpose<perm = [0, 2, 1, 3]>(a)
        }""",
    )


def test_a_program_without_a_kernel() -> None:
    """It is said."""
    text = _programmed("z = Transpose<perm = [0, 2, 1, 3]>(a)")
    assert_refuses(AddMulTranspose, text, "no kernel", kernels=False)


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
