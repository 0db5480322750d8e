"""A fault in the middle of the work: what the caller sees, and that the next call works."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

from dort_rewriter import ExecutionError, OrtBackend, install, installed, uninstall
from dort_rewriter.backends import building, onnxrt_graphs
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session, session_options
from tests.backends.ways import compile_strictly
from tests.runtime.graphs import parse, result, signature, tensor

X = torch.randn(4, 8)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (onnxrt_graphs, "compile_with_aot"),
        (building, "convert_graph"),
        (building, "optimize"),
        (building, "create_session"),
        (building, "Executor"),
    ],
)
def test_an_interrupt_while_compiling_reaches_the_caller(
    module: Any, name: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, interrupts = getattr(module, name), [KeyboardInterrupt()]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, interrupted)
    compiled = torch.compile(model, backend=OrtBackend({"cache": False}))
    with pytest.raises(KeyboardInterrupt):
        compiled(X)
    torch.testing.assert_close(compiled(X), model(X))


def test_an_interrupt_while_running_reaches_the_caller(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, interrupts = onnxrt_graphs._watch, [KeyboardInterrupt()]

    def interrupted(backend: Any, graph: Any, run: Any) -> Any:
        def call(args: list[Any]) -> Any:
            if interrupts:
                raise interrupts.pop()
            return run(args)

        return watch(backend, graph, call)

    monkeypatch.setattr(onnxrt_graphs, "_watch", interrupted)
    compiled = torch.compile(model, backend=(backend := OrtBackend()))
    with pytest.raises(KeyboardInterrupt):
        compiled(X)
    torch.testing.assert_close(compiled(X), model(X))
    assert backend.execution_count == 1


def test_a_session_out_of_memory_is_an_error_of_python() -> None:
    """The sizes that do not fit are refused; the session goes on with others."""
    body = "(float[N,M] x) => (float[N,N] y) { t = Transpose<perm=[1,0]>(x) y = MatMul(x, t) }"
    session = create_session(parse(body), options=session_options())
    run = Executor(session, signature([tensor("x", shape=("N", "M"))], [result("y")]))
    too_large = torch.zeros(1 << 22, 1)  # its product takes 64 TB
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"(?i)alloc|memory"):
            run(too_large)
        (y,) = run(torch.ones(2, 3))
        torch.testing.assert_close(y, torch.full((2, 2), 3.0))


def test_what_is_compiled_outlives_the_hook(model: nn.Module) -> None:
    """Taken back while models live: what they have is used, and new sizes are compiled."""
    with installed():
        compiled, _ = compile_strictly(model, fallback=True)
        torch.testing.assert_close(compiled(X), model(X))
    uninstall()
    try:
        got = torch.autograd.grad(compiled(X).sum(), list(model.parameters()))
    finally:
        install()  # as the other tests of this process found it
    torch.testing.assert_close(got, torch.autograd.grad(model(X).sum(), list(model.parameters())))


def test_a_transform_that_raises_costs_one_warning(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(proto: Any) -> None:
        raise ExecutionError("a transform of the user fails")

    compiled = torch.compile(model, backend=OrtBackend({"pre_ort_model_transforms": (spoil,)}))
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"), torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
    assert len([r for r in caplog.records if r.name.startswith("dort_rewriter")]) == 1
