"""What a provider compiles of a saved model lies beside it, and is made again if it is of no use.

The CPU's provider stands for one that compiles: what it makes of a model is that model.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import dort_rewriter
from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.runtime import compiled_forms, session
from dort_rewriter.runtime.compiled_forms import CompiledForm
from dort_rewriter.runtime.providers import CPU
from dort_rewriter.tools.saved_text import read_saved


@pytest.fixture(name="compiles")
def count_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of what was compiled so far."""
    found: list[str] = []

    def build(providers: Any, options: Any, without: Any = ()) -> Callable[[bytes], Any]:
        ort = session.load_onnxruntime()
        return functools.partial(ort.InferenceSession, sess_options=options, providers=[CPU])

    def make(self: CompiledForm, build: Any, options: Any, errors: Any) -> Any:
        if self._stores:
            found.append(self._key)
            self._made = sources[-1]
        return None  # the session is built as ever

    sources: list[bytes] = []
    real = compiled_forms._key

    def key(source: bytes, *others: Any) -> str:
        sources.append(source)
        return real(source, *others)

    monkeypatch.setattr(compiled_forms, "_key", key)
    monkeypatch.setattr(CompiledForm, "make", make)
    monkeypatch.setattr(session, "is_plug_in", lambda name: name == CPU)
    monkeypatch.setattr(session, "_builder", build)
    return found


X = torch.linspace(-1, 1, 8).reshape(2, 4)


def _save(folder: Path, *, training: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).train(training)
    compiled = torch.compile(model, backend=OrtBackend())
    with torch.set_grad_enabled(training):
        dort_rewriter.save(compiled, folder, X, training=training)
    return model


def _forms(folder: Path) -> list[Path]:
    return sorted(folder.glob("compiled-*.bin"))


@pytest.mark.parametrize("training", [False, True])
def test_it_is_compiled_once(tmp_path: Path, compiles: list[str], training: bool) -> None:
    model = _save(tmp_path, training=training)
    files = json.loads((tmp_path / "saved.json").read_text())["content"]["files"]
    kinds = ("model", "backward") if training else ("model",)
    named = {files[f"{kind} 0 compiled"]["file"] for kind in kinds}
    assert named == {path.name for path in _forms(tmp_path)}
    compiles.clear()
    loaded = dort_rewriter.load(tmp_path)
    torch.testing.assert_close(loaded(X), model(X))
    assert compiles == []
    assert f"compiled: {min(named)}" in str(read_saved(tmp_path)) or training
    _save(tmp_path, training=training)
    assert not named & {path.name for path in _forms(tmp_path)}, "older ones go"


def _damage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = _forms(folder)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _remove(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _forms(folder)[0].unlink()


def _shorten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = _forms(folder)
    path.write_bytes(path.read_bytes()[:-1])


def _update(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_forms, "describe", lambda: "another release")


@pytest.mark.parametrize("change", [_damage, _remove, _shorten, _update])
def test_what_is_damaged_or_foreign_is_compiled_again(
    tmp_path: Path,
    compiles: list[str],
    change: Callable[[Path, pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _save(tmp_path)
    change(tmp_path, monkeypatch)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    compiles.clear()
    with caplog.at_level(logging.INFO, "dort_rewriter.deployment"), torch.no_grad():
        loaded = dort_rewriter.load(tmp_path)
        torch.testing.assert_close(loaded(X), model(X))
    assert len(compiles) == 1
    said = "another release or device" if change is _update else "is compiled again"
    assert said in caplog.text
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("mode", [0, None])
def test_what_names_other_files_is_refused(mode: int | None) -> None:
    inside = helper.make_node("EPContext", [], ["y"], domain="com.microsoft", embed_mode=1)
    compiled_forms._check_closed(_model(inside))
    outside = helper.make_node(
        "EPContext", [], ["y"], domain="com.microsoft", ep_cache_context="../../etc/passwd"
    )
    if mode is None:  # the type is missing
        outside.attribute.add(name="embed_mode", i=0)
    else:
        outside.attribute.append(helper.make_attribute("embed_mode", mode))
    with pytest.raises(ValueError, match="in another file"):
        compiled_forms._check_closed(_model(outside))


def test_weights_in_other_files_are_refused() -> None:
    weight = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=1)
    weight.external_data.add(key="location", value="../other")
    node = helper.make_node("Neg", ["w"], ["y"])
    with pytest.raises(ValueError, match="refers to another file"):
        compiled_forms._check_closed(_model(node, [weight]))


def _model(node: onnx.NodeProto, weights: Any = ()) -> bytes:
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "g", [], [result], weights)
    return helper.make_model(graph).SerializeToString()
