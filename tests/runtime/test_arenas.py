"""Where sessions take memory: the results are the same, and outlive whatever made them."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import threading
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
import torch

from dort_rewriter.errors import OptionError
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime import arenas
from dort_rewriter.runtime.arenas import Arena, give_back
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.providers import CPU, CUDA
from dort_rewriter.runtime.session import create_session, session_options, session_settings
from tests.backends.lifetime.forks import in_child
from tests.runtime.graphs import parse, result, signature, tensor

BODY = "(float[N] x) => (float[N] y) { a = Exp(x) b = Neg(a) y = Add(b, a) }"

ARENAS = get_args(Arena)


needs_glibc = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="reads Linux's /proc, and needs glibc to tell used memory from kept",
)


def _used_bytes() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _executor(arena: Any) -> Executor:
    session = create_session(parse(BODY), options=session_options(arena=arena))
    return Executor(session, signature([tensor("x")], [result("y")]))


@pytest.mark.parametrize(
    ("arena", "in_session", "of_process"),
    [("session", True, None), ("shared", True, "1"), ("none", False, None)],
)
def test_the_settings_of_a_session(arena: Any, in_session: bool, of_process: str | None) -> None:
    options = session_options(arena=arena)
    assert options.enable_cpu_mem_arena is in_session
    if of_process is not None:
        assert options.get_session_config_entry("session.use_env_allocators") == of_process


def test_the_arena_of_the_process_is_for_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dort_rewriter.runtime.providers.built_in", lambda: (CUDA, CPU))
    model = parse(BODY)
    alone = session_settings(OrtBackendOptions(), model, [CPU])
    assert alone.get_session_config_entry("session.use_env_allocators") == "1"
    assert not alone.enable_mem_pattern
    beside = session_settings(OrtBackendOptions(), model, [(CUDA, {"device_id": "0"}), CPU])
    assert beside.enable_mem_pattern
    with pytest.raises(RuntimeError, match="does not have configuration"):
        beside.get_session_config_entry("session.use_env_allocators")


def test_the_model_that_gives_back() -> None:
    model = onnx.load_model_from_string(arenas._SMALLEST_MODEL)
    onnx.checker.check_model(model, full_check=True)
    assert [n.op_type for n in model.graph.node] == ["Constant"]
    assert model.SerializeToString() == arenas._SMALLEST_MODEL


def test_another_word_is_refused() -> None:
    wrong: Any = "mine"
    with pytest.raises(OptionError, match="'mine'"):
        session_options(arena=wrong)


@pytest.mark.load_sensitive
@pytest.mark.parametrize("arena", ARENAS)
def test_results_outlive_the_session(arena: Any) -> None:
    run = _executor(arena)
    kept = [run(torch.full((n,), 1.0))[0] for n in (10, 1000, 100_000)]
    del run
    gc.collect()
    other = _executor(arena)
    scratch = [other(torch.ones(n)) for n in (10, 1000, 100_000)]
    assert all(k.eq(0).all() for k in kept)
    kept[2].fill_(3)
    assert all(s[0].eq(0).all() for s in scratch)


@pytest.mark.load_sensitive
@needs_glibc
def test_the_shared_arena_is_given_back() -> None:
    large, small = torch.ones(20_000_000), torch.ones(4000)
    run = _executor("shared")
    (kept,) = run(small)
    (gone,) = run(large)
    with_result = _used_bytes()
    del gone
    give_back()
    assert with_result - _used_bytes() > 150_000_000
    assert kept.eq(0).all()
    assert run(small)[0].eq(0).all()


@pytest.mark.load_sensitive
@needs_glibc
@pytest.mark.parametrize("arena", ["session", "shared"])
def test_memory_is_given_back_when_its_session_is_gone(arena: Any) -> None:
    kept = _executor(arena)
    kept(torch.ones(1000))
    run = _executor(arena)
    (y,) = run(torch.ones(20_000_000))
    with_session = _used_bytes()
    del y, run
    gc.collect()
    assert with_session - _used_bytes() > 150_000_000
    assert kept(torch.ones(1000))[0].eq(0).all()


@pytest.mark.load_sensitive
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_a_child_does_not_wait_for_a_thread_that_stayed_in_the_parent() -> None:
    run = _executor("shared")
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            run(torch.ones(300))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [in_child(_make_and_run) for _ in range(20)] == ["done"] * 20
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _make_and_run() -> None:
    assert _executor("shared")(torch.ones(300))[0].eq(0).all()
    give_back()


@pytest.mark.load_sensitive
@needs_glibc
@pytest.mark.parametrize("arena", ARENAS)
def test_sizes_that_grow_do_not_leave_each_a_piece(arena: Any) -> None:
    run = _executor(arena)
    run(torch.ones(1000))
    before = _used_bytes()
    for size in range(100_000, 3_000_000, 100_000):  # all together 170 MB, and temporary values
        run(torch.ones(size))
    assert _used_bytes() - before < 100_000_000
    del run
    give_back()


@pytest.mark.load_sensitive
@pytest.mark.parametrize("arena", ARENAS)
def test_threads_share_it(arena: Any) -> None:
    executors = [_executor(arena) for _ in range(2)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for size in range(1, 60):
            (y,) = executors[number % 2](torch.full((size * 97,), float(number)))
            if not y.eq(0).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
