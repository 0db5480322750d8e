"""Installing is idempotent, all or none, and taken back exactly, on the torch that is here."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.onnx

import dort_rewriter
from dort_rewriter import HookError, install, installed, status, uninstall
from dort_rewriter.hook import imports, installer, versions
from dort_rewriter.hook.patch import STATE
from tests.hook.conftest import HAS_ORT_BACKEND

if HAS_ORT_BACKEND:
    importlib.import_module(versions.BACKEND_MODULE)

SERIES = versions.parse_series(torch.__version__)
FITTING = [patch for patch in versions.PATCHES if patch.fits(SERIES)]

pytestmark = pytest.mark.usefixtures("unhooked")


def attributes() -> dict[str, object]:
    """What stands in torch wherever something is patched."""
    found = {}
    for patch in FITTING:
        owner, name = patch.locate(sys.modules[patch.module])
        found[str(patch)] = vars(owner).get(name)
    found["module"] = sys.modules.get(versions.BACKEND_MODULE)
    found["in its package"] = vars(sys.modules["torch.onnx._internal"]).get("onnxruntime")
    return found


def test_uninstall_restores_everything() -> None:
    before = attributes()
    finders = list(sys.meta_path)
    report = install()
    assert report.state == "installed"
    assert report.applied == tuple(str(patch) for patch in FITTING)
    assert report.pending == ()
    importlib.import_module(versions.BACKEND_MODULE)
    assert all(attributes()[str(patch)] is not before[str(patch)] for patch in FITTING)
    assert uninstall().state == "not installed"
    assert attributes() == before
    assert sys.meta_path == finders


def test_install_is_idempotent() -> None:
    install()
    first = attributes()
    assert install().state == "installed"
    assert attributes() == first
    uninstall()
    assert uninstall().state == "not installed"


def test_installed_takes_back_only_its_own_installation() -> None:
    with installed() as report:
        assert report.state == "installed"
        with installed():
            pass
        assert status().state == "installed"
    assert status().state == "not installed"


def test_installed_takes_back_after_an_error() -> None:
    with pytest.raises(KeyError), installed():
        raise KeyError
    assert status().state == "not installed"


def test_uninstall_refuses_when_someone_came_after() -> None:
    install()
    before = attributes()
    last = FITTING[-1]
    owner, name = last.locate(sys.modules[last.module])
    ours = vars(owner)[name]

    def intruder(*args: Any) -> Any:
        return ours(*args)

    setattr(owner, name, intruder)
    try:
        with pytest.raises(HookError, match=rf"nothing was changed.*{name}.*intruder"):
            uninstall()
        assert status().state == "installed"
    finally:
        setattr(owner, name, ours)
    assert attributes() == before


def broken(patch: versions.Patch) -> versions.Patch:
    return dataclasses.replace(patch, attribute="No.Such.Thing", absent=None)


def test_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before = attributes()
    monkeypatch.setattr(versions, "PATCHES", (*FITTING, broken(FITTING[0])))
    with pytest.raises(HookError, match=r"No\.Such\.Thing"):
        install()
    assert attributes() == before
    report = status()
    assert report.state == "failed"
    assert "No.Such.Thing" in str(report)
    assert not imports.is_watched("torch.onnx")


def test_a_failure_at_a_later_import_is_told_and_harmless(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = attributes()
    install()
    monkeypatch.setattr(versions, "PATCHES", (broken(FITTING[0]),))
    with caplog.at_level(logging.WARNING):
        installer._on_import(sys.modules[FITTING[0].module])
    assert "No.Such.Thing" in caplog.text
    assert attributes() == before
    assert status().state == "failed"
    monkeypatch.undo()
    assert install().state == "installed"
    assert status().failure == ""


def test_a_module_told_twice_is_patched_once() -> None:
    install()
    patch = FITTING[0]
    before = len(STATE.changes)
    installer._on_import(sys.modules[patch.module])
    assert len(STATE.changes) == before


@pytest.mark.load_sensitive
def test_threads_install_once() -> None:
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work() -> None:
        barrier.wait()
        try:
            install()
        except BaseException as error:
            failures.append(error)  # told below
            raise

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(STATE.changes) == len(FITTING)


def test_disabled_means_inert(monkeypatch: pytest.MonkeyPatch) -> None:
    before = attributes()
    monkeypatch.setenv("DORT_DISABLE", "1")
    assert install().state == "disabled"
    assert attributes() == before


def test_an_old_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.2.1")
    with pytest.raises(HookError, match=r"torch 2\.2\.1 is not supported.*2\.3"):
        install()


def test_the_report_reads_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    text = str(install())
    assert text.startswith("dort_rewriter hook: installed\ntorch: " + torch.__version__)
    assert "\nonnxruntime: onnxruntime" in text
    assert "\nrewriter: on" in text
    assert text.count("\napplied: ") == len(FITTING)
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "0")
    assert not status().rewriter


@pytest.fixture
def restored() -> Iterator[Any]:
    if HAS_ORT_BACKEND:
        pytest.skip("this torch has OrtBackend: nothing is restored")
    install()
    yield torch.onnx
    uninstall()


class TestOldNames:
    """The import paths that torch had until 2.8."""

    def test_they_are_those_of_the_backend(self, restored: Any) -> None:
        module = importlib.import_module(versions.BACKEND_MODULE)
        assert module.OrtBackend is dort_rewriter.OrtBackend
        assert restored._OrtBackend is dort_rewriter.OrtBackend
        assert restored._OrtBackendOptions is dort_rewriter.OrtBackendOptions
        assert restored.is_onnxrt_backend_supported()
        assert versions.BACKEND_MODULE in status().applied

    def test_the_module_is_there_without_an_import(self, restored: Any) -> None:
        assert restored._internal.onnxruntime.OrtBackend is dort_rewriter.OrtBackend
        assert vars(restored._internal)["onnxruntime"].__name__ == versions.BACKEND_MODULE

    def test_other_names_are_as_missing_as_before(self, restored: Any) -> None:
        for module in (restored, restored._internal, restored._internal.onnxruntime):
            with pytest.raises(AttributeError, match="no_such_name"):
                module.no_such_name  # noqa: B018

    def test_they_go_away(self, restored: Any) -> None:
        importlib.import_module(versions.BACKEND_MODULE)
        uninstall()
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(versions.BACKEND_MODULE)
        assert not hasattr(restored, "_OrtBackend")
        assert not hasattr(restored._internal, "onnxruntime")

    def test_a_module_put_in_its_place_is_an_obstacle(self, restored: Any) -> None:
        module = importlib.import_module(versions.BACKEND_MODULE)
        sys.modules[versions.BACKEND_MODULE] = sys
        try:
            with pytest.raises(HookError, match=r"sys\.modules is now"):
                uninstall()
        finally:
            sys.modules[versions.BACKEND_MODULE] = module
