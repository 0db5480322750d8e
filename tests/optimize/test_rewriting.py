"""The driver: where new nodes go, which names stay, what is removed, when it stops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from dort_rewriter.errors import OptimizeError
from dort_rewriter.optimize.patterns.base import GraphPass, Match, Refusal, Rule
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.optimize.view import GraphView
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import model_of, random_inputs, run_onnxruntime


def _optimize(model: ir.Model, *patterns: Any, **options: Any) -> OptimizeReport:
    chosen = OptimizationOptions(patterns=list(patterns), **options)
    return optimize(model, chosen, has_kernel=kernel_query())


def _assert_same_numbers(text: str, *patterns: Any, count: int = 1) -> onnx.ModelProto:
    model = model_of(text)
    original = ir.to_proto(model)
    report = _optimize(model, *patterns)
    assert sum(r.matches for r in report.rules.values()) == count, report
    changed = ir.to_proto(model)
    onnx.checker.check_model(changed, full_check=True)
    assert [o.name for o in changed.graph.output] == [o.name for o in original.graph.output]
    feeds = random_inputs(original)
    for a, b in zip(
        run_onnxruntime(changed, feeds), run_onnxruntime(original, feeds), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return changed


class NegOfSquare(Rule):
    """``q = Mul(x, x), y = Neg(q) -> Pow(x, 2), Neg(Pow(x, 2))``: both are replaced."""

    roots = ("Neg",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        square = graph.producer(node.inputs[0], "Mul")
        if square is None or square.inputs[0] is not square.inputs[1]:
            return None
        x = square.inputs[0]

        def build(op: Any) -> Any:
            power = op.Pow(x, 2.0)
            return power, op.Neg(power)

        return Match([square.outputs[0], node.outputs[0]], build)


def test_two_results_are_placed_before_their_first_reader() -> None:
    """The saved one is read before the root."""
    changed = _assert_same_numbers(
        """(float[N] x) => (float[N] early, float[N] y) {
            q = Mul(x, x)
            early = Exp(q)
            y = Neg(q)
        }""",
        NegOfSquare,
    )
    operators = [n.op_type for n in changed.graph.node]
    assert operators.index("Pow") < operators.index("Exp")
    assert "Mul" not in operators


def test_a_saved_result_keeps_its_name() -> None:
    """Both results are outputs of the model."""
    changed = _assert_same_numbers(
        "(float[N] x) => (float[N] q, float[N] y) {q = Mul(x, x) y = Neg(q)}", NegOfSquare
    )
    assert {o for n in changed.graph.node for o in n.output} == {"q", "y"}


class BothInOne(Rule):
    """``a = Exp(x), b = Neg(z) -> Split``: there may be no place for it."""

    roots = ("Neg",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        (z,) = node.inputs
        first = next((n for n in graph.graph if n.op_type == "Exp"), None)
        if first is None or z is None:
            return None
        x = first.inputs[0]
        return Match(
            [first.outputs[0], node.outputs[0]],
            lambda op: op.Split(op.Concat(op.Exp(x), op.Neg(z), axis=0), num_outputs=2, axis=0),
        )


def test_without_a_place_nothing_changes() -> None:
    """The second result needs what the first one leads to: a cycle."""
    model = model_of("(float[4] x) => (float[4] y) {a = Exp(x) b = Sin(a) y = Neg(b)}")
    report = _optimize(model, BothInOne)
    assert report.rules["BothInOne"].refusals == {"no place in the order of the graph": 1}
    assert [n.op_type for n in model.graph] == ["Exp", "Sin", "Neg"]


class Skip(Rule):
    """``Abs(x) -> x``, for the sake of the test."""

    roots = ("Abs",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x = node.inputs[0]
        assert x is not None
        return Match([node.outputs[0]], lambda op: x)


SUBGRAPH = """(float[N] x, bool c) => (float[N] y) {
    positive = Exp(x)
    a = Abs(positive)
    y = If (c) <
        then_branch = yes () => (float[N] t) { t = Neg(a) },
        else_branch = no () => (float[N] e) { e = Sin(positive) }
    >
}"""


def test_a_reader_in_a_subgraph_reads_the_new_result() -> None:
    """By its name: the node that was read is gone."""
    changed = _assert_same_numbers(SUBGRAPH, Skip)
    assert [n.op_type for n in changed.graph.node] == ["Exp", "If"]


def test_nodes_in_a_subgraph_are_left_alone() -> None:
    """Only the main graph is rewritten."""
    text = SUBGRAPH.replace("t = Neg(a)", "t = Abs(a)").replace("a = Abs", "a = Exp")
    _assert_same_numbers(text, Skip, count=0)


def test_an_output_is_no_input_under_another_name() -> None:
    """ONNX has no way to say it without a node."""
    model = model_of("(float[N] x) => (float[N] y) {y = Abs(x)}")
    report = _optimize(model, Skip)
    assert report.rules["Skip"].refusals == {"an output of the model has to have its own node": 1}


def test_two_outputs_do_not_become_one() -> None:
    """Each keeps its name and its node."""
    text = "(float[N] x) => (float[N] a, float[N] y) {a = Exp(x) y = Abs(a)}"
    _assert_same_numbers(text, Skip, count=0)


def test_a_result_becomes_an_output() -> None:
    """The node that computed it takes over the name."""
    changed = _assert_same_numbers(
        "(float[N] x) => (float[N] y, float[N] z) {a = Exp(x) y = Abs(a) z = Neg(a)}", Skip
    )
    assert [list(n.output) for n in changed.graph.node] == [["y"], ["z"]]
    assert list(changed.graph.node[1].input) == ["y"]


class TimesThree(Rule):
    """``Neg(x) -> Mul(x, -1)``   with a constant that the graph may have already."""

    roots = ("Neg",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x = node.inputs[0]
        return Match([node.outputs[0]], lambda op: op.Mul(x, -1.0))


def test_constants_are_shared() -> None:
    """With those of the model, and between applications."""
    changed = _assert_same_numbers(
        """(float[N] x) => (float[N] y) <float minus = {-1.0}> {
            a = Neg(x)
            b = Add(a, minus)
            y = Neg(b)
        }""",
        TimesThree,
        count=2,
    )
    assert [t.name for t in changed.graph.initializer] == ["minus"]


class ExpToSin(Rule):
    """``Exp(x) -> Sin(x)``: wrong, and undone by the next."""

    roots = ("Exp",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        return Match([node.outputs[0]], lambda op: op.Sin(node.inputs[0]))


class SinToExp(Rule):
    """``Sin(x) -> Exp(x)``."""

    roots = ("Sin",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        return Match([node.outputs[0]], lambda op: op.Exp(node.inputs[0]))


class StaysThere(Rule):
    """Replaces what reads its root again and again, while the root stays."""

    roots = ("Exp",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        (reader,) = graph.consumers(node.outputs[0])
        return Match([reader.outputs[0]], lambda op: op.Neg(node.outputs[0]))


class EveryExpToSin(GraphPass):
    """A pass that undoes a rule."""

    def run(self, graph: GraphView) -> int:
        found = [n for n in graph.graph if n.op_type == "Exp"]
        for node in found:
            node.op_type = "Sin"
        return len(found)


@pytest.mark.parametrize(
    "patterns", [[ExpToSin, SinToExp], [StaysThere], [SinToExp, EveryExpToSin]], ids=str
)
def test_rules_that_undo_each_other_stop_with_one_warning(
    patterns: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Rules, one rule alone, a rule and a pass."""
    model = model_of("(float[N] x) => (float[N] y) {a = Exp(x) y = Neg(a)}")
    with caplog.at_level(logging.WARNING):
        _optimize(model, *patterns)
    assert [r.message.partition(".")[0] for r in caplog.records] in (
        ["Optimization stopped: rules seem to undo each other"],
        ["Optimization stopped: rules and passes seem to undo each other"],
    )
    onnx.checker.check_model(ir.to_proto(model))


class SinOverCos(Rule):
    """``Sin(x) -> Cos(x) -> Tan(x)``: in two rounds, as each looks at what the last wrote."""

    roots = ("Sin", "Cos")

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x, other = node.inputs[0], "Cos" if node.op_type == "Sin" else "Tan"
        return Match([node.outputs[0]], lambda op: op.call(other, x))


class FarBehind(Rule):
    """``Neg(Exp(Abs(Tan(x)))) -> Neg(x)``."""

    roots = ("Neg",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        value = node.inputs[0]
        for kind in ("Exp", "Abs", "Tan"):
            inner = graph.producer(value, kind)
            if inner is None:
                return None
            value = inner.inputs[0]
        return Match([node.outputs[0]], lambda op: op.Neg(value))


def test_what_changed_far_behind_a_root_is_seen() -> None:
    """The root was looked at before, and its inputs are the same."""
    model = model_of("(float[N] x) => (float[N] y) {s = Sin(x) a = Abs(s) e = Exp(a) y = Neg(e)}")
    _optimize(model, SinOverCos, FarBehind)
    assert [n.op_type for n in model.graph] == ["Neg"]


def test_rounds_are_limited() -> None:
    """None, one, and as many as it takes: each round takes one cast of the chain."""
    text = "(float[N] x) => (float[N] y) {a = Exp(x) y = Neg(a)}"
    for limit in (0, 1, 5):
        report = _optimize(model_of(text), ExpToSin, SinToExp, max_iter=limit)
        assert report.rounds == limit
        assert sum(r.matches for r in report.rules.values()) == limit


WRONG: dict[str, Callable[[Any, Any], Any]] = {
    "results": lambda op, x: (op.Exp(x), op.Exp(x)),
    "turns FLOAT into INT64": lambda op, x: op.Cast(x, to=7),
    "turns .* into": lambda op, x: op.Unsqueeze(x, [0]),
    "turns FLOAT into DOUBLE": lambda op, x: _typed(op.call("Gelu", x, domain="com.microsoft")),
}


def _typed(result: ir.Value) -> ir.Value:
    result.type = ir.TensorType(ir.DataType.DOUBLE)
    return result


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_rule_is_an_error(message: str) -> None:
    """Another number of results, another type, another shape; it is named."""

    class Wrong(Rule):
        """Builds what was not asked for."""

        roots = ("Exp",)

        def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
            return Match([node.outputs[0]], lambda op: WRONG[message](op, node.inputs[0]))

    with pytest.raises(OptimizeError, match=f"Wrong.*{message}"):
        _optimize(model_of("(float[N] x) => (float[N] y) {y = Exp(x)}"), Wrong)


class EqualByKernel(Rule):
    """``Equal(x, y) -> com.microsoft.Gelu(x)``: a kernel of which ONNX knows no type."""

    roots = ("Equal",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        x = node.inputs[0]
        return Match([node.outputs[0]], lambda op: op.call("Gelu", x, domain="com.microsoft"))


def test_a_result_of_a_kernel_has_the_type_of_what_it_replaces() -> None:
    """Where the rule says none."""
    model = model_of("(float[N] x, float[N] y) => (bool[N] z) {e = Equal(x, y) z = Not(e)}")
    _optimize(model, EqualByKernel)
    assert [n.op_type for n in model.graph] == ["Gelu", "Not"]
    assert [n.outputs[0].dtype for n in model.graph] == [ir.DataType.BOOL, ir.DataType.BOOL]


def test_readers_of_an_output_do_without_its_node() -> None:
    """The output needs a node of its own, they do not."""
    changed = _assert_same_numbers(
        """(float[N] x) => (float[N] y, float[N] z) <float c = {1}> {
            y = Mul(x, c)
            z = Exp(y)
        }""",
        "NeutralElement",
    )
    assert [list(n.input) for n in changed.graph.node if n.op_type == "Exp"] == [["x"]]


class MulToMatMul(Rule):
    """``Mul(x, w) -> MatMul(x, w)``: wrong, and of vectors."""

    roots = ("Mul",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        return Match([node.outputs[0]], lambda op: op.MatMul(*node.inputs))


class NegToTranspose(Rule):
    """``Neg(x) -> Transpose(x)``: of a vector, which has no other order."""

    roots = ("Neg",)

    def match(self, node: ir.Node, graph: GraphView) -> Match | Refusal | None:
        return Match([node.outputs[0]], lambda op: op.Transpose(node.inputs[0]))


@pytest.mark.parametrize(
    ("rule", "node", "reason"),
    [
        (MulToMatMul, "Mul(x, x)", "a product with a vector is fused wrongly"),
        (NegToTranspose, "Neg(x)", "an identity Transpose is computed wrongly"),
    ],
)
def test_what_onnxruntime_computes_wrongly_is_never_written(
    rule: type[Rule], node: str, reason: str
) -> None:
    """Whatever a rule asks for."""
    model = model_of(f"(float[3] x) => (float[3] y) {{y = {node}}}")
    report = _optimize(model, rule)
    assert dict(report.rules[rule.__name__].refusals) == {reason: 1}
    assert [n.op_type for n in model.graph] == [node[:3]]


class Shown(Rule):
    """Notes what it is shown, and matches nothing."""

    roots = ("Add",)

    def __init__(self, **filters: Any) -> None:
        self.__dict__.update(filters)
        self.nodes: dict[str, None] = {}

    def match(self, node: ir.Node, graph: GraphView) -> None:
        self.nodes[str(node.outputs[0].name)] = None


@pytest.mark.parametrize(
    ("filters", "shown"),
    [
        ({}, "abcd"),
        ({"reads": ("Constant",)}, "bd"),
        ({"reads": ("Neg", "Mul")}, "c"),
        ({"of_type": ir.DataType.INT64}, "d"),
        ({"of_type": ir.DataType.INT64, "reads": ("Neg",)}, ""),
    ],
)
def test_a_rule_says_what_it_is_shown(filters: dict[str, Any], shown: str) -> None:
    """By what is read, and by what is given."""
    rule = Shown(**filters)
    model = model_of(
        """(float[N] x, int64[N] i) => (float[N] a, float[N] b, float[N] c, int64[N] d)
        <float one = {1.0}, int64 two = {2}> {
            a = Add(x, x) b = Add(one, x) n = Neg(x) c = Add(x, n) d = Add(i, two)
        }"""
    )
    _optimize(model, rule)
    assert "".join(rule.nodes) == shown


class Reversed(GraphPass):
    """Notes how many nodes there are when it runs."""

    last = True

    def __init__(self) -> None:
        self.seen: list[int] = []

    def run(self, graph: GraphView) -> int:
        self.seen.append(graph.graph.num_nodes())
        return 1


def test_the_last_pass_runs_once_when_all_is_done() -> None:
    """What it changes is no reason to begin again."""
    work = Reversed()
    model = model_of("(float[N] x) => (float[N] y) {q = Mul(x, x) n = Neg(q) y = Neg(n)}")
    report = _optimize(model, work, NegOfSquare)
    assert work.seen == [model.graph.num_nodes()]
    assert report.rules["Reversed"].tried == 1
