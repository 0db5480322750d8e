"""Groups of elementwise nodes, one kernel: the published pairs and longer ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from dort_rewriter.optimize.patterns.experimental.chains import ElementwiseChains
from dort_rewriter.optimize.patterns.experimental.programs import write_program
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


@pytest.mark.parametrize("dtype", ["float", "double", "float16"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_pairs(name: str, dtype: str) -> None:
    """Bit for bit, but for exponentials and what float16 does not round in between."""
    nodes, program, inputs = PUBLISHED[name]
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


def test_a_where_compares_in_the_program() -> None:
    """Its own comparison is part of it; a mask from elsewhere is not."""
    text = """(float[4] x, float[4] y, bool[4] m) => (float[4] z) {
        c = LessOrEqual(x, y)
        a = Where(%s, y, x)
        z = Sub(a, y)
    }"""
    assert_rewrites(
        ElementwiseChains,
        text % "c",
        """(float[4] x, float[4] y, bool[4] m) => (float[4] z) {
            z = dort_rewriter.Elementwise<
                program = [15,0,-1,-2,0, 18,0,0,-2,-1, 1,0,0,-2,0], results = [0]>(x, y)
        }""",
        reference=False,
    )
    assert_refuses(ElementwiseChains, text.replace("c = LessOrEqual(x, y)", "") % "m")


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


REFUSED = {
    "one node": "(float[4] x) => (float[4] z) {z = Neg(x)}",
    "integers": "(int64[4] x) => (int64[4] z) {a = Neg(x) z = Abs(a)}",
    "bfloat16": "(bfloat16[4] x) => (bfloat16[4] z) {a = Neg(x) z = Abs(a)}",
    "two shapes": "(float[4] x, float[3,4] y) => (float[3,4] z) {a = Neg(x) z = Mul(a, y)}",
    "an operator without instruction": "(float[4] x) => (float[4] z) {a = Sin(x) z = Sin(a)}",
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
