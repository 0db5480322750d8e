"""Which session serves which call: reuse, several ranks, failures, and who is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import ExecutionError, OrtBackend, OrtBackendOptions
from dort_rewriter.backends import onnxrt_graphs
from tests.backends.ways import HAS_ORT_BACKEND, compile_strictly, models


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.relu.default(x) * 2 + 1


def _backend(**options: Any) -> Any:
    chosen = OrtBackendOptions(**{"fallback": False, "use_aot_autograd": False, **options})
    if HAS_ORT_BACKEND:
        from torch.onnx._internal.onnxruntime import OrtBackend as TorchBackend

        return TorchBackend(chosen)
    return OrtBackend(chosen)


def _infos(backend: Any, graph: torch.fx.GraphModule) -> list[Any]:
    return backend._all_ort_execution_info.execution_info_per_graph_module[graph]


ARGUMENTS = (
    torch.randn(3),
    torch.randn(2, 3),
    torch.randn(5),
    torch.arange(-2, 3),
    torch.randn(2, 3, dtype=torch.float64),
)


def test_a_graph_of_aten_operators_has_a_session_for_each_schema() -> None:
    backend = _backend()
    graph = make_fx(function)(ARGUMENTS[0])
    compiled = backend.compile(graph, ARGUMENTS[:1])
    for count in range(1, 3):
        for x in (*ARGUMENTS, torch.randn(3)):
            torch.testing.assert_close(compiled(x), function(x))
        assert len(_infos(backend, graph)) == len(ARGUMENTS)
        assert backend.execution_count == 6 * count
    assert [sum(i.is_supported(x) for i in _infos(backend, graph)) for x in ARGUMENTS] == [1] * 5


def test_the_session_for_a_schema_is_found_in_the_table() -> None:
    backend = OrtBackend(OrtBackendOptions(use_aot_autograd=False))
    graph = make_fx(function)(ARGUMENTS[0])
    compiled = backend.compile(graph, ARGUMENTS[:1])
    compiled(ARGUMENTS[0]), compiled(ARGUMENTS[1])
    table = backend._all_ort_execution_info
    found = [table.search_reusable_session_execution_info(graph, x) for x in ARGUMENTS[:3]]
    assert found == [*_infos(backend, graph), None]


def test_a_graph_of_dynamo_is_compiled_without_aot_autograd() -> None:
    backend = _backend()
    compiled = torch.compile(function, backend=backend, dynamic=False)
    for x in ARGUMENTS[:2]:
        torch.testing.assert_close(compiled(x), function(x))
    assert backend.execution_count == 2


def test_a_graph_by_hand_carries_no_metadata() -> None:
    graph = torch.fx.symbolic_trace(function)
    assert all("val" not in n.meta for n in graph.graph.nodes)
    backend = _backend()
    compiled = backend.compile(graph, ARGUMENTS[:1])
    torch.testing.assert_close(compiled(ARGUMENTS[0]), function(ARGUMENTS[0]))


@pytest.mark.parametrize("fallback", [False, True])
def test_arguments_a_graph_cannot_take_do_not_cost_its_session(fallback: bool) -> None:
    backend = _backend(fallback=fallback)
    graph = make_fx(lambda x: x.view(3, 1) * 2)(torch.randn(3))
    compiled = backend.compile(graph, (torch.randn(3),))
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.view(3, 1) * 2)
    with pytest.raises(RuntimeError):
        compiled(torch.randn(4))
    torch.testing.assert_close(compiled(x), x.view(3, 1) * 2)
    assert backend.execution_count == 2


def test_the_supported_operators_can_be_asked_for() -> None:
    backend = OrtBackend()
    graph = make_fx(lambda x: torch.linalg.inv(x).relu())(torch.eye(2))
    nodes = {n.name: n for n in graph.graph.nodes if n.op == "call_function"}
    support = backend._supported_ops
    assert support is backend._supported_ops
    assert support.is_node_supported({}, nodes.pop("linalg_inv_ex")) is False
    assert all(support.is_node_supported({}, n) for n in nodes.values() if "relu" in n.name)


# -- failures ---------------------------------------------------------------------------------


class Failing:
    """A run of ONNX Runtime that fails as one does, from a given call on."""

    def __init__(self, after: int = 0) -> None:
        self.left = after
        self.late = False
        """Whether it has run all its nodes by then."""
        self.seen: list[list[Any]] = []

    def __call__(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def run(arguments: list[Any]) -> Any:
            if self.left > 0:
                self.left -= 1
                return wrapped(arguments)
            self.seen.append(list(arguments))
            if self.late:
                wrapped(list(arguments))
            raise ExecutionError("ONNX Runtime failed: Node 'n1' is Relu(input0).")

        return run


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Make every session fail at its second run."""
    failure = Failing(after=1)
    watch = onnxrt_graphs._watch

    def broken(backend: Any, graph_module: Any, run: Any) -> Any:
        return watch(backend, graph_module, failure(run))

    monkeypatch.setattr(onnxrt_graphs, "_watch", broken)
    return failure


def test_a_session_that_fails_at_run_time_is_replaced_by_torch_once(
    failing: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    compiled, backend = compile_strictly(lambda x, y: (x.relu() + y, x), fallback=True)
    x, y = torch.randn(3), torch.randn(3)
    kept = x.clone(), y.clone()
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"):
        for _ in range(4):
            got, same = compiled(x, y)
            torch.testing.assert_close(got, x.relu() + y)
            assert same is x
    torch.testing.assert_close((x, y), kept)
    assert len(failing.seen) == 1
    assert backend.execution_count == 1
    texts = [r.getMessage() for r in caplog.records if r.name.startswith("dort_rewriter")]
    assert len(texts) == 1
    assert "Relu" in texts[0]


def test_a_session_that_fails_in_training_leaves_gradients_right(failing: Failing) -> None:
    failing.left = 3
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())
    compiled, _ = compile_strictly(model, fallback=True)
    x = torch.randn(2, 3)
    want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for _ in range(4):
        got = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
        torch.testing.assert_close(got, want)
    assert len(failing.seen) == 2  # forward and backward, once each


def test_what_a_session_drew_before_it_failed_is_drawn_again(failing: Failing) -> None:
    failing.late = True

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.bernoulli(x.sigmoid()).exp() * x.sin() + 1

    compiled, backend = compile_strictly(function, fallback=True)
    x = torch.randn(64)
    for seed in range(3):
        found = []
        for run in (function, compiled):
            torch.manual_seed(seed)
            found.append((run(x), torch.rand(2)))
        torch.testing.assert_close(*found)
    assert len(failing.seen) == 1
    assert backend.execution_count == 1


def test_strict_mode_raises_when_a_session_fails(failing: Failing) -> None:
    compiled, _ = compile_strictly(torch.relu)
    x = torch.randn(3)
    compiled(x)
    for _ in range(2):
        with pytest.raises(ExecutionError, match="Relu"):
            compiled(x)


@pytest.mark.load_sensitive
def test_threads_share_a_failure(failing: Failing, caplog: pytest.LogCaptureFixture) -> None:
    compiled, _ = compile_strictly(torch.relu, fallback=True)
    x = torch.randn(64)
    compiled(x)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(compiled(x))) for _ in range(6)]
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 6
    assert all(torch.equal(r, x.relu()) for r in results)
    assert len([r for r in caplog.records if "runs in torch from now on" in r.getMessage()]) == 1


def _lose_input(model: Any) -> None:
    model.graph.node[0].input[0] = "nowhere"


def _rename_operator(model: Any) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def _forget_origin(model: Any) -> None:
    _rename_operator(model)
    del model.graph.node[0].metadata_props[:]


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_lose_input, "nowhere"),
        (_rename_operator, "NoSuchOperator"),
        (_forget_origin, "NoSuchOperator"),
    ],
)
def test_a_session_that_cannot_be_built_is_replaced_by_torch_once(
    spoil: Any, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    compiled, backend = compile_strictly(
        torch.relu, fallback=True, pre_ort_model_transforms=(spoil,)
    )
    x = torch.randn(3)
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), x.relu())
    assert models(backend) == []
    assert backend.execution_count == 0
    said = [r for r in caplog.records if "run" in r.getMessage() and "torch" in r.getMessage()]
    assert [r.levelno for r in said] == [logging.WARNING]
    assert named in said[0].getMessage()
