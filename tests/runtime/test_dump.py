"""Files written for each exported graph."""

from __future__ import annotations

import os

import onnx
import onnx_ir as ir
import pytest

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime import model_files
from dort_rewriter.runtime.dump import dump_graph
from tests.runtime.graphs import parse
from tests.runtime.test_session import weighted


def model() -> onnx.ModelProto:
    return parse("(float[N] x) => (float[N] y) { y = Neg(x) }")


def names(folder) -> list[str]:
    return sorted(os.listdir(folder))


def test_nothing_is_written_unless_asked(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("ONNXRT_DUMP_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    assert dump_graph(model(), "graph()") is None
    assert names(tmp_path) == []


@pytest.mark.parametrize("form", [lambda m: m, ir.from_proto, lambda m: m.SerializeToString()])
def test_numbers_count_from_0_for_each_prefix(form, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "a_"))
    first = dump_graph(form(model()), "graph 0")
    dump_graph(form(model()), "graph 1")
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "b_"))
    dump_graph(form(model()), "other é")
    dump_graph(form(model()), "last", prefix=str(tmp_path / "a_"))
    stems = ["a_0", "a_1", "a_2", "b_0"]
    assert names(tmp_path) == sorted(f"{s}.{e}" for s in stems for e in ("onnx", "txt"))
    assert first == tmp_path / "a_0.onnx"
    assert onnx.load(first).graph.node[0].op_type == "Neg"
    assert (tmp_path / "a_1.txt").read_text() == "graph 1"
    assert (tmp_path / "b_0.txt").read_text(encoding="utf-8") == "other é"


def test_weights_beyond_one_message(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(model_files, "INLINE_LIMIT", 1000)
    path = dump_graph(weighted(), "graph", prefix=str(tmp_path / "m"))
    assert names(tmp_path) == ["m0.onnx", "m0.onnx.data", "m0.txt"]
    loaded = onnx.load(path)
    assert len(loaded.graph.initializer[0].raw_data) == 4096


def test_missing_folder_is_an_error(tmp_path) -> None:
    prefix = str(tmp_path / "missing" / "m")
    with pytest.raises(ExecutionError, match="ONNXRT_DUMP_PATH must be the prefix"):
        dump_graph(model(), "graph", prefix=prefix)
    assert names(tmp_path) == []


def test_failure_leaves_nothing_and_keeps_the_number(tmp_path) -> None:
    blocker = tmp_path / "m0.txt"
    blocker.mkdir()
    prefix = str(tmp_path / "m")
    with pytest.raises(ExecutionError, match="cannot be written"):
        dump_graph(model(), "graph", prefix=prefix)
    assert names(tmp_path) == ["m0.txt"]
    blocker.rmdir()
    dump_graph(model(), "graph", prefix=prefix)
    assert names(tmp_path) == ["m0.onnx", "m0.txt"]
