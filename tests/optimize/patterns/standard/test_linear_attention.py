"""A step of linear attention is one operator from opset 27 on."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from dort_rewriter import to_onnx
from dort_rewriter.ort_module import max_opset

NEWEST = onnx.defs.onnx_opset_version()

pytestmark = pytest.mark.skipif(NEWEST < 27, reason="this onnx has no LinearAttention")


def step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    rule: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token, as models of transformers spell it."""
    if "gated" in rule:
        gate = g.exp()
        state = state * (gate.unsqueeze(-1) if gate.dim() == 3 else gate[..., None, None])
    if "delta" in rule:
        known = (state * k.unsqueeze(-1)).sum(dim=-2)
        v = (v - known) * beta.unsqueeze(-1)
    state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
    return (state * q.unsqueeze(-1)).sum(dim=-2), state


def given(*, by_key: bool) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    b, heads, wide, deep = 2, 3, 4, 5
    decay = -torch.rand(b, heads, wide) if by_key else -torch.rand(b, heads)
    q, k = torch.randn(2, b, heads, wide)
    v, state = torch.randn(b, heads, deep), torch.randn(b, heads, wide, deep)
    return q, k, v, state, decay, torch.rand(b, heads)


def exported(function: Any, inputs: tuple[torch.Tensor, ...], opset: int = 27) -> onnx.ModelProto:
    return to_onnx(function, inputs, target_opset=opset, options={"processor": "any"})


def used(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


RULES = [(rule, False) for rule in ("linear", "gated", "delta", "gated_delta")]


@pytest.mark.parametrize(("rule", "by_key"), [*RULES, ("gated", True), ("gated_delta", True)])
def test_a_step_is_one_node(rule: str, by_key: bool) -> None:
    function, inputs = functools.partial(step, rule=rule), given(by_key=by_key)
    proto = exported(function, inputs)
    assert set(used(proto)) == {"Reshape", "LinearAttention"}
    onnx.checker.check_model(proto, full_check=True)
    feeds = {i.name: x.numpy() for i, x in zip(proto.graph.input, inputs, strict=True)}
    judges: list[Any] = [ReferenceEvaluator(proto)]
    if max_opset() >= 27:
        judges.append(onnxruntime.InferenceSession(proto.SerializeToString()))
    for judge in judges:
        for got, want in zip(judge.run(None, feeds), function(*inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_before_it_and_where_it_is_something_else() -> None:
    inputs = given(by_key=False)
    gated = functools.partial(step, rule="gated_delta")
    assert "LinearAttention" not in used(exported(gated, inputs, 26))

    def along_values(*given: torch.Tensor) -> torch.Tensor:
        return (step(*given, rule="linear")[1] * given[2].unsqueeze(-2)).sum(dim=-1)

    def of_the_state(
        *given: torch.Tensor,
    ) -> torch.Tensor:  # no place for a node
        state = step(*given, rule="linear")[1]
        return (state * state.sum(-1).exp().unsqueeze(-1)).sum(dim=-2)

    def other_keys(*given: torch.Tensor) -> torch.Tensor:
        q, k, v, state, _, beta = given
        delta = (v - (state * q.unsqueeze(-1)).sum(dim=-2)) * beta.unsqueeze(-1)
        return ((state + k.unsqueeze(-1) * delta.unsqueeze(-2)) * q.unsqueeze(-1)).sum(dim=-2)

    for function in (along_values, of_the_state):
        assert "LinearAttention" not in used(exported(function, inputs)), function
    proto = exported(other_keys, inputs)  # its delta is a value like any other
    (node,) = (n for n in proto.graph.node if n.op_type == "LinearAttention")
    assert {a.s for a in node.attribute if a.name == "update_rule"} == {b"linear"}
