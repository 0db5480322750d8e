"""Watching and serving imports: told once, the module untouched, and nothing left behind."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dort_rewriter.hook import imports


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a module that is not imported yet; watched by nobody afterwards."""
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_module"
    imports.forget("late_module")
    sys.modules.pop("late_module", None)


def finders() -> list[object]:
    return [finder for finder in sys.meta_path if isinstance(finder, imports._Finder)]


def test_told_after_the_module_is_executed(late: str) -> None:
    seen: list[int] = []
    imports.after_import(late, lambda module: seen.append(module.value))
    assert seen == []
    importlib.import_module(late)
    importlib.import_module(late)
    assert seen == [1]


def test_told_again_when_reloaded(late: str) -> None:
    seen: list[ModuleType] = []
    imports.after_import(late, seen.append)
    importlib.reload(importlib.import_module(late))
    assert len(seen) == 2


def test_the_module_shows_its_own_loader(late: str) -> None:
    imports.after_import(late, lambda module: None)
    module = importlib.import_module(late)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert inspect.getsource(module) == "value = 1\n"


def test_what_finders_return_can_still_be_asked(late: str) -> None:
    imports.after_import(late, lambda module: None)
    spec = importlib.util.find_spec(late)
    assert spec is not None
    assert spec.loader is not None
    assert spec.loader.get_source(late) == "value = 1\n"  # type: ignore[attr-defined]


def test_an_error_of_the_callback_is_one_of_the_import(late: str) -> None:
    def fail(module: ModuleType) -> None:
        raise ValueError("no")

    imports.after_import(late, fail)
    with pytest.raises(ValueError, match="no"):
        importlib.import_module(late)


def test_forgotten_means_not_told_and_no_finder(late: str, unhooked: None) -> None:
    imports.forget("torch.onnx")
    imports.after_import(late, lambda module: pytest.fail("told"))
    assert len(finders()) == 1
    assert imports.is_watched(late)
    imports.forget(late)
    assert finders() == []
    importlib.import_module(late)


def test_together_with_the_hooks_of_wrapt(late: str) -> None:
    import wrapt

    seen: list[str] = []
    wrapt.register_post_import_hook(lambda module: seen.append("wrapt, before"), late)
    imports.after_import(late, lambda module: seen.append("ours"))
    wrapt.register_post_import_hook(lambda module: seen.append("wrapt, after"), late)
    importlib.import_module(late)
    assert sorted(seen) == ["ours", "wrapt, after", "wrapt, before"]


def test_a_missing_module_is_served(late: str) -> None:
    imports.serve_missing("late_module", lambda module: pytest.fail("it exists"))
    assert importlib.import_module(late).value == 1
    name = "module_that_nobody_has"
    imports.serve_missing(name, lambda module: setattr(module, "value", 2))
    try:
        assert importlib.import_module(name).value == 2
        del sys.modules[name]
        imports.forget(name)
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)
    finally:
        imports.forget(name)
        sys.modules.pop(name, None)


def test_a_module_missing_everywhere_stays_missing() -> None:
    name = "module_that_nobody_has"
    imports.after_import(name, lambda module: None)
    try:
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)
    finally:
        imports.forget(name)


@pytest.mark.load_sensitive
def test_waiting_for_an_import_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text(
        "import threading\nstarted.set()\nimport time\ntime.sleep(0.2)\nready = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    started = threading.Event()
    monkeypatch.setattr("builtins.started", started, raising=False)
    thread = threading.Thread(target=importlib.import_module, args=("slow_module",))
    thread.start()
    assert started.wait(10)
    imports.wait_for("slow_module", "module_that_nobody_has")
    assert sys.modules["slow_module"].ready
    thread.join()
    del sys.modules["slow_module"]
