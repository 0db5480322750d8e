"""What a provider compiles is kept for other processes, and made again where it is of no use."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dort_rewriter.runtime import compiled_forms
from dort_rewriter.runtime.compiled_forms import CompiledForm
from dort_rewriter.runtime.disk_cache import DiskCache
from dort_rewriter.runtime.providers import Provider

PLACED = {"Plugged": {"Relu": 1}}


class Refused(Exception):
    """Stands for an error of onnxruntime."""


class Options:
    """Options of a session, as far as they are read and written."""

    graph_optimization_level = "all"
    intra_op_num_threads = 1
    execution_mode = "sequential"

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        assert key not in self.entries, "onnxruntime prints a warning"
        self.entries[key] = value


@pytest.fixture(name="cache")
def make_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    (folder := tmp_path / "cache").mkdir(mode=0o700)
    cache = DiskCache(folder)
    monkeypatch.setattr(compiled_forms, "disk_cache", lambda: cache)
    return cache


def _device(version: str = "1", kind: str = "NPU") -> Any:
    hardware = SimpleNamespace(type=kind, vendor="V", device_id=3)
    return SimpleNamespace(device=hardware, ep_metadata={"version": version})


def _form(monkeypatch: pytest.MonkeyPatch, source: Any = b"model", **changed: Any) -> CompiledForm:
    device = changed.pop("device", _device())
    monkeypatch.setattr(compiled_forms, "devices_of", lambda provider: [device])
    provider = Provider("Plugged", changed.pop("options", {"k": "1"}))
    options: Any = Options()
    return CompiledForm(source, [provider], options)


def _build(own: Any) -> str:
    Path(own.entries["ep.context_file_path"]).write_bytes(b"compiled\nform")
    return "session"


def _make(form: CompiledForm) -> None:
    make: Any = Options
    assert form.make(_build, make, (Refused,)) == "session"
    form.keep(PLACED)


def _load(form: CompiledForm) -> Any:
    return form.load(lambda data: data, (Refused,))


def test_it_is_found_with_whose_nodes_it_has(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = _form(monkeypatch)
    assert _load(form) is None
    _make(form)
    found = _form(monkeypatch)
    assert _load(found) == b"compiled\nform"
    assert found.placement == PLACED


@pytest.mark.parametrize(
    "changed",
    [
        {"source": b"another"},
        {"options": {"k": "2"}},
        {"device": _device("2")},
        {"device": _device(kind="GPU")},
    ],
)
def test_what_is_made_for_something_else_is_not_found(
    changed: dict[str, Any], cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make(_form(monkeypatch))
    assert _load(_form(monkeypatch, **changed)) is None


def test_what_was_damaged_is_made_again(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _make(_form(monkeypatch))
    (path,) = cache.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    form = _form(monkeypatch)
    assert _load(form) is None
    assert "is damaged and was removed" in caplog.text
    _make(form)
    assert _load(_form(monkeypatch)) == b"compiled\nform"


def test_what_the_provider_refuses_is_made_again(
    cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: bytes) -> None:
        raise Refused("made by another release")

    _make(_form(monkeypatch))
    form = _form(monkeypatch)
    assert form.load(refuse, (Refused,)) is None
    assert not list(cache.folder.iterdir())


def test_a_provider_that_keeps_nothing(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(own: Any) -> None:
        raise Refused("no node is compiled")

    make: Any = Options
    form = _form(monkeypatch)
    assert form.make(refuse, make, (Refused,)) is None
    assert form.make(lambda own: "session", make, (Refused,)) == "session"
    form.keep(None)
    assert not list(cache.folder.iterdir())


@pytest.mark.parametrize("source", ["model.onnx", b"x" * 3])
def test_large_models_are_not_kept(
    source: Any, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled_forms, "_MOST", 2)
    make: Any = Options
    form = _form(monkeypatch, source)
    assert _load(form) is None
    assert form.make(_build, make, (Refused,)) is None
