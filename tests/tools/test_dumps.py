"""dump_onnx: the variable, the folder, the files, and what it must leave alone."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import pytest
import torch

from dort_rewriter import OptionError, dump_onnx, make_aot_ort
from dort_rewriter.runtime.model_files import dump_graph
from tests.runtime.graphs import parse

VARIABLE = "ONNXRT_DUMP_PATH"


def write(text: str = "graph()") -> None:
    dump_graph(parse("(float[N] x) => (float[N] y) { y = Neg(x) }"), text)


def names(files: list[Path]) -> list[str]:
    return [file.name for file in files]


@pytest.mark.parametrize("before", [None, "", "somewhere/else_"])
def test_the_variable_is_restored_exactly(
    before: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if before is not None:
        monkeypatch.setenv(VARIABLE, before)
    with dump_onnx("m", tmp_path):
        assert os.environ[VARIABLE] == str(tmp_path / "m_")
    assert os.environ.get(VARIABLE) == before


def test_an_error_restores_the_variable_and_fills_the_list(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    files: list[Path] = []

    def fail() -> None:
        nonlocal files
        with dump_onnx("m", tmp_path) as files:
            write()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert VARIABLE not in os.environ
    assert names(files) == ["m_0.onnx", "m_0.txt"]


def test_the_folder_is_created_and_only_new_files_are_listed(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    with dump_onnx("m", str(folder)) as first:
        assert first == []
        write()
    with dump_onnx("m", str(folder)) as second:
        write("another")
    assert first == [folder / "m_0.onnx", folder / "m_0.txt"]
    assert names(second) == ["m_1.onnx", "m_1.txt"]
    assert second[1].read_text() == "another"


def test_files_are_listed_by_number(tmp_path: Path) -> None:
    with dump_onnx("m", tmp_path) as files:
        for _ in range(11):
            write()
    assert names(files)[-4:] == ["m_9.onnx", "m_9.txt", "m_10.onnx", "m_10.txt"]


def test_clean_removes_only_its_own_files(tmp_path: Path) -> None:
    kept = ["m_0.md", "m_x.onnx", "m_1_0.onnx", "mm_0.onnx", "m0.onnx", "m_0.onnx.bak"]
    own = ["m_0.onnx", "m_3.onnx", "m_3.onnx.data", "m_3.txt"]
    for name in [*kept, *own]:
        (tmp_path / name).write_text("x")
    (tmp_path / "m_7.txt").mkdir()
    with dump_onnx("m", tmp_path, clean=True) as files:
        pass
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "m_7.txt"])
    assert files == []


def test_clean_counts_from_0_again(tmp_path: Path) -> None:
    for _ in range(2):
        with dump_onnx("m", tmp_path, clean=True) as files:
            write()
        assert names(files) == ["m_0.onnx", "m_0.txt"]
    assert sorted(os.listdir(tmp_path)) == ["m_0.onnx", "m_0.txt"]


def test_blocks_nest(tmp_path: Path) -> None:
    with dump_onnx("outer", tmp_path) as outer:
        write()
        with dump_onnx("inner", tmp_path / "deep") as inner:
            write()
        write()
    assert names(outer) == ["outer_0.onnx", "outer_0.txt", "outer_1.onnx", "outer_1.txt"]
    assert names(inner) == ["inner_0.onnx", "inner_0.txt"]


def test_the_current_folder_may_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with dump_onnx("m") as files:
        monkeypatch.chdir(tmp_path / "other")
        write()
    assert files == [Path("m_0.onnx"), Path("m_0.txt")]
    assert sorted(os.listdir(tmp_path)) == ["m_0.onnx", "m_0.txt", "other"]


def test_a_folder_removed_within_the_block_has_no_files(tmp_path: Path) -> None:
    with dump_onnx("m", tmp_path / "gone") as files:
        (tmp_path / "gone").rmdir()
    assert files == []


@pytest.mark.parametrize("prefix", ["", "a/b", "/a", "a/"])
def test_a_prefix_is_the_beginning_of_a_file_name(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="beginning of a file name"), dump_onnx(prefix, tmp_path):
        pass


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(OptionError, match=r"'.*file' cannot be created"),
        dump_onnx("m", tmp_path / "file"),
    ):
        pass


def test_a_training_step_writes_forward_and_backward(tmp_path: Path) -> None:
    torch._dynamo.reset()
    backend, _ = make_aot_ort(dynamic=True, fallback=False)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.ReLU())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with dump_onnx("step", tmp_path, clean=True) as files:
        compiled(torch.randn(4, 5)).sum().backward()
    assert names(files) == ["step_0.onnx", "step_0.txt", "step_1.onnx", "step_1.txt"]
    forward, backward = (onnx.load(file) for file in files if file.suffix == ".onnx")
    assert "Relu" in {node.op_type for node in forward.graph.node}
    assert len(backward.graph.node) > 0
    assert "aten.relu" in files[1].read_text()
