"""Groups of elementwise nodes become one node of a kernel of ours."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import dort_rewriter.kernels.loading
from dort_rewriter.optimize.patterns.kernels.elementwise import ElementwiseChains, ElementwiseLists
from dort_rewriter.optimize.patterns.kernels.programs import OPERATIONS, write_program
from tests.optimize.rewrites import (
    apply,
    assert_refuses,
    assert_rewrites,
    model_of,
    random_inputs,
    run_onnxruntime,
)

PUBLISHED = {
    "AddMul": ("a = Add(x, y) z = Mul(a, w)", "[0,0,-1,-2,0, 2,0,0,-3,0]", "x, y, w"),
    "MulAdd": ("a = Mul(x, y) z = Add(w, a)", "[2,0,-1,-2,0, 0,0,-3,0,0]", "x, y, w"),
    "MulMul": ("a = Mul(x, y) z = Mul(a, w)", "[2,0,-1,-2,0, 2,0,0,-3,0]", "x, y, w"),
    "AddAdd": ("a = Add(x, y) z = Add(a, w)", "[0,0,-1,-2,0, 0,0,0,-3,0]", "x, y, w"),
    "SubMul": ("a = Sub(x, y) z = Mul(a, w)", "[1,0,-1,-2,0, 2,0,0,-3,0]", "x, y, w"),
    "SubMulReversed": ("a = Sub(x, y) z = Mul(w, a)", "[1,0,-1,-2,0, 2,0,-3,0,0]", "x, y, w"),
    "MulSub": ("a = Mul(x, y) z = Sub(w, a)", "[2,0,-1,-2,0, 1,0,-3,0,0]", "x, y, w"),
    "MulSigmoid": ("a = Sigmoid(x) z = Mul(x, a)", "[11,0,-1,0,0, 2,0,-1,0,0]", "x"),
    "NegXplus1": ("a = Sub(one, x) z = Mul(a, y)", "[1,0,-1,-2,0, 2,0,0,-3,0]", "one, x, y"),
    "ReplaceZero": (
        "c = Equal(x, zero) z = Where(c, one, x)",
        "[13,0,-1,-2,0, 18,0,0,-3,-1]",
        "x, zero, one",
    ),
    "AddAddMulMul": (
        "a = Add(x, y) b = Add(a, w) c = Mul(b, x) z = Mul(c, y)",
        "[0,0,-1,-2,0, 0,0,0,-3,0, 2,0,0,-1,0, 2,0,0,-2,0]",
        "x, y, w",
    ),
}
CONSTANTS = "<{type} one = {{1}}, {type} zero = {{0}}>"


def _graph(sizes: dict[str, str], nodes: str, dtype: str = "float") -> str:
    inputs = ", ".join(f"{dtype}[{sizes[n]}] {n}" for n in "xyw")
    return f"({inputs}) => ({dtype}[2,N,M] z) {CONSTANTS.format(type=dtype)} {{{nodes}}}"


SAME = dict.fromkeys("xyw", "2,N,M")


def _rounded(program: str) -> str:
    """A program of float16: what is computed is rounded where the rest reads it."""
    numbers = [int(n) for n in program.strip("[]").split(",")]
    rounded: list[int] = []
    for i in range(0, len(numbers), 5):
        code, register = numbers[i : i + 2]
        rounded += numbers[i : i + 5]
        if i + 5 < len(numbers) and code in (0, 1, 2, 3, 11):
            rounded += [24, register, register, 0, 0]
    return str(rounded)


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_pairs(name: str, dtype: str) -> None:
    """Bit for bit, but for exponentials and what onnxruntime does not round in between."""
    nodes, program, inputs = PUBLISHED[name]
    program = _rounded(program) if dtype == "float16" else program
    after = f"z = dort_rewriter.Elementwise<program = {program}, results = [0]>({inputs})"
    exact = name != "MulSigmoid" and dtype != "float16"
    assert_rewrites(
        ElementwiseChains,
        _graph(SAME, nodes, dtype),
        _graph(SAME, after, dtype),
        rtol=0 if exact else 4e-3 if dtype == "float16" else 1e-6,
        atol=0 if exact else 4e-3 if dtype == "float16" else 1e-6,
        reference=False,
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"x": "2,N,M", "y": "M", "w": "1"},
        {"x": "1,N,1", "y": "2,1,M", "w": "2,N,M"},
        {"x": "2,N,M", "y": "N,M", "w": "2,N,1"},
    ],
)
@pytest.mark.parametrize("name", ["AddMul", "MulSub", "SubMul"])
def test_inputs_broadcast(name: str, sizes: dict[str, str]) -> None:
    """Also two that have the shape of the result only together."""
    nodes, program, inputs = PUBLISHED[name]
    after = f"z = dort_rewriter.Elementwise<program = {program}, results = [0]>({inputs})"
    assert_rewrites(
        ElementwiseChains,
        _graph(sizes, nodes),
        _graph(sizes, after),
        rtol=0,
        atol=0,
        reference=False,
    )


def test_saved_results_are_results() -> None:
    """As training graphs have them: an output, and one that another node reads."""
    assert_rewrites(
        ElementwiseChains,
        """(float[4,8] x, float[4,8] y) => (float[4,8] a, float[1,1] s, float[4,8] z) {
            a = Mul(x, y)
            b = Add(a, y)
            s = ReduceSum(b)
            c = Neg(b)
            z = Abs(c)
        }""",
        """(float[4,8] x, float[4,8] y) => (float[4,8] a, float[1,1] s, float[4,8] z) {
            a, b, z = dort_rewriter.Elementwise<
                program = [2,0,-1,-2,0, 0,1,0,-2,0, 6,2,1,0,0, 7,2,2,0,0],
                results = [0, 1, 2]>(x, y)
            s = ReduceSum(b)
        }""",
        reference=False,
    )


def test_nodes_that_read_the_same_are_one() -> None:
    """What they read is loaded once."""
    assert_rewrites(
        ElementwiseChains,
        """(float[4,8] x, float[4,8] y) => (float[4,8] a, float[4,8] b) {
            a = Mul(x, y)
            b = Add(x, y)
        }""",
        """(float[4,8] x, float[4,8] y) => (float[4,8] a, float[4,8] b) {
            a, b = dort_rewriter.Elementwise<
                program = [2,0,-1,-2,0, 0,1,-1,-2,0], results = [0, 1]>(x, y)
        }""",
        reference=False,
    )


def test_what_lies_between_stays_between() -> None:
    """The sum reads the first, the last reads the sum: one node would need itself."""
    assert_refuses(
        ElementwiseChains,
        """(float[4,8] x, float[4,8] y) => (float[4,8] z) {
            a = Mul(x, y)
            s = ReduceSum(a)
            z = Div(a, s)
        }""",
    )


@pytest.mark.parametrize(
    ("bounds", "program", "inputs"),
    [
        ("zero, one", "4,0,-2,-1,0, 5,0,-3,0,0, 2,0,0,-4,0", "x, zero, one, y"),
        ("zero, inf", "4,0,-2,-1,0, 2,0,0,-3,0", "x, zero, y"),
        ("minus_inf, one", "5,0,-2,-1,0, 2,0,0,-3,0", "x, one, y"),
        ("minus_inf, inf", "4,0,-1,-1,0, 2,0,0,-2,0", "x, y"),
    ],
)
def test_a_clip_is_two_instructions(bounds: str, program: str, inputs: str) -> None:
    """One for each bound that is a number; of equal zeros, the one that is bounded is taken."""
    ends = "float zero = {0}, float one = {1}, float inf = {inf}, float minus_inf = {-inf}"
    graph = f"(float[2,3] x, float[2,3] y) => (float[2,3] z) <{ends}>"
    assert_rewrites(
        ElementwiseChains,
        f"{graph} {{c = Clip(x, {bounds}) z = Mul(c, y)}}",
        f"{graph} {{z = dort_rewriter.Elementwise<program=[{program}], results=[0]>({inputs})}}",
        reference=False,
    )


def test_the_bounds_of_a_clip_may_be_computed() -> None:
    """They are read after the register of the result is written."""
    assert_rewrites(
        ElementwiseChains,
        """(float x, float y) => (float z) {
            low = Sub(x, y) high = Add(x, y) z = Clip(x, low, high)}""",
        """(float x, float y) => (float z) {z = dort_rewriter.Elementwise<program=[
            1,0,-1,-2,0, 0,1,-1,-2,0, 4,2,0,-1,0, 5,2,1,2,0], results=[2]>(x, y)}""",
        reference=False,
    )


def test_a_where_compares_in_the_program() -> None:
    """Its own comparison is part of it."""
    assert_rewrites(
        ElementwiseChains,
        """(float[4] x, float[4] y) => (float[4] z) {
            c = LessOrEqual(x, y)
            a = Where(c, y, x)
            z = Sub(a, y)
        }""",
        """(float[4] x, float[4] y) => (float[4] z) {
            z = dort_rewriter.Elementwise<
                program = [15,0,-1,-2,0, 18,0,0,-2,-1, 1,0,0,-2,0], results = [0]>(x, y)
        }""",
        reference=False,
    )


MASKED = {
    "Where": ("a = Where(m, x, y) z = Mul(a, x)", "[18,0,-1,-2,-3, 2,0,0,-2,0]", "m, x, y"),
    "Dropout": (
        "f = Cast<to = {to}>(m) a = Mul(f, x) z = Mul(a, y)",
        "[2,0,-1,-2,0, 2,0,0,-3,0]",
        "m, x, y",
    ),
    "And": (
        "l = Less(x, y) c = And(m, l) z = Where(c, x, y)",
        "[14,0,-1,-2,0, 2,1,-3,0,0, 18,0,1,-1,-2]",
        "x, y, m",
    ),
    "Or, Not": (
        "l = Less(x, y) n = Not(m) c = Or(l, n) z = Where(c, x, y)",
        "[14,0,-1,-2,0, 22,1,-3,0,0, 4,2,0,1,0, 18,0,2,-1,-2]",
        "x, y, m",
    ),
    "integers compared": (
        "c = Equal(i, j) a = Where(c, x, y) z = Add(a, y)",
        "[18,0,-1,-2,-3, 0,0,0,-3,0]",
        "c, x, y",
    ),
    "the mask is read twice": (
        "n = Neg(x) a = Where(m, n, y) b = Where(m, y, n) z = Add(a, b)",
        "[6,0,-1,0,0, 18,1,-2,0,-3, 18,0,-2,-3,0, 0,0,1,0,0]",
        "x, m, y",
    ),
}


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [*((n, "2,N,M") for n in MASKED), *((n, s) for n in ("Where", "And") for s in ("N,1", "1"))],
)
def test_a_mask_is_read_by_the_program(name: str, sizes: str, dtype: str) -> None:
    """Bit for bit: as a condition, or as numbers in a training graph's dropout."""
    nodes, program, inputs = MASKED[name]
    numbers = f"{dtype}[2,N,M] x, {dtype}[2,N,M] y"
    header = f"(bool[{sizes}] m, int64[2,N,1] i, int64[M] j, {numbers}) => ({dtype}[2,N,M] z)"
    kept = "c = Equal(i, j)" if name == "integers compared" else ""
    to = {"float": 1, "double": 11, "float16": 10}[dtype]
    program = _rounded(program) if (name, dtype) == ("Dropout", "float16") else program
    node = f"z = dort_rewriter.Elementwise<program = {program}, results = [0]>({inputs})"
    tolerance = 4e-3 if dtype == "float16" and name == "Dropout" else 0
    assert_rewrites(
        ElementwiseChains,
        f"{header} {{{nodes.format(to=to)}}}",
        f"{header} {{{kept} {node}}}",
        reference=False,
        rtol=tolerance,
        atol=tolerance,
    )


def test_two_masks_are_read_by_the_program() -> None:
    """Like numbers."""
    assert_rewrites(
        ElementwiseChains,
        """(float[4] x, float[4] y, bool[4] m, bool[4] n) => (float[4] z) {
            a = Where(m, x, y)
            b = Where(n, a, y)
            z = Neg(b)
        }""",
        """(float[4] x, float[4] y, bool[4] m, bool[4] n) => (float[4] z) {
            z = dort_rewriter.Elementwise<
                program = [18,0,-1,-2,-3, 18,0,-4,0,-3, 6,0,0,0,0], results = [0]>(m, x, y, n)
        }""",
        reference=False,
        rtol=0,
        atol=0,
    )


def test_a_comparison_does_not_overwrite_what_is_chosen_from() -> None:
    """Both values are computed before, and read for the last time by the choice."""
    text = """(float[4] x, float[4] y) => (float[4] z) {{
        {}
    }}"""
    assert_rewrites(
        ElementwiseChains,
        text.format("a = Neg(x) b = Abs(x) c = Less(x, y) z = Where(c, a, b)"),
        text.format(
            "z = dort_rewriter.Elementwise<program = [6,0,-1,0,0, 7,1,-1,0,0, 14,2,-1,-2,0, "
            "18,2,2,0,1], results = [2]>(x, y)"
        ),
        rtol=0,
        atol=0,
        reference=False,
    )


def test_a_comparison_others_read_stays() -> None:
    """It is computed in both places."""
    model = model_of("""(float[4] x, float[4] y) => (bool[4] c, float[4] z) {
        c = Less(x, y)
        a = Where(c, y, x)
        z = Sub(a, y)
    }""")
    assert apply(ElementwiseChains, model).rules["ElementwiseChains"].matches == 1
    assert sorted(n.op_type for n in model.graph) == ["Elementwise", "Less"]


def test_a_choice_behind_a_convolution() -> None:
    """As in the gradient of Relu: onnxruntime takes no Where into a convolution."""
    head = """(float[1,1,4,4] x, float[1,1,3,3] w, float[1,1,6,6] g) => (float[1,1,6,6] z)
        <float zero = {0}> { a = ConvTranspose(x, w)"""
    program = "program = [15,0,-1,-2,0, 18,0,0,-2,-3], results = [0]"
    assert_rewrites(
        ElementwiseChains,
        f"{head} c = LessOrEqual(g, zero) z = Where(c, zero, a) }}",
        f"{head} z = dort_rewriter.Elementwise<{program}>(g, zero, a) }}",
        reference=False,
    )


REFUSED = {
    "one node": "(float[4] x) => (float[4] z) {z = Neg(x)}",
    "integers": "(int64[4] x) => (int64[4] z) {a = Neg(x) z = Abs(a)}",
    "a cast alone": "(float16[4] x) => (float[4] z) {z = Cast<to = 1>(x)}",
    "two shapes": "(float[4] x, float[3,4] y) => (float[3,4] z) {a = Neg(x) z = Mul(a, y)}",
    "an operator without instruction": "(float[4] x) => (float[4] z) {a = Sin(x) z = Sin(a)}",
    "a choice alone": "(float[4] x, bool[4] m) => (float[4] z) {z = Where(m, x, x)}",
    "a cast of numbers": """(double[4] x) => (float[4] z) {
        a = Cast<to = 1>(x)
        z = Neg(a)
    }""",
    "three operands": "(float[4] x) => (float[4] z) {a = Max(x, x, x) z = Max(a, a, a)}",
    "what onnxruntime fuses": """(float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] z) {
        a = Conv(x, w)
        b = Relu(a)
        z = Neg(b)
    }""",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_alone(name: str) -> None:
    """For no fault of its own: no near miss is reported."""
    assert_refuses(ElementwiseChains, REFUSED[name])


NARROW = {
    "one node": ("z = Neg(x)", "float16", "[6,0,-1,0,0]", "x"),
    "what others read is rounded": (
        "a = Mul(x, y) z = Add(a, y)",
        "float16",
        "[2,0,-1,-2,0, 24,0,0,0,0, 0,0,0,-2,0]",
        "x, y",
    ),
    "what is exact is not": (
        "a = Max(x, y) z = Add(a, y)",
        "float16",
        "[4,0,-1,-2,0, 0,0,0,-2,0]",
        "x, y",
    ),
    "casts from and to": (
        "a = Cast<to = 1>(x) b = Cast<to = 1>(y) c = Mul(a, b) z = Cast<to = 10>(c)",
        "float16",
        "[2,0,-1,-2,0]",
        "x, y",
    ),
    "a cast there and back": (
        "a = Cast<to = 1>(x) b = Mul(a, f) c = Cast<to = 10>(b) d = Cast<to = 1>(c) z = Add(d, f)",
        "float",
        "[2,0,-1,-2,0, 24,0,0,0,0, 0,0,0,-2,0]",
        "x, f",
    ),
    "an operator of float32": (
        "a = Cast<to = 1>(x) g = com.microsoft.Gelu(a) z = Cast<to = 10>(g)",
        "float16",
        "[26,0,-1,0,0]",
        "x",
    ),
}


@pytest.mark.parametrize("name", NARROW)
def test_numbers_of_16_bits(name: str) -> None:
    """They are read, computed in float32, and rounded where a tensor of theirs would be."""
    nodes, made, program, inputs = NARROW[name]
    header = f"(float16[2,N] x, float16[2,N] y, float[2,N] f) => ({made}[2,N] z)"
    header += " <float[2,N] g>"  # which ONNX does not infer
    node = f"z = dort_rewriter.Elementwise<program = {program}, results = [0]>({inputs})"
    assert_rewrites(
        ElementwiseChains,
        f"{header} {{{nodes}}}",
        f"{header} {{{node}}}",
        reference=False,
        rtol=2e-3,  # onnxruntime rounds some of them only
        atol=2e-3,
    )


@pytest.mark.parametrize("returned", [True, False])
def test_numbers_of_another_shape_are_read_before_their_casts(returned: bool) -> None:
    """Others may still read the cast."""
    program = "program = [0,0,-1,-2,0, 2,0,0,-2,0], results = [0]"
    head = "(float[2,N] x, float16[N] y) => (float[2,N] z" + ", float[N] c" * returned + ")"
    cast = "c = Cast<to = 1>(y)"
    assert_rewrites(
        ElementwiseChains,
        f"{head} {{{cast} a = Add(x, c) z = Mul(a, c)}}",
        f"{head} {{{cast * returned} z = dort_rewriter.Elementwise<{program}>(x, y)}}",
        reference=False,
        rtol=0,
        atol=0,
    )


def test_a_rounding_to_bfloat16_alone() -> None:
    """It is faster than onnxruntime's."""
    model = model_of("(float[8] x) => (bfloat16[8] z) { z = Cast<to = 16>(x) }")
    apply(ElementwiseChains, model)
    (node,) = model.graph
    assert list(node.attributes["program"].as_ints()) == [4, 0, -1, -1, 0]


def test_bfloat16_read_as_float_alone() -> None:
    """So is this; a program of another shape reads the numbers before."""
    model = model_of("(bfloat16[8] x) => (float[8] z) { z = Cast<to = 1>(x) }")
    apply(ElementwiseChains, model)
    assert [n.op_type for n in model.graph] == ["Elementwise"]
    model = model_of("""(float[2,8] x, bfloat16[8] y) => (float[2,8] z) {
        c = Cast<to = 1>(y)
        a = Add(x, c)
        z = Mul(a, c)
    }""")
    apply(ElementwiseChains, model)
    (node,) = model.graph
    assert [v.name for v in node.inputs if v is not None] == ["x", "y"]


def test_a_register_has_two_names() -> None:
    """The number as computed and as rounded: it is free when nobody reads either."""
    model = model_of("""(float[8] x, float[8] y) => (float16[8] a, float[8] z) {
        p = Mul(x, y)
        a = Cast<to = 10>(p)
        q = Neg(p)
        r = Exp(q)
        z = Mul(r, r)
    }""")
    feeds = random_inputs(ir.to_proto(model))
    expected = run_onnxruntime(ir.to_proto(model), feeds)
    apply(ElementwiseChains, model)
    (node,) = model.graph
    assert list(node.attributes["results"].as_ints()) == [0, 1]
    for got, wanted in zip(run_onnxruntime(ir.to_proto(model), feeds), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_a_cast_that_others_read_too() -> None:
    """It is written by the program, as it was read."""
    assert_rewrites(
        ElementwiseChains,
        """(float16[8] x) => (float[8] a, float[8] z) {
            a = Cast<to = 1>(x)
            z = Neg(a)
        }""",
        """(float16[8] x) => (float[8] a, float[8] z) {
            a, z = dort_rewriter.Elementwise<
                program = [6,0,-1,0,0, 4,1,-1,-1,0], results = [1, 0]>(x)
        }""",
        reference=False,
        rtol=0,
        atol=0,
    )


def test_without_a_kernel_nothing_is_done() -> None:
    """No compiler, or another provider."""
    nodes, *_ = PUBLISHED["AddMul"]
    assert_refuses(ElementwiseChains, _graph(SAME, nodes), kernels=False)


def test_a_reader_in_a_subgraph_comes_after() -> None:
    """The node runs where its last member did, and branches read its results."""
    model = model_of("""(float[4] x, float[4] y, bool c) => (float[4] t) {
        a = Mul(x, y)
        b = Add(a, y)
        t = If (c) <
            then_branch = yes () => (float[4] p) { p = Identity(a) },
            else_branch = no () => (float[4] q) { q = Identity(b) }
        >
    }""")
    original = ir.to_proto(model)
    assert apply(ElementwiseChains, model).rules["ElementwiseChains"].matches == 1
    assert [n.op_type for n in model.graph] == ["Elementwise", "If"]
    for c in (True, False):
        feeds = {**random_inputs(original), "c": np.array(c)}
        (expected,) = run_onnxruntime(original, feeds)
        np.testing.assert_array_equal(run_onnxruntime(ir.to_proto(model), feeds)[0], expected)


def test_long_chains_are_cut() -> None:
    """A group is small, and needs as many registers as it has results to remember."""
    nodes = " ".join(f"a{i + 1} = Mul(a{i}, a{i})" for i in range(100))
    model = model_of(f"(float[4] a0) => (float[4] a100) {{{nodes}}}")
    assert apply(ElementwiseChains, model).rules["ElementwiseChains"].matches == 3
    for node in model.graph:
        program = node.attributes["program"].value
        assert len(program) <= 5 * 48
        assert set(program[1::5]) == {0}


@pytest.mark.parametrize(("shape", "count"), [("", 1), ("4", 2)], ids=["numbers", "tensors"])
def test_many_inputs(shape: str, count: int) -> None:
    """A step of RAdam reads eleven numbers beside four tensors; numbers take no registers."""
    kind = f"float[{shape}]" if shape else "float"
    names = [f"c{i}" for i in range(15)]
    lines = [f"v{i + 1} = {'Mul' if i % 2 else 'Add'}(v{i}, {c})" for i, c in enumerate(names)]
    text = f"""({", ".join(f"{kind} {c}" for c in names)}, float[4] x) => (float[4] v15)
        {{ {" ".join(lines).replace("v0,", "x,")} }}"""
    model = model_of(text)
    apply(ElementwiseChains, model)
    assert sum(n.op_type == "Elementwise" for n in model.graph) == count


def test_registers_are_used_again() -> None:
    """When the last reader has read, not before."""
    model = model_of("""(float[4] x) => (float[4] z) {
        a = Neg(x)
        b = Abs(a)
        c = Mul(a, b)
        z = Add(c, b)
    }""")
    program = write_program(list(model.graph), [model.graph.outputs[0]])
    assert program.code[1::5] == [0, 1, 0, 1]
    assert program.results == [1]
    assert program.inputs == list(model.graph.inputs)


def test_a_mask_alone_is_no_program() -> None:
    """The kernel computes in the type of a number that it reads: here is none."""
    assert_refuses(
        ElementwiseChains, "(bool[4,4] m) => (float[4,4] z) { f = Cast<to=1>(m) z = Neg(f) }"
    )
    assert_refuses(
        ElementwiseChains,
        "(bool[4,4] m) => (float[4,4] z) { f = Cast<to=1>(m) g = Neg(f) z = Add(f, g) }",
    )


def _mask(depth: int, step: str) -> str:
    """A mask of ``depth`` steps, each of which may read the one before it several times."""
    steps = "".join(f"{step.format(a=f'm{i}', b=f'm{i + 1}', i=i)} " for i in range(depth))
    return f"""(float[3] x, bool[3] p, bool[3] q) => (float[3] z) <float zero = {{0}}> {{
        m0 = Less(x, zero) {steps} n = Neg(x) z = Where(m{depth}, x, n) }}"""


SHARED = "l{i} = And({a}, p) r{i} = And({a}, q) {b} = Or(l{i}, r{i})"


@pytest.mark.parametrize(
    ("depth", "step"),
    [(30, SHARED), (1200, "c{i} = Less(x, zero) {b} = And({a}, c{i})"), (400, SHARED)],
)
def test_a_condition_of_many_nodes_is_a_mask(depth: int, step: str) -> None:
    """However deep it is, and however many paths lead through it."""
    model = model_of(_mask(depth, step))
    expected = run_onnxruntime(ir.to_proto(model), FEEDS)
    apply(ElementwiseChains, model)
    assert "Where" not in {n.op_type for n in model.graph}
    (fused,) = (n for n in model.graph if n.op_type == "Elementwise")
    assert len(fused.inputs) < 5
    for got, wanted in zip(run_onnxruntime(ir.to_proto(model), FEEDS), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


FEEDS = {
    "x": np.array([-1.0, 2.0, np.nan], np.float32),
    "p": np.array([True, False, True]),
    "q": np.array([False, True, True]),
}


def test_a_shared_condition_is_computed_once() -> None:
    """Its parts have a register each: a path more is no instruction more."""
    text = """(float[3] x, float[3] y) => (float[3] z) {
        a = Less(x, y) b = Not(a) c = And(a, b) d = Or(c, a) e = Or(d, c) z = Where(e, x, y) }"""
    model = model_of(text)
    feeds = random_inputs(ir.to_proto(model))
    expected = run_onnxruntime(ir.to_proto(model), feeds)
    apply(ElementwiseChains, model)
    (fused,) = model.graph
    assert len(fused.attributes["program"].as_ints()) == 6 * 5
    for got, wanted in zip(run_onnxruntime(ir.to_proto(model), feeds), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_as_many_axes_as_the_kernel_takes() -> None:
    """A group of more is left to onnxruntime."""
    for rank, after in ((12, True), (13, False)):
        shape = ",".join(["1"] * rank)
        graph = f"(float[{shape}] x, float[{shape}] y) => (float[{shape}] z)"
        before = f"{graph} {{a = Mul(x, y) z = Add(a, y)}}"
        own = "dort_rewriter.Elementwise<program = [2,0,-1,-2,0, 0,0,0,-2,0], results = [0]>"
        if after:
            written = f"{graph} {{z = {own}(x, y)}}"
            assert_rewrites(ElementwiseChains, before, written, reference=False)
        else:
            assert_refuses(ElementwiseChains, before)


def test_the_table_of_operators_is_that_of_the_kernel() -> None:
    """Their numbers are places in it."""
    folder = Path(dort_rewriter.kernels.loading.__file__).parent / "cpp"
    header = (folder / "operations.h").read_text(encoding="utf-8")
    rows = re.findall(r"^  X\(k(\w+), (\d), ", header, re.MULTILINE)
    assert {name: int(arity) for name, arity in rows} == OPERATIONS
    assert [name for name, _ in rows] == [*OPERATIONS]


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
