"""What is written where a file cannot grow: nothing half-written stays, and reading goes on.

NOTE: a limit on the size of files stands for a full disk: both fail in the middle of a write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dort_rewriter.compiler.problem_report import report_problem, unwritten
from dort_rewriter.errors import ExecutionError
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.disk_cache import DiskCache
from dort_rewriter.runtime.model_files import dump_graph, try_dump

pytestmark = pytest.mark.load_sensitive

resource = pytest.importorskip("resource", reason="the system has no limits of this kind")

ROOM = 2**16
KEYS = ["0" * 64, "1" * 64]


@contextlib.contextmanager
def little_room() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_cache_of_models(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEYS[0], b"small")
    with little_room():
        for _ in range(2):
            cache.put(KEYS[1], bytes(2 * ROOM))
            assert cache.get(KEYS[1]) is None
    assert cache.get(KEYS[0]) == b"small"
    assert [p.name for p in cache.folder.iterdir()] == [f"{KEYS[0]}.dort-model"]
    assert ["cannot be written" in r.getMessage() for r in caplog.records] == [True]


def test_dumps(tmp_path: Path) -> None:
    prefix = str(tmp_path / "dump_")
    with little_room(), pytest.raises(ExecutionError, match="cannot be written"):
        dump_graph(bytes(2 * ROOM), "graph", prefix)
    assert list(tmp_path.iterdir()) == []
    assert dump_graph(bytes(2 * ROOM), "graph", prefix) == tmp_path / "dump_0.onnx"


def test_a_dump_that_is_only_tried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with little_room():
        for _ in range(2):
            try_dump(bytes(2 * ROOM), "graph", str(tmp_path / "dump_"))
    assert ["cannot be written" in r.getMessage() for r in caplog.records] == [True]
    try_dump(bytes(2 * ROOM), "graph", str(tmp_path / "dump_"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dump_0.onnx", "dump_0.txt"]


def test_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of a folder is there, or nothing."""
    monkeypatch.setenv("DORT_REPORT_DIR", str(tmp_path))
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    given = (graph, [torch.zeros(ROOM)], OrtBackendOptions(), "something went wrong")
    before = len(unwritten())
    with little_room():
        assert report_problem(*given) is None
    assert list(tmp_path.iterdir()) == []
    assert unwritten()[before:] == ("something went wrong",)
    assert ["cannot be written" in r.getMessage() for r in caplog.records] == [True]
    folder = report_problem(*given)
    assert folder is not None
    assert list(tmp_path.iterdir()) == [folder]
    names = ["graph.txt", "problem.json", "reproduce.py", "test_case_0"]
    assert sorted(p.name for p in folder.iterdir()) == names
