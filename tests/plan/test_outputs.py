from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.aten import let_layouts_vary, results_of
from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.plan.outputs import OutputPlan, plan_outputs
from dort_rewriter.signature import InputDim, SizeExpression, ViewStep


def plan(
    function: Callable[..., Any], *args: Any, mode: str = "fake", free: bool = False
) -> OutputPlan:
    """Plan the results of a function; ``free`` says that nobody looks at their layouts."""
    traced = make_fx(function, tracing_mode=mode)(*args)
    if free:
        let_layouts_vary(traced.graph, range(len(results_of(traced.graph))))
    return plan_outputs(traced)


def test_arguments_duplicates_and_constants_cost_nothing() -> None:
    result = plan(lambda x: [x, x + 1, x, None, 3], torch.zeros(2, 3))
    assert [s.source for s in result.slots] == ["input", "model", "output", "constant", "constant"]
    assert len(result.model_outputs) == 1


def test_a_view_of_something_computed_asks_for_its_base() -> None:
    result = plan(lambda x: (x + 1).view(6).unsqueeze(0), torch.zeros(2, 3), mode="symbolic")
    ((output,), (slot,)) = result.model_outputs, result.slots
    assert output.node.target is torch.ops.aten.add.Tensor
    assert [step.op for step in slot.views] == ["aten::view", "aten::unsqueeze"]


def test_views_of_known_sizes_are_one() -> None:
    result = plan(lambda x: (x + 1).view(6).unsqueeze(0), torch.zeros(2, 3))
    ((output,), (slot,)) = result.model_outputs, result.slots
    assert output.node.target is torch.ops.aten.add.Tensor
    assert slot.views == (ViewStep("aten::as_strided", ((1, 6), (6, 1), 0)),)


def test_views_that_undo_each_other_are_none() -> None:
    result = plan(lambda x: (x + 1).t().t(), torch.zeros(2, 3), free=True)
    assert result.model_outputs[0].node.target is torch.ops.aten.add.Tensor
    assert result.slots[0].views == ()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1).t().unsqueeze(1),
        lambda x: torch.relu(x.t()).view(3, 2, 1).transpose(0, 2),
        lambda x: (x.t() * 2).t().view(6).expand(4, 6),
        lambda x: (x.t() > 0).unsqueeze(0),
        lambda x: (y := x + 1, y[1:].t(), y.t()),
    ],
)
def test_what_the_caller_gets_lies_in_memory_as_in_eager_mode(function: Any) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 3)
    expected, got = function(x), torch.compile(function, backend=OrtBackend())(x)
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (got, expected)), strict=True):
        torch.testing.assert_close(a, b)
        assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())


def test_a_part_of_something_computed_does_not_keep_all_of_it() -> None:
    result = plan(lambda x: (x + 1).view(6)[:2], torch.zeros(2, 3), free=True)
    assert result.model_outputs[0].node.target is torch.ops.aten.slice.Tensor
    assert result.slots[0].views == ()


def test_a_part_that_the_caller_sees_is_a_view_of_the_whole() -> None:
    result = plan(lambda x: (x + 1).view(6)[1:3], torch.zeros(2, 3))
    assert result.model_outputs[0].node.target is torch.ops.aten.add.Tensor
    assert result.slots[0].views == (ViewStep("aten::as_strided", ((2,), (1,), 1)),)


def test_a_part_of_unknown_size_is_taken_by_the_same_operators() -> None:
    result = plan(lambda x: (x + 1).chunk(2)[1], torch.zeros(4, 3), mode="symbolic")
    (split, item) = result.slots[0].views
    assert (split.op, item) == ("aten::split.Tensor", ViewStep("getitem", (1,)))


def test_memory_with_gaps_is_laid_out() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.copy(torch.empty_strided((2, 3), (4, 1)), x)

    assert plan(function, torch.zeros(2, 3)).slots[0].views == (ViewStep("lay_out", ((4, 1),)),)


def test_a_view_of_a_size_that_is_computed_stays_in_torch() -> None:
    result = plan(lambda x, n: x[: n.item()], torch.zeros(4, 3), torch.tensor(2), mode="symbolic")
    assert [n.target for n in result.left] == [torch.ops.aten.slice.Tensor]


def test_a_part_of_what_is_returned_anyway_is_a_view() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        y = x + 1
        return [y, y[:1], x[1:]]

    result = plan(function, torch.zeros(2, 3))
    assert [s.source for s in result.slots] == ["model", "model", "input"]
    assert len(result.model_outputs) == 1
    assert result.slots[1].views == (ViewStep("aten::as_strided", ((1, 3), (3, 1), 0)),)


def test_a_result_stored_in_another_order_is_asked_for_in_that_order() -> None:
    result = plan(lambda x: torch.relu(x.t()), torch.zeros(2, 3))
    assert result.model_outputs[0].order == (1, 0)
    assert result.slots[0].views == (ViewStep("aten::as_strided_", ((3, 2), (1, 3), 0)),)


def test_a_result_of_unknown_sizes_is_permuted_back() -> None:
    result = plan(lambda x: torch.relu(x.t()), torch.zeros(2, 3), mode="symbolic", free=True)
    assert result.model_outputs[0].order == (1, 0)
    assert [step.op for step in result.slots[0].views] == ["aten::permute"]


def test_sizes_come_from_the_arguments() -> None:
    result = plan(lambda x: x.shape[0] * 2 + x.shape[1], torch.zeros(2, 3), mode="symbolic")
    assert result.slots[0].source == "size"
    product = SizeExpression("mul", (2, InputDim(0, 0)))
    assert result.slots[0].size == SizeExpression("add", (InputDim(0, 1), product))
    assert result.model_outputs == ()


def test_one_of_several_new_tensors_is_no_view() -> None:
    result = plan(lambda x: x.max(0)[0], torch.zeros(2, 3))
    assert (result.slots[0].views, result.left) == ((), ())
