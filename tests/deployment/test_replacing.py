"""Folders that are saved to again, or removed, after processes have loaded what was there."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import ExecutionError, OrtBackend
from dort_rewriter.deployment import loading
from dort_rewriter.deployment.saving import ASIDE, saving_to
from dort_rewriter.runtime import model_files
from tests.gates.sources import ROOT

X = torch.linspace(-1, 1, 12).view(3, 4)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")


def compiled_of(factor: float) -> tuple[Any, torch.Tensor]:
    model = nn.Linear(4, 2).requires_grad_(False)
    model.weight.fill_(factor)
    return torch.compile(model, backend=OrtBackend({"intra_op_threads": 2})), model(X)


@pytest.fixture(scope="module")
def models() -> Iterator[list[tuple[Any, torch.Tensor]]]:
    """Two compiled models of one kind, and what each gives."""
    torch._dynamo.reset()
    yield [compiled_of(1.0), compiled_of(2.0)]
    torch._dynamo.reset()


@needs_fork
@pytest.mark.load_sensitive
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("change", ["saved again", "removed"])
def test_a_child_goes_on_with_what_its_parent_loaded(
    change: str, models: Any, tmp_path: Path
) -> None:
    (compiled, expected), (other, _) = models
    folder = tmp_path / "saved"
    dort_rewriter.save(compiled, folder, X)
    loaded = dort_rewriter.load(folder)
    loaded(X)
    if change == "removed":
        shutil.rmtree(folder)
    else:
        dort_rewriter.save(other, folder, X)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if torch.equal(loaded(X), expected) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(loaded(X), expected)


@needs_fork
@pytest.mark.load_sensitive
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_children_go_on_with_weights_in_a_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of models of 2 GB; a child of a child, too."""
    torch._dynamo.reset()
    monkeypatch.setattr(model_files, "INLINE_LIMIT", 10)
    model = nn.Linear(4, 2).requires_grad_(False)
    compiled = torch.compile(model, backend=OrtBackend({"freeze": True, "intra_op_threads": 2}))
    expected, folder = compiled(X), tmp_path / "saved"
    dort_rewriter.save(compiled, folder, X)
    assert list(folder.glob("*.onnx.data"))
    loaded = dort_rewriter.load(folder)
    shutil.rmtree(folder)

    def in_child(work: Callable[[], bool]) -> bool:
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if work() else 1)
            finally:
                os._exit(2)
        return os.waitpid(child, 0)[1] == 0

    def right() -> bool:
        return torch.equal(loaded(X), expected)

    assert in_child(lambda: right() and in_child(right))
    torch._dynamo.reset()


@pytest.mark.parametrize("times", [1, 3])
def test_the_description_is_read_again_when_its_files_are_gone(
    times: int, models: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process has saved between two steps of loading; and again."""
    (compiled, _), (other, expected) = models
    dort_rewriter.save(compiled, tmp_path, X)
    read = loading.read_description
    contents = []

    def read_and_save(folder: Path) -> Any:
        contents.append(read(folder))
        if len(contents) <= times:
            dort_rewriter.save(other, tmp_path, X)
        return contents[-1]

    monkeypatch.setattr(loading, "read_description", read_and_save)
    assert torch.equal(dort_rewriter.load(tmp_path)(X), expected)
    assert len(contents) == times + 1


def test_a_folder_that_stays_damaged_is_refused(models: Any, tmp_path: Path) -> None:
    dort_rewriter.save(models[0][0], tmp_path, X)
    (path,) = tmp_path.glob("model-*")
    path.unlink()
    with pytest.raises(ExecutionError, match="is missing"):
        dort_rewriter.load(tmp_path)


KILLED = """
import os, sys
import torch
import dort_rewriter

compiled = torch.compile(torch.nn.Linear(4, 2), backend=dort_rewriter.OrtBackend())
os.replace = lambda *_, **__: os.kill(os.getpid(), {signal})
with torch.no_grad():
    dort_rewriter.save(compiled, sys.argv[1], torch.ones(3, 4))
"""


@pytest.mark.alternating
@needs_fork
def test_what_a_killed_save_leaves_is_removed_by_the_next(models: Any, tmp_path: Path) -> None:
    (compiled, expected), _ = models
    dort_rewriter.save(compiled, tmp_path, X)
    code = KILLED.format(signal=int(signal.SIGKILL))
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    (tmp_path / f"model-{'0' * 12}.onnx").write_bytes(b"moved, and never named")
    (tmp_path / "mine.txt").write_text("stays")
    (tmp_path / ".dort-mine").mkdir()
    left = {p.name for p in tmp_path.iterdir()}
    assert len([name for name in left if name.startswith(".dort-save-")]) == 2
    assert torch.equal(dort_rewriter.load(tmp_path)(X), expected)
    dort_rewriter.save(compiled, tmp_path, X)
    names = sorted(p.name.partition("-")[0] for p in tmp_path.iterdir())
    assert names == [".dort", "mine.txt", "model", "saved.json", "tensors"]
    assert (tmp_path / ".dort-mine").exists()


def test_what_another_save_is_writing_stays(models: Any, tmp_path: Path) -> None:
    aside = tmp_path / f"{ASIDE}other"
    aside.mkdir()
    with saving_to(tmp_path):  # which removes it: nobody else saves
        assert not aside.exists()
        aside.mkdir()
        dort_rewriter.save(models[0][0], tmp_path, X)
        assert aside.exists() is (sys.platform != "win32")
    dort_rewriter.save(models[0][0], tmp_path, X)
    assert not aside.exists() or sys.platform == "win32"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name")
@pytest.mark.parametrize("name", ["saved.json", "model", "tensors"])
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)])
def test_what_is_no_file_is_refused_at_once(
    name: str, make: Callable[[Path], None], models: Any, tmp_path: Path
) -> None:
    dort_rewriter.save(models[0][0], tmp_path, X)
    (path,) = [p for p in tmp_path.iterdir() if p.name.startswith(name)]
    path.unlink()
    make(path)
    with pytest.raises(ExecutionError, match=r"is no file|cannot be read"):
        dort_rewriter.load(tmp_path)
