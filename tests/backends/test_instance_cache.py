"""The store of sessions: its bound, and when its content dies."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from dort_rewriter.backends.instance_cache import InstanceCache
from dort_rewriter.errors import OptionError
from dort_rewriter.runtime.executor import Executor
from tests.runtime.graphs import add_one


def test_oldest_goes_first() -> None:
    cache: InstanceCache[str, int] = InstanceCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert list(cache) == ["a", "c"]
    assert "b" not in cache
    assert cache.get("b") is None
    cache.clear()
    assert len(cache) == 0


def test_build_runs_once() -> None:
    cache: InstanceCache[str, list[int]] = InstanceCache()
    built = cache.get_or_build("k", lambda: [1])
    assert cache.get_or_build("k", lambda: [2]) is built


@pytest.mark.load_sensitive
def test_first_built_wins() -> None:
    cache: InstanceCache[str, object] = InstanceCache()
    barrier = threading.Barrier(4)
    results = []

    def build() -> object:
        barrier.wait()
        return object()

    threads = [
        threading.Thread(target=lambda: results.append(cache.get_or_build("k", build)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(r is results[0] for r in results)


def test_it_holds_something() -> None:
    with pytest.raises(OptionError, match="not 0"):
        InstanceCache(0)


class StoringBackend:
    """A backend as torch sees it, that answers every graph with the same stored session."""

    def __init__(self) -> None:
        self.cache: InstanceCache[str, Executor] = InstanceCache()
        self.reset = self.cache.clear

    def __call__(self, graph_module, example_inputs):
        run = self.cache.get_or_build("add_one", add_one)
        return lambda *args: run(*args)


@pytest.mark.load_sensitive
def test_sessions_die_with_torch_reset() -> None:
    # NOTE: torch 2.8 never frees the first thing that a process compiles.
    torch.compile(lambda x: x - 1, backend="eager")(torch.ones(3))
    torch._dynamo.reset()
    backend = StoringBackend()
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    assert compiled(torch.ones(3)).tolist() == [2.0] * 3
    (key,) = backend.cache
    run = backend.cache.get(key)
    session = weakref.ref(run.session.ort)
    del run
    torch._dynamo.reset()
    gc.collect()
    assert session() is None
    assert len(backend.cache) == 0
