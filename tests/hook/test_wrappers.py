"""Who answers a call on torch's class: the variable is read each time, sessions are kept."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from dort_rewriter.hook import wrappers
from dort_rewriter.hook.installer import installed
from dort_rewriter.hook.patch import STATE


class Recorded(ModuleType):
    """Stands for the module of the backend, and says which of its functions was called."""

    def __init__(self) -> None:
        super().__init__(wrappers.SOURCE)
        self.known: set[object] = set()

    def call_backend(self, backend: object, *args: Any, **kwargs: Any) -> Any:
        return "ours", "call", backend, args, kwargs

    def compile_graph(self, backend: object, *args: Any, **kwargs: Any) -> Any:
        return "ours", "compile", backend, args, kwargs

    def accelerated_call(self, backend: object, *args: Any, **kwargs: Any) -> Any:
        return "ours", "accelerated", backend, args, kwargs

    def serves(self, backend: object, graph_module: object) -> bool:
        return graph_module in self.known


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    module = Recorded()
    monkeypatch.setitem(sys.modules, wrappers.SOURCE, module)
    monkeypatch.setattr(STATE, "installed", True)
    return module


def torch_code(*args: Any, **kwargs: Any) -> Any:
    return "torch", args, kwargs


CALLS = {
    "call": wrappers.call_backend,
    "compile": wrappers.compile_graph,
    "accelerated": wrappers.accelerated_call,
}


@pytest.mark.parametrize("name", CALLS)
def test_the_variable_decides_at_each_call(
    name: str, ours: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value, answer in (("1", "ours"), ("0", "torch"), ("", "torch"), ("1", "ours")):
        monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", value)
        assert CALLS[name](torch_code, "backend", ("graph", 1), {"k": 2})[0] == answer
    assert CALLS[name](torch_code, "backend", ("graph", 1), {"k": 2}) == (
        "ours",
        name,
        "backend",
        ("graph", 1),
        {"k": 2},
    )
    monkeypatch.delenv("ONNXRT_CHANGE_REWRITER")
    assert CALLS[name](torch_code, "backend", ("graph", 1), {"k": 2}) == (
        "torch",
        ("graph", 1),
        {"k": 2},
    )


def test_a_graph_with_a_session_keeps_it(ours: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNXRT_CHANGE_REWRITER", raising=False)
    ours.known.add("graph")
    assert wrappers.accelerated_call(torch_code, "backend", ("graph",), {})[0] == "ours"
    assert wrappers.accelerated_call(torch_code, "backend", ("other",), {})[0] == "torch"


def test_uninstalled_new_graphs_are_those_of_torch(
    ours: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    monkeypatch.setattr(STATE, "installed", False)
    ours.known.add("graph")
    assert wrappers.accelerated_call(torch_code, "backend", ("graph",), {})[0] == "ours"
    assert wrappers.accelerated_call(torch_code, "backend", ("other",), {})[0] == "torch"
    assert wrappers.compile_graph(torch_code, "backend", ("graph",), {})[0] == "torch"


def test_off_imports_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONNXRT_CHANGE_REWRITER", raising=False)
    monkeypatch.delitem(sys.modules, wrappers.SOURCE, raising=False)
    for wrapper in CALLS.values():
        assert wrapper(torch_code, "backend", ("graph",), {})[0] == "torch"
    assert wrappers.SOURCE not in sys.modules


def test_a_backend_of_ours_is_registered_again_without_complaint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As two threads do that look it up for the first time; others are for torch to refuse."""
    from torch._dynamo.backends import registry

    monkeypatch.setattr(registry, "_COMPILER_FNS", dict(registry._COMPILER_FNS))
    monkeypatch.setattr(registry, "_BACKENDS", dict(registry._BACKENDS))
    monkeypatch.setattr(wrappers, "_registered", {})

    def function() -> None: ...

    def another() -> None: ...

    function.__module__ = another.__module__ = "dort_rewriter.backends.test"
    with installed():
        for _ in range(2):
            assert registry.register_backend(compiler_fn=function, name="ours") is function
        with pytest.raises(AssertionError, match="duplicate name: ours"):
            registry.register_backend(compiler_fn=another, name="ours")
        registry.register_backend(compiler_fn=torch_code, name="theirs")
        with pytest.raises(AssertionError, match="duplicate name: theirs"):
            registry.register_backend(compiler_fn=torch_code, name="theirs")
