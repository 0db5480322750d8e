"""Bytes kept between processes."""

from __future__ import annotations

import logging
import os
import stat
import threading
from pathlib import Path

import pytest

from dort_rewriter.runtime.disk_cache import DiskCache


def test_what_is_stored_is_found(tmp_path: Path) -> None:
    """By another object too."""
    DiskCache(tmp_path / "c").put("a", b"1234")
    cache = DiskCache(tmp_path / "c")
    assert cache.get("a") == b"1234"
    assert cache.get("b") is None
    cache.clear()
    assert cache.get("a") is None


def test_files_are_private(tmp_path: Path) -> None:
    """The folder and what is in it."""
    cache = DiskCache(tmp_path / "c")
    cache.put("a", b"1234")
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    (path,) = (tmp_path / "c").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_oldest_go_first(tmp_path: Path) -> None:
    """What was read lately stays."""
    cache = DiskCache(tmp_path / "c", limit=1000)
    for i, name in enumerate("abcde"):
        cache.put(name, b"x" * 150)
        os.utime(tmp_path / "c" / f"{name}.model", (i, i))
    assert cache.get("a") is not None
    cache.put("f", b"x" * 200)
    assert cache.get("a") is not None
    assert cache.get("b") is None
    assert cache.get("f") is not None


def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    """One entry must not push out all the others."""
    cache = DiskCache(tmp_path / "c", limit=1000)
    cache.put("a", b"x" * 600)
    assert cache.get("a") is None


def test_a_folder_of_others_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody could put a model there."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    cache = DiskCache(shared)
    with caplog.at_level(logging.WARNING):
        cache.put("a", b"1")
        assert cache.get("a") is None
    assert len(caplog.records) == 1
    assert "DORT_CACHE_DIR" in caplog.text


def test_a_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is a file in its place."""
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "c")
    with caplog.at_level(logging.WARNING):
        cache.put("a", b"1")
        assert cache.get("a") is None
    assert len(caplog.records) == 1


def test_many_writers_and_readers(tmp_path: Path) -> None:
    """A reader finds all of an entry or none of it."""
    content = {str(i): bytes([i]) * 20000 for i in range(8)}
    wrong: list[str] = []

    def work() -> None:
        cache = DiskCache(tmp_path / "c", limit=120_000)
        for _ in range(20):
            for key, data in content.items():
                found = cache.get(key)
                if found not in (None, data):
                    wrong.append(key)
                cache.put(key, data)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert not list((tmp_path / "c").glob(".new-*"))
