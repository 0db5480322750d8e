"""torch's OpenMP threads and the runs of a session: who ends when, and that torch goes on."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.compiler import building
from dort_rewriter.runtime import threads as policies
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session, session_options
from dort_rewriter.runtime.threads import (
    PAUSE_SOFT,
    ThreadPolicy,
    omp_pause,
    shortest_run,
    usable_cores,
)
from tests.runtime.graphs import parse, result, signature, tensor

MODEL = "(float[N,64] x, float[64,64] w) => (float[N,64] y) { h = MatMul(x, w) y = Relu(h) }"

ending = pytest.mark.skipif(
    omp_pause() is None, reason="the OpenMP of this torch, older than 5.0, cannot end its threads"
)


@pytest.fixture
def torch_threads() -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def executor(threads: int, *, pause: bool = True) -> Executor:
    options = session_options(threads=ThreadPolicy(intra_op_threads=threads))
    session = create_session(parse(MODEL), options=options)
    read = [tensor("x", shape=("N", 64)), tensor("w", shape=(64, 64))]
    return Executor(session, signature(read, [result("y")]), pause_torch_threads=pause)


def running() -> int:
    """The threads of this process, those of onnxruntime and of OpenMP too."""
    return len(list(Path("/proc/self/task").iterdir()))


def wake_torch() -> torch.Tensor:
    """Let torch share an operator between its threads."""
    return torch.ones(1 << 20).mul_(2.0)


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(8, 64), torch.ones(64, 64)


@pytest.mark.load_sensitive
def test_it_is_the_openmp_that_torch_loaded() -> None:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    loaded = {line.split()[-1] for line in lines if "omp" in Path(line.split()[-1]).name}
    ending = [path for path in loaded if hasattr(ctypes.CDLL(path), "omp_pause_resource_all")]
    assert (omp_pause() is not None) == bool(ending)


@pytest.mark.load_sensitive
@ending
def test_a_run_ends_the_waiting_threads_of_torch(torch_threads: int) -> None:
    run = executor(2)
    pause = omp_pause()
    assert pause is not None
    assert pause(PAUSE_SOFT) == 0
    alone = running()
    wake_torch()
    assert running() == alone + 1
    (y,) = run(*arguments())  # how long a run takes is not known before the first
    assert running() == alone
    torch.testing.assert_close(y, torch.full((8, 64), 64.0))
    torch.testing.assert_close(wake_torch(), torch.full((1 << 20,), 2.0))  # torch makes new ones
    assert running() == alone + 1


@pytest.mark.load_sensitive
@ending
def test_a_run_of_a_moment_is_not_worth_new_threads(torch_threads: int) -> None:
    run = executor(2)
    last = run.boxed.__globals__["LAST"]
    run(*arguments())
    assert 0 < last[0] < float("inf")
    last[0] = shortest_run() / 2
    wake_torch()
    before = running()
    run(*arguments())
    assert running() == before
    last[0] = 2 * shortest_run()
    run.boxed(list(arguments()))
    assert running() == before - 1


@ending
@pytest.mark.parametrize(("threads", "pause"), [(1, True), (2, False)])
def test_nothing_is_paused_for_one_thread_or_when_told_so(threads: int, pause: bool) -> None:
    assert "pause(" not in executor(threads, pause=pause).source
    assert "pause(" in executor(2).source


@ending
def test_the_option_reaches_the_call(torch_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Executor] = []

    class Recorded(Executor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr(building, "Executor", Recorded)
    for value in (True, False):
        compiled = torch.compile(
            torch.nn.Linear(4, 4), backend=OrtBackend({"pause_torch_threads": value})
        )
        compiled(torch.ones(2, 4))
        torch._dynamo.reset()
    assert ["pause(" in run.source for run in made] == [True, False]


def test_autograd_through_both_with_more_threads_than_before(torch_threads: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    x = torch.randn(512, 64)
    compiled = torch.compile(model, backend=OrtBackend())
    for threads in (2, 3, 1, 2):
        torch.set_num_threads(threads)
        got = torch.autograd.grad(compiled(x).square().mean(), list(model.parameters()))
        wanted = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
        for a, b in zip(got, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("threads", "spinning", "allowed"),
    [(2, "stop", "1"), (3, "stop", "0"), (3, "on", "1"), (2, "off", "0")],
)
def test_more_threads_than_cores_do_not_spin(
    threads: int, spinning: Any, allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless a user wants them to."""
    monkeypatch.setattr(policies, "usable_cores", lambda: 2)
    policy = ThreadPolicy(intra_op_threads=threads, spinning=spinning)
    options = session_options(threads=policy)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == allowed


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "250000 100000\n"}, 3),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": ""}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2),
        ({"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "0\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "200000\n"}, 8),
    ],
)
def test_usable_cores_are_those_of_the_container(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    monkeypatch.setattr(policies, "_CGROUP", tmp_path)
    monkeypatch.setattr(policies.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert usable_cores() == expected


def test_usable_cores_where_there_is_no_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "_CGROUP", tmp_path)
    monkeypatch.delattr(policies.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(policies.os, "cpu_count", lambda: 4)
    assert usable_cores() == 4
