"""Models that are read: nobody knows who wrote them."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from dort_rewriter import OptimizeError, OptionError, optimize_onnx, replay_dumped_data
from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime import model_files
from dort_rewriter.runtime.model_files import (
    StoredModel,
    check_tensor,
    dump_graph,
    from_message,
    is_message,
    read_model,
    serialized,
    uses_custom_kernels,
    uses_torch_kernels,
)
from dort_rewriter.runtime.session import create_session, explain_failure
from dort_rewriter.tools import cli
from dort_rewriter.tools.models import load_model
from tests.runtime.graphs import parse
from tests.runtime.test_session import weighted

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


WEIGHT = np.arange(4, dtype=np.float32)


def _external(location: str, **entries: int) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _model(weight: onnx.TensorProto) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, 1, [4]) for name in "xy")
    node = helper.make_node("Add", ["x", "w"], ["y"], name="add")
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


def _nested(weight: onnx.TensorProto) -> onnx.ModelProto:
    """The same weight in a graph inside a node."""
    model = _model(weight)
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["z"])],
        "inner",
        [],
        [helper.make_tensor_value_info("z", 1, [4])],
        [weight],
    )
    condition = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", 9, [], [1]))
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    model.graph.node.pop()
    model.graph.initializer.pop()
    model.graph.node.extend([condition, branch])
    return model


def _attribute(weight: onnx.TensorProto) -> onnx.ModelProto:
    model = _model(weight)
    model.graph.initializer.pop()
    node = helper.make_node("Constant", [], ["w"])
    node.attribute.append(onnx.AttributeProto(name="value", type=4, t=weight))
    model.graph.node.insert(0, node)
    return model


def _function(weight: onnx.TensorProto) -> onnx.ModelProto:
    """The weight is a constant of a function of the model."""
    constant = helper.make_node("Constant", [], ["w"])
    constant.attribute.append(onnx.AttributeProto(name="value", type=4, t=weight))
    add = helper.make_node("Add", ["x", "w"], ["y"])
    model = _model(weight)
    model.graph.initializer.pop()
    model.graph.node.pop()
    model.graph.node.append(helper.make_node("F", ["x"], ["y"], domain="d"))
    opsets = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("d", "F", ["x"], ["y"], [constant, add], opsets))
    model.opset_import.append(helper.make_opsetid("d", 1))
    return model


@pytest.fixture(name="folder")
def make_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, beside one with a file that no model may read."""
    folder = tmp_path / "models"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(WEIGHT.tobytes())
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "out").symlink_to(tmp_path)
    (folder / "w.bin").write_bytes(WEIGHT.tobytes())
    monkeypatch.chdir(folder)
    return folder


OUTSIDE = ["../secret", "ABSOLUTE", "link", "out/secret", "x/../../secret", ".", ""]


@pytest.mark.parametrize("wrap", [_model, _nested, _attribute, _function])
@pytest.mark.parametrize("location", OUTSIDE)
def test_weights_are_in_the_folder_of_the_model(
    location: str, wrap: Callable[[onnx.TensorProto], onnx.ModelProto], folder: Path
) -> None:
    """However the model and the file are named."""
    model = wrap(_external(location.replace("ABSOLUTE", str(folder.parent / "secret"))))
    Path("model.onnx").write_bytes(model.SerializeToString())
    names = ("model.onnx", "./model.onnx", Path("model.onnx"), folder / "model.onnx")
    for name in names:
        with pytest.raises(OptimizeError, match=r"refers to|has no"):
            optimize_onnx(name)
        with pytest.raises(OptionError, match="refers to"):
            load_model(name)
    with pytest.raises(OptionError, match="refers to"):
        load_model(model)
    with pytest.raises(OptionError, match="refers to"):
        load_model(model.SerializeToString())
    with pytest.raises(OptimizeError, match="refers to"):
        optimize_onnx(model)
    assert cli.main(["show", "model.onnx"]) == 1
    (folder / "test_case_0").mkdir()
    (folder / "test_case_0" / "inputs.json").write_text('{"format": 1, "inputs": []}')
    with pytest.raises(OptionError, match="refers to"):
        replay_dumped_data(".")


@pytest.mark.parametrize("wrap", [_model, _nested])
@pytest.mark.parametrize("location", ["w.bin", "./w.bin", "below/w.bin"])
def test_weights_in_the_folder_are_read(
    location: str, wrap: Callable[[onnx.TensorProto], onnx.ModelProto], folder: Path
) -> None:
    """Also when neither the model nor the file names a folder."""
    (folder / "below").mkdir()
    (folder / "below" / "w.bin").write_bytes(WEIGHT.tobytes())
    Path("model.onnx").write_bytes(wrap(_external(location)).SerializeToString())
    graphs = list(read_model("model.onnx").graphs())
    found = [v.const_value for g in graphs for v in g.initializers.values()]
    assert found
    for tensor in found:
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), WEIGHT)
    optimize_onnx("model.onnx")


@pytest.mark.parametrize(
    "weight",
    [
        _external("w.bin", offset=-4),
        _external("w.bin", length=-4),
        _external("w.bin", offset=8),
        _external("none.bin"),
        _external("folder"),
        _external("pipe"),
        onnx.TensorProto(name="w", data_type=1, dims=[4], raw_data=b"1234"),
        onnx.TensorProto(name="w", data_type=1, dims=[4], float_data=[1.0]),
        onnx.TensorProto(name="w", data_type=1, dims=[4]),
        onnx.TensorProto(name="w", data_type=1, dims=[-4]),
        onnx.TensorProto(name="w", data_type=1, dims=[2**40, 2**40]),
        onnx.TensorProto(name="w", data_type=99, dims=[4], raw_data=b"1234"),
        onnx.TensorProto(name="w", data_type=0, dims=[1], raw_data=b"1"),
    ],
)
def test_a_damaged_weight_is_one_line(
    weight: onnx.TensorProto, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For every command that reads it; a missing file is shown as missing."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    Path("model.onnx").write_bytes(_model(weight).SerializeToString())
    with pytest.raises(OptimizeError):
        optimize_onnx("model.onnx")
    code = cli.main(["show", "model.onnx"])
    shown = capsys.readouterr()
    assert (code, shown.err.count("\n")) in ((0, 0), (1, 1))


@pytest.mark.parametrize("dtype", [d for d in ir.DataType if d.value not in (0, 8)])
def test_whole_tensors_are_taken(dtype: ir.DataType) -> None:
    """As they are written, in both forms."""
    for size in (0, 1, 3, 4):
        array = np.zeros(size, dtype.numpy())
        tensor = ir.to_proto(ir.Tensor(array, dtype=dtype, name="w"))
        check_tensor(tensor)
        tensor.dims[0] = size + 9
        with pytest.raises(ValueError, match="elements or bytes"):
            check_tensor(tensor)
    for kind in (1, 6, 7, 9, 10, 11, 12, 14, 15, 16):
        check_tensor(helper.make_tensor("w", kind, [3], [1, 0, 1]))
    check_tensor(helper.make_tensor("w", 8, [2], [b"a", b"b"]))


FORMS = ["model.onnx", "model.textproto", "model.json", "model.onnxjson"]


@pytest.mark.parametrize("name", FORMS)
def test_any_bytes_end_in_one_line(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cut short, changed in places, or nothing that was a model."""
    onnx.save(_nested(onnx.numpy_helper.from_array(WEIGHT, "w")), name)
    good = Path(name).read_bytes()
    draw = random.Random(name)
    assert cli.main(["show", name]) == 0
    capsys.readouterr()
    for round_ in range(150):
        data = bytearray(good)
        for _ in range(draw.randint(0, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        cut = data[: draw.randrange(len(data))] if round_ % 3 == 0 else data
        Path(name).write_bytes(draw.randbytes(40) if round_ % 10 == 0 else cut)
        code = cli.main(["show", name])
        shown = capsys.readouterr()
        assert (code, shown.err.count("\n")) in ((0, 0), (1, 1))


def test_deep_nesting_is_one_line(folder: Path) -> None:
    """Messages within messages beyond what protobuf reads, and text beyond Python's stack."""
    Path("model.json").write_text('{"graph": {"node": [' * 3000)
    for data in (b"\x3a\x02" * 5000, b"[" * 100_000):
        with pytest.raises(ValueError, match=r"\w"):
            from_message(data)
    with pytest.raises(OptionError):
        load_model("model.json")


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
    with pytest.raises(ExecutionError, match="what is given for it must be the prefix"):
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
