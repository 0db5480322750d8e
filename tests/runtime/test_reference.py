"""The reference evaluator behind the same signature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx.reference.op_run import OpRun

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.ort_values import array_to_tensor, tensor_to_array
from dort_rewriter.runtime.reference import ReferenceExecutor, ReferenceModel
from dort_rewriter.runtime.session import create_session
from dort_rewriter.signature import InputSize, OutputSlot, ViewStep
from tests.runtime.graphs import number, parse, result, signature, tensor


def test_same_results_as_a_session() -> None:
    model = parse(
        "(float[N] x, int64 k, bool[N] m) => (float[N] y, bool[N] n, int64 k2)"
        " { f = Cast<to=1>(k) y = Add(x, f) n = Not(m) k2 = Add(k, k) }"
    )
    contract = signature(
        [tensor("x"), number("k", "int"), tensor("m", torch.bool)],
        [
            result("y", views=[ViewStep("aten::view", ((InputSize(1), -1),))]),
            result("n", 1, torch.bool),
            result("k2", 2, torch.int64, "int"),
            OutputSlot(kind="tensor", source="input", index=0),
            OutputSlot(kind="none", source="constant"),
        ],
    )
    arguments = (torch.arange(6.0), 2, torch.tensor([True, False] * 3))
    expected = Executor(create_session(model), contract)(*arguments)
    got = ReferenceExecutor(model, contract)(*arguments)
    assert len(got) == len(expected) == 5
    for mine, theirs in zip(got[:2], expected[:2], strict=True):
        assert mine.dtype is theirs.dtype
        assert torch.equal(mine, theirs)
    assert got[2] == expected[2] == 4
    assert got[3] is arguments[0]
    assert got[4] is None


def test_each_result_is_seen_and_may_stop_the_run() -> None:
    model = parse("(float[N] x) => (float[N] y) <float w = {2}> { a = Mul(x, w) y = Neg(a) }")
    seen = []

    def watch(name, value, node) -> None:
        seen.append((name, None if node is None else node.op_type))
        if name == "a":
            raise StopIteration(value.tolist())

    with pytest.raises(StopIteration, match=r"\[2.0, 4.0\]"):
        ReferenceModel(model).run({"x": np.array([1, 2], dtype=np.float32)}, watch)
    assert seen == [("w", None), ("x", None), ("a", "Mul")]


def test_subgraph_reads_outer_results() -> None:
    model = parse(
        "(float[N] x, bool c) => (float[N] y) { a = Neg(x) y = If(c)"
        " <then_branch = t () => (float[N] r) { r = Abs(a) },"
        "  else_branch = e () => (float[N] s) { s = Identity(a) }> }"
    )
    run = ReferenceExecutor(model, signature([tensor("x"), number("c", "bool")], [result("y")]))
    assert run(torch.ones(2), True)[0].tolist() == [1.0, 1.0]
    assert run(torch.ones(2), False)[0].tolist() == [-1.0, -1.0]


def test_failing_node_is_named() -> None:
    model = parse("(float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }")
    model.graph.node[0].name = "sum_3"
    run = ReferenceExecutor(model, signature([tensor("a"), tensor("b")], [result("y")]))
    with pytest.raises(ExecutionError, match=r"'sum_3', Add\(a, b\)"):
        run(torch.ones(2), torch.ones(3))


CUSTOM = "(float[N] x) => (float[N] y) { y = com.microsoft.QuickGelu(x) }"


def test_unknown_operator_is_named() -> None:
    with pytest.raises(ExecutionError, match=r"com.microsoft\.QuickGelu\(x\)"):
        ReferenceModel(parse(CUSTOM))


def test_operators_may_be_given() -> None:
    class QuickGelu(OpRun):
        op_domain = "com.microsoft"

        def _run(self, x, alpha=None):
            return (x * 10,)

    results = ReferenceModel(parse(CUSTOM), [QuickGelu]).run({"x": np.ones(1, np.float32)})
    assert results["y"].tolist() == [10.0]


def test_wrong_type_is_refused() -> None:
    model = parse("(float[N] x) => (float[N] y) { y = Neg(x) }")
    run = ReferenceExecutor(model, signature([tensor("x")], [result("y")]))
    with pytest.raises(ExecutionError, match=r"'x' is torch.float64"):
        run(torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.int8]
)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_arrays_carry_each_type(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape).to(dtype)
    back = array_to_tensor(tensor_to_array(x))
    assert back.dtype is dtype
    assert back.shape == x.shape
    assert torch.equal(back.float(), x.float())
