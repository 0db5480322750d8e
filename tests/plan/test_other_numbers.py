"""What a provider computes with other numbers than eager mode is torch's, with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.backends.onnxrt_graphs import make_recipe
from dort_rewriter.errors import OptionError
from dort_rewriter.plan import recipe as recipes
from dort_rewriter.plan.graph_plan import belongs_in_torch, plan_graph
from dort_rewriter.plan.nodes import Chooser, unsupported
from dort_rewriter.plan.other_numbers import OF_FLOATS, OTHER_NUMBERS, others_of
from dort_rewriter.runtime.providers import CPU, CUDA, OPENVINO


def _graph(function: Callable[..., Any], *dtypes: torch.dtype) -> torch.fx.GraphModule:
    with FakeTensorMode():
        return make_fx(function)(*(torch.empty(2, 4, 6, dtype=d) for d in dtypes))


def _reasons(graph: torch.fx.GraphModule, provider: str) -> list[str | None]:
    chooser = Chooser(make_recipe(OrtBackend()), provider)
    calls = [n for n in graph.graph.nodes if n.op == "call_function"]
    return [chooser.choose(n).reason for n in calls]


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        (torch.float64, "computes float64 in float32"),
        (torch.float16, "without their roundings"),
        (torch.bfloat16, "without their roundings"),
        (torch.int64, "in int32"),
        (torch.int32, "in float32"),
        (torch.int8, "wraps around"),
        (torch.uint8, "wraps around"),
    ],
)
def test_types_that_openvino_computes_in_others(dtype: torch.dtype, said: str) -> None:
    graph = _graph(torch.neg, dtype)
    (reason,) = _reasons(graph, OPENVINO)
    assert reason is not None
    assert said in reason
    assert reason in OTHER_NUMBERS
    (node,) = (n for n in graph.graph.nodes if n.op == "call_function")
    assert belongs_in_torch(unsupported(node, reason)), "it is no error with fallback=False"
    assert _reasons(graph, CPU) == _reasons(graph, CUDA) == [None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_types_that_it_has(dtype: torch.dtype) -> None:
    assert _reasons(
        _graph(lambda x: x & x if dtype is torch.bool else x + x, dtype), OPENVINO
    ) == [None]


def test_operators_that_let_a_nan_go() -> None:
    (reason,) = _reasons(_graph(lambda x: x.amax(1), torch.float32), OPENVINO)
    assert reason is not None
    assert "NaN" in reason
    kept = _graph(lambda x: torch.nn.functional.max_pool2d(x, 2), torch.float32)
    assert _reasons(kept, OPENVINO)[0] is None, "its integers are places in a tensor"


def test_a_graph_is_cut_where_its_numbers_are_others() -> None:
    """What reads integers is torch's, the rest one session's."""

    def function(ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ((x + (ids * 2).float()) * x).sigmoid().tanh()

    graph = _graph(function, torch.int64, torch.float32)
    others, count = others_of(graph.graph, OPENVINO)
    assert (others.total(), count) == (2, 6)
    assert others_of(graph.graph, CPU)[0].total() == 0
    made = make_recipe(OrtBackend(OrtBackendOptions(min_block_size=1)))
    object.__setattr__(made, "select_providers", lambda *_: [(OPENVINO, {}), (CPU, {})])
    plan = plan_graph(graph, made)
    assert plan.provider == OPENVINO
    assert [f.op for f in plan.fallbacks] == ["aten::mul.Tensor", "aten::_to_copy"]
    (block,) = plan.blocks.values()
    assert [str(name) for name, _ in block.providers([])] == [OPENVINO, CPU]


@pytest.fixture(name="made")
def recipe_on_openvino(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A recipe, and nothing said about its provider before."""
    monkeypatch.setattr(recipes, "_passed_on", set())
    made = make_recipe(OrtBackend())
    object.__setattr__(made, "select_providers", lambda *_: [(OPENVINO, {}), (CPU, {})])
    return made


@pytest.mark.parametrize("in_a_file", [False, True])
def test_a_graph_of_other_numbers_is_the_next_providers(
    made: Any, in_a_file: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Half of it is enough in a process, where torch computes the rest; not in a file."""
    few = _graph(lambda x: (x * 2 + 1).neg(), torch.int64)
    most = _graph(lambda x: (x + 1).neg().sin().double(), torch.float32)
    object.__setattr__(made, "in_a_file", in_a_file)
    for _ in range(2):
        assert made.provider_of(few) == CPU
    (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert said.startswith(f"A graph runs on {CPU}")
    assert f"{OPENVINO} has other numbers than torch for 3 of 3 operators" in said
    assert made.provider_of(most) == (CPU if in_a_file else OPENVINO)
    plan = plan_graph(few, made)
    assert plan.whole
    assert [str(name) for name, _ in plan.providers([])] == [CPU]


@pytest.mark.parametrize("required", [False, True])
def test_who_insists_gets_an_error(made: Any, required: bool) -> None:
    """For what is computed, and for all of a file; not for what is counted in integers."""
    if required:
        chosen = [(OPENVINO, {"required": True}), (CPU, {})]
        object.__setattr__(made, "select_providers", lambda *_: chosen)
    else:
        object.__setattr__(made, "options", OrtBackendOptions(fallback=False))
    counted = _graph(lambda x: x * 2 + 1, torch.int64)
    assert made.provider_of(counted) == CPU
    for dtype in (torch.float64, torch.bfloat16):
        with pytest.raises(OptionError, match="other numbers than torch for 1 of 1 operators"):
            made.provider_of(_graph(torch.sin, dtype))
    object.__setattr__(made, "in_a_file", True)
    with pytest.raises(OptionError, match="since a file has no torch beside it"):
        made.provider_of(counted)
    assert set(OTHER_NUMBERS) > OF_FLOATS
