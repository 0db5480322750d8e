"""Rules that are checked as they are applied: which one made an invalid model is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import pytest
import torch

from dort_rewriter import OrtBackend, env, to_onnx
from dort_rewriter.errors import OptimizeError
from dort_rewriter.optimize.patterns.base import GraphPass, Match, Rule
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.view import GraphView
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from tests.optimize.rewrites import make_session, model_of

TEXT = "(float[2,3] x) => (float[2,3] z) { y = Exp(x) z = Neg(y) }"


class Silent(Rule):
    """Replaces Exp by something else, and claims nothing of its type and shape."""

    roots = ("Exp",)
    lowers = "Exp nodes"
    effect: Callable[[Any, ir.Value], ir.Value]

    def match(self, node: ir.Node, graph: GraphView) -> Match:
        x = node.inputs[0]
        assert x is not None
        return Match([node.outputs[0]], lambda op: _forget(type(self).effect(op, x)))


def _forget(value: ir.Value) -> ir.Value:
    value.type = value.shape = None
    return value


class AnotherShape(Silent):
    effect = staticmethod(lambda op, x: op.Transpose(x, perm=[1, 0]))


class AnotherType(Silent):
    effect = staticmethod(lambda op, x: op.Greater(x, x))


class AnotherRank(Silent):
    effect = staticmethod(lambda op, x: op.Unsqueeze(x, [0]))


class NoSuchAxis(Silent):
    effect = staticmethod(lambda op, x: op.Squeeze(x, [5]))


class NoSuchOperator(Silent):
    effect = staticmethod(lambda op, x: op.call("Nothing", x, domain="com.microsoft"))


class Unsorted(GraphPass):
    """Moves the first node behind those that read it."""

    def run(self, graph: GraphView) -> int:
        first, *rest = graph.graph
        if first.op_type != "Exp":
            return 0
        graph.graph.remove(first)
        graph.graph.insert_after(rest[-1], first)
        return 1


def _optimize(rule: type[Rule] | type[GraphPass], check: bool = True) -> None:
    optimize(
        model_of(TEXT),
        OptimizationOptions(patterns=[rule], check_rules=check),
        has_kernel=lambda *args, **kwargs: True,
        make_session=make_session,
    )


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (
            AnotherShape,
            r"AnotherShape, applied at Exp .* gives .* the shape \[3, 2\], not \[2,3\]",
        ),
        (AnotherType, "AnotherType, applied at Exp .* gives .* the type BOOL, not FLOAT"),
        (AnotherRank, r"AnotherRank, applied at Exp .* the shape \[1, 2, 3\], not \[2,3\]"),
        (NoSuchAxis, "NoSuchAxis, applied at Exp .* Squeeze"),
        (NoSuchOperator, "The model after NoSuchOperator is invalid: .*Nothing"),
        (Unsorted, "The model after Unsorted is invalid: Neg .* reads .* before it is computed"),
    ],
)
def test_the_rule_is_named(rule: type[Rule] | type[GraphPass], found: str) -> None:
    """With the node it was applied at, and the one that is wrong."""
    with pytest.raises(OptimizeError, match=f"(?s){found}"):
        _optimize(rule)
    _optimize(rule, check=False)


def test_a_model_that_was_invalid_before() -> None:
    """No rule is blamed for it."""
    model = model_of(TEXT)
    next(iter(model.graph)).outputs[0].shape = ir.Shape([3, 2])
    options = OptimizationOptions(check_rules=True)
    with pytest.raises(OptimizeError, match="The model, before any rule, is invalid: Exp"):
        optimize(model, options, has_kernel=lambda *args, **kwargs: True)


def test_the_environment_checks_all_models() -> None:
    with (
        env.temporarily("DORT_CHECK_RULES", "1"),
        pytest.raises(OptimizeError, match="NoSuchAxis"),
    ):
        _optimize(NoSuchAxis, check=False)


class Exp(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One node."""
        return x.exp()


def test_options_of_a_backend_and_of_the_exporter() -> None:
    """The switch stands beside the other options of the backend too."""
    options = OrtBackendOptions(check_rules=True, optimization={"patterns": [NoSuchAxis]})
    assert options.optimization.check_rules
    x = torch.randn(2, 3)
    with pytest.raises(OptimizeError, match="NoSuchAxis"):
        to_onnx(Exp(), (x,), options={"check_rules": True, "patterns": [NoSuchAxis]})
    sound = {"check_rules": True, "fallback": False}
    compiled = torch.compile(lambda x: (x.exp() + 1) * 2, backend=OrtBackend(sound))
    torch.testing.assert_close(compiled(x), (x.exp() + 1) * 2)
