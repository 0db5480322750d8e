"""Bytes kept between processes."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dort_rewriter import files
from dort_rewriter.runtime import disk_cache as module
from dort_rewriter.runtime.disk_cache import FOLDER, DiskCache, disk_cache


def _key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _entry(folder: Path, name: str) -> Path:
    return folder / f"{_key(name)}.dort-model"


def test_what_is_stored_is_found(tmp_path: Path) -> None:
    """By another object too."""
    DiskCache(tmp_path / "c").put(_key("a"), b"1234")
    cache = DiskCache(tmp_path / "c")
    assert cache.get(_key("a")) == b"1234"
    assert cache.get(_key("b")) is None
    cache.clear()
    assert cache.get(_key("a")) is None


def test_files_are_private(tmp_path: Path) -> None:
    """The folder and what is in it."""
    cache = DiskCache(tmp_path / "c")
    cache.put(_key("a"), b"1234")
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    (path,) = (tmp_path / "c").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.load_sensitive
def test_the_oldest_go_first(tmp_path: Path) -> None:
    """What was read lately stays."""
    cache = DiskCache(tmp_path / "c", limit=1000)
    for i, name in enumerate("abcde"):
        cache.put(_key(name), b"x" * 150)
        os.utime(_entry(tmp_path / "c", name), (i, i))
    assert cache.get(_key("a")) is not None
    cache.put(_key("f"), b"x" * 200)
    assert cache.get(_key("a")) is not None
    assert cache.get(_key("b")) is None
    assert cache.get(_key("f")) is not None


def test_what_is_too_large_is_not_kept(tmp_path: Path) -> None:
    """One entry must not push out all the others."""
    cache = DiskCache(tmp_path / "c", limit=1000)
    cache.put(_key("a"), b"x" * 600)
    assert cache.get(_key("a")) is None


def test_a_folder_of_others_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Anybody could put a model there."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    cache = DiskCache(shared)
    with caplog.at_level(logging.WARNING):
        cache.put(_key("a"), b"1")
        assert cache.get(_key("a")) is None
    assert len(caplog.records) == 1
    assert "DORT_CACHE_DIR" in caplog.text


def test_a_folder_that_cannot_be_made_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There is a file in its place."""
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "c")
    with caplog.at_level(logging.WARNING):
        cache.put(_key("a"), b"1")
        assert cache.get(_key("a")) is None
    assert len(caplog.records) == 1


@pytest.mark.load_sensitive
def test_many_writers_and_readers(tmp_path: Path) -> None:
    """A reader finds all of an entry or none of it."""
    content = {_key(str(i)): bytes([i]) * 20000 for i in range(8)}
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
    assert not list((tmp_path / "c").glob(".*"))


def _precious(folder: Path) -> list[Path]:
    """Files of the user's, beside the entries, with names that look like theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    key = _key("precious")
    names = [
        *("word2vec.model", "a.dort-model", f"{key}.model", f"{key}x.dort-model"),
        *(f"x{key}.dort-model", f"{key.upper()}.dort-model", f"{key}.dort-model.bak"),
        *(f".{key}-abc.dort-new", f"{key}.dort-new", ".new-abcdefgh"),
    ]
    files = [folder / name for name in names]
    for path in files:
        path.write_bytes(b"x" * 5000)
        os.utime(path, (1, 1))
    (folder / f"{key}.dort-model").mkdir()
    return [*files, folder / f"{key}.dort-model"]


@pytest.mark.load_sensitive
def test_only_our_names_are_removed(tmp_path: Path) -> None:
    """A user's files are neither counted nor removed, in any folder."""
    folder = tmp_path / "c"
    folder.mkdir(mode=0o700)
    linked = tmp_path / "model.onnx"
    linked.write_bytes(b"x" * 5000)
    link = _entry(folder, "link")
    link.symlink_to(linked)
    kept = [*_precious(folder), link]
    cache = DiskCache(folder, limit=1000)
    for i in range(20):
        cache.put(_key(str(i)), b"x" * 200)
    entries = [_entry(folder, str(i)) for i in range(20)]
    assert 3 <= sum(p.exists() for p in entries) <= 5
    cache.clear()
    assert set(folder.iterdir()) == set(kept)
    assert linked.read_bytes() == b"x" * 5000


@pytest.mark.load_sensitive
def test_a_folder_of_models_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may name a folder in which a user keeps models."""
    monkeypatch.setenv("DORT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("DORT_CACHE", raising=False)
    kept = [*_precious(tmp_path / "models"), tmp_path / "models"]
    monkeypatch.setattr(module, "LIMIT", 1000)
    cache = disk_cache()
    assert cache is not None
    cache.limit = 1000
    for i in range(20):
        cache.put(_key(str(i)), b"x" * 200)
    cache.clear()
    assert all(path.exists() for path in kept)
    assert {p.name for p in tmp_path.iterdir()} == {"models", FOLDER}


@pytest.mark.load_sensitive
def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    """After an hour: until then somebody may be writing it."""
    folder = tmp_path / "c"
    cache = DiskCache(folder)
    cache.put(_key("a"), b"1")
    old, new = (folder / f".{_key('b')}-{name}.dort-new" for name in ("abcdefgh", "ijklmnop"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 4000,) * 2)
    cache.put(_key("c"), b"1")
    assert not old.exists()
    assert new.exists()


def test_an_entry_under_another_name_is_not_used(tmp_path: Path) -> None:
    """As when somebody copies files by hand."""
    cache = DiskCache(tmp_path / "c")
    cache.put(_key("a"), b"1")
    shutil.copy(_entry(tmp_path / "c", "a"), _entry(tmp_path / "c", "b"))
    assert cache.get(_key("b")) is None


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 60])
def test_an_entry_cut_short(length: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is removed, and written again."""
    cache = DiskCache(tmp_path / "c")
    cache.put(_key("a"), b"1234" * 10)
    path = _entry(tmp_path / "c", "a")
    path.write_bytes(path.read_bytes()[:length])
    assert cache.get(_key("a")) is None
    assert not path.exists()
    assert len(caplog.records) == 1


def test_an_entry_that_is_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Reading a pipe would wait for ever."""
    cache = DiskCache(tmp_path / "c")
    cache.put(_key("a"), b"1")
    os.mkfifo(_entry(tmp_path / "c", "b"))
    _entry(tmp_path / "c", "d").mkdir()
    assert cache.get(_key("b")) is None
    assert cache.get(_key("d")) is None
    cache.put(_key("d"), b"1")
    assert cache.get(_key("a")) == b"1"
    assert len(caplog.records) == 1


@pytest.fixture(name="read_only")
def make_a_cache_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a good and a damaged entry, in which nothing can be written or removed."""
    folder = tmp_path / "c"
    cache = DiskCache(folder)
    for name in "ab":
        cache.put(_key(name), b"1234")
    _entry(folder, "b").write_bytes(b"damaged")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(30, "Read-only file system", str(folder))

    for name in ("unlink", "replace", "utime"):  # root may write to any folder
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(files, "mkstemp", refuse)
    yield folder
    monkeypatch.undo()


def test_a_cache_that_is_read_only(read_only: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is good is used, the rest is as if it were not there; one line says so."""
    cache = DiskCache(read_only, limit=20)
    assert cache.get(_key("a")) == b"1234"
    assert cache.get(_key("b")) is None
    cache.put(_key("c"), b"1")
    cache.clear()
    assert cache.get(_key("a")) == b"1234"
    assert [r.levelname for r in caplog.records if r.levelno >= logging.INFO] == ["WARNING"]


@pytest.mark.load_sensitive
@pytest.mark.parametrize("switch", ["", "0"])
def test_no_home(switch: str, tmp_path: Path) -> None:
    """Without a place there is no cache: one line, none when it is switched off."""
    program = (
        "import logging, os, pwd\n"
        "def nobody(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = nobody\n"
        "logging.basicConfig(format='%(message)s')\n"
        "from dort_rewriter.runtime.disk_cache import disk_cache\n"
        "assert disk_cache() is None and disk_cache() is None\n"
    )
    left_out = ("HOME", "XDG_CACHE_HOME", "DORT_CACHE_DIR", "DORT_CACHE")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, "DORT_CACHE": switch},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stderr.count("\n") == (switch == "")
    assert ("HOME" in done.stderr) == (switch == "")
