"""Models whose bytes are known: what onnxruntime needs is answered without reading them."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime.model_files import serialized
from dort_rewriter.runtime.session import create_session, explain_failure
from dort_rewriter.runtime.stored_model import (
    StoredModel,
    is_message,
    uses_custom_kernels,
    uses_torch_kernels,
)

TEXT = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }'


@pytest.fixture
def stored(tmp_path: Path) -> StoredModel:
    model = onnx.parser.parse_model(TEXT)
    model.graph.node[0].name = "negative"
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    return StoredModel(path.read_bytes(), path, torch_kernels=False)


def test_it_is_the_bytes_of_a_model(stored: StoredModel) -> None:
    with serialized(stored) as source:
        assert source is stored
    session = create_session(stored)
    assert session.input_types == {"x": "tensor(float)"}
    assert not uses_custom_kernels(stored)


@pytest.mark.parametrize("known", [True, False])
def test_kernels_of_torch_are_what_its_writer_knew(known: bool, stored: StoredModel) -> None:
    assert uses_torch_kernels(StoredModel(stored, stored.path, torch_kernels=known)) is known


def test_nodes_are_named_from_the_file(stored: StoredModel) -> None:
    nodes = create_session(stored).nodes
    assert dict(nodes) == {"negative": "Neg(x)"}
    assert len(nodes) == 1
    error = RuntimeError("Non-zero status code while running Neg node. Name:'negative'")
    assert explain_failure(error, nodes).endswith("Node 'negative' is Neg(x).")


@pytest.mark.parametrize("damage", ["gone", "none"])
def test_without_the_file_less_is_said(damage: str, stored: StoredModel) -> None:
    if damage == "gone":
        stored.path.unlink()
    else:
        stored.path.write_bytes(b"none")
    nodes = create_session(stored).nodes
    assert explain_failure(RuntimeError("Name:'negative'"), nodes) == "Name:'negative'"


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ExecutionError, match="cannot build a session"):
        create_session(StoredModel(b"none", path, torch_kernels=False))


def test_messages_are_told_from_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    message = onnx.parser.parse_model(TEXT)
    assert is_message(message)
    assert not is_message(ir.from_proto(message))
    assert not is_message(b"")
    monkeypatch.delitem(sys.modules, "onnx")
    assert not is_message(torch)
