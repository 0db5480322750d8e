"""Dumped inputs come back as they were, and run nobody's code."""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch

from dort_rewriter import (
    DortError,
    OptionError,
    assert_all_close,
    dump_for_debug,
    replay_dumped_data,
)
from dort_rewriter.kernels.loading import is_available
from dort_rewriter.kernels.operators import OWN_DOMAIN
from tests.runtime.graphs import parse

LINEAR = "(float[N] x, int64 n) => (float[N] y, int64 m) { y = Neg(x)\n m = Neg(n) }"

VALUES = {
    "float32": torch.randn(2, 3),
    "scalar": torch.tensor(3),
    "empty": torch.zeros(0, 2),
    "bool": torch.tensor([True, False]),
    "bfloat16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "float8": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn),
    "not contiguous": torch.arange(6).reshape(2, 3).t(),
    "array": np.arange(4, dtype=np.uint16),
    "bfloat16 array": np.array([[0.5]], dtype=ml_dtypes.bfloat16),
    "numbers": [1, True, -0.1, math.inf, 2**70],
    "none and text": (None, "é"),
    "nested": {"a": [torch.ones(1), {"float": (1.0,)}], "tensor": None},
}


@pytest.mark.parametrize("name", VALUES)
def test_an_input_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    value = VALUES[name]
    dump_for_debug(tmp_path, value)
    _, (got,) = replay_dumped_data(tmp_path)
    assert type(got) is type(value)
    assert_all_close(value, got, atol=0.0, rtol=0.0)


def test_a_gradient_is_still_needed_and_nan_is_still_nan(tmp_path: Path) -> None:
    dump_for_debug(tmp_path, torch.nn.Parameter(torch.ones(2)), math.nan)
    _, (weight, number) = replay_dumped_data(tmp_path)
    assert weight.requires_grad
    assert math.isnan(number)


def test_the_layout_is_that_of_onnx(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    case = dump_for_debug(str(folder), torch.ones(2), 3, torch.zeros(1), model=parse(LINEAR))
    assert case == folder / "test_case_0"
    assert sorted(os.listdir(folder)) == ["model.onnx", "test_case_0"]
    assert sorted(os.listdir(case)) == ["input_0.pb", "input_1.pb", "inputs.json"]
    tensor = onnx.TensorProto.FromString((case / "input_0.pb").read_bytes())
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), [1.0, 1.0])


def test_the_model_runs_again(tmp_path: Path) -> None:
    for case in range(2):
        dump_for_debug(tmp_path, torch.full((3,), case + 1.0), case, model=parse(LINEAR))
    run, inputs = replay_dumped_data(tmp_path, 1, ort_optimization_level="disable")
    y, m = run(*inputs)
    torch.testing.assert_close(y, torch.full((3,), -2.0))
    torch.testing.assert_close(m, torch.tensor(-1))
    y, _ = run(np.float32([4.0]), 0)
    torch.testing.assert_close(y, torch.tensor([-4.0]))
    with pytest.raises(OptionError, match=r"reads 2 inputs \(x, n\), 1 are given"):
        run(torch.ones(1))


def test_a_folder_is_for_one_model(tmp_path: Path) -> None:
    dump_for_debug(tmp_path, torch.ones(1), model=parse(LINEAR))
    with pytest.raises(OptionError, match="another model"):
        dump_for_debug(tmp_path, torch.ones(1), model=parse(LINEAR.replace("Neg(x)", "Abs(x)")))
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "test_case_0"]


def test_without_a_model_the_inputs_are_read_and_nothing_runs(tmp_path: Path) -> None:
    dump_for_debug(tmp_path, torch.ones(1))
    run, inputs = replay_dumped_data(tmp_path)
    assert len(inputs) == 1
    with pytest.raises(OptionError, match="holds inputs but no model"):
        run(*inputs)


class Pickled:
    """What only pickle could store."""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Pickled(), "input 1 is a Pickled"),
        ([1, {"a": Pickled()}], r"input 1\[1\]\['a'\] is a Pickled"),
        ({1: 2}, "input 1 is a dict"),
        (torch.ones(1, dtype=torch.complex64), r"input 1: ONNX stores no torch\.complex64"),
        (np.array([Pickled()]), "input 1: ONNX stores no object"),
    ],
)
def test_what_has_no_safe_form_is_refused(value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        dump_for_debug(tmp_path, 1, value)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OptionError, match="Nothing can be written to"):
        dump_for_debug(tmp_path / "file", 1)


def test_a_missing_case_names_those_there_are(tmp_path: Path) -> None:
    for _ in range(3):
        dump_for_debug(tmp_path, 1)
    with pytest.raises(OptionError, match=r"no test case 7; it has \[0, 1, 2\]"):
        replay_dumped_data(tmp_path, 7)
    with pytest.raises(OptionError, match=r"no test case 0; it has \[\]"):
        replay_dumped_data(tmp_path / "none")


def _edit(case: Path, change: dict[str, Any]) -> None:
    content = json.loads((case / "inputs.json").read_text())
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)  # to write what is too deep to be read
    text = json.dumps({**content, **change})
    sys.setrecursionlimit(limit)
    (case / "inputs.json").write_text(text)


def _deep(levels: int) -> Any:
    item: Any = 1
    for _ in range(levels):
        item = {"list": [item]}
    return item


def _store(case: Path, **fields: Any) -> None:
    """Another tensor, which is to have a gradient."""
    (case / "input_0.pb").write_bytes(onnx.TensorProto(**fields).SerializeToString())
    _edit(case, {"inputs": [{"tensor": 0, "requires_grad": True}]})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: (c / "inputs.json").write_text("{"), "JSONDecodeError"),
        (lambda c: (c / "inputs.json").unlink(), "FileNotFoundError"),
        (lambda c: (c / "input_0.pb").unlink(), "FileNotFoundError"),
        (lambda c: (c / "input_0.pb").write_bytes(b"no tensor at all"), "DecodeError"),
        (lambda c: _edit(c, {"format": 2}), "format 2, not 1"),
        (lambda c: _edit(c, {"inputs": [{"code": "1"}]}), "unknown kind 'code'"),
        (lambda c: _edit(c, {"inputs": [{"array": "../../x"}]}), "ValueError"),
        (lambda c: (c / "inputs.json").write_text("{}"), "KeyError"),
        (lambda c: (c / "inputs.json").write_text("[" * 3000 + "]" * 3000), "Error"),
        (lambda c: (c / "inputs.json").write_text("[]"), "TypeError"),
        (lambda c: (c / "inputs.json").write_bytes(b"\xff"), "UnicodeDecodeError"),
        (lambda c: _edit(c, {"inputs": [{}]}), "without a kind"),
        (lambda c: _edit(c, {"inputs": "abc"}), "str instead of a list"),
        (lambda c: _edit(c, {"inputs": [_deep(3000)]}), "Error"),
        (lambda c: _edit(c, {"inputs": [{"tensor": 0}]}), "KeyError"),
        (lambda c: _edit(c, {"inputs": [{"tensor": None}]}), "TypeError"),
        (lambda c: _edit(c, {"inputs": [{"tensor": 1e999}]}), "OverflowError"),
        (lambda c: _edit(c, {"inputs": [{"float": 1}]}), "TypeError"),
        (lambda c: _edit(c, {"inputs": [{"float": "0x1p99999"}]}), "OverflowError"),
        (lambda c: _edit(c, {"inputs": [{"dict": [1]}]}), "AttributeError"),
        (lambda c: _edit(c, {"inputs": [{"list": 1}]}), "TypeError"),
        (lambda c: _store(c, data_type=1, dims=[9], raw_data=b"1234"), "4 elements or bytes"),
        (lambda c: _store(c, data_type=1, dims=[9]), "0 elements or bytes"),
        (lambda c: _store(c, data_type=99, dims=[1], raw_data=b"1"), "ValueError"),
        (lambda c: _store(c, data_type=7, dims=[1], raw_data=b"12345678"), "RuntimeError"),
    ],
)
def test_damaged_files_are_named(damage: Any, message: str, tmp_path: Path) -> None:
    damage(dump_for_debug(tmp_path, torch.ones(1)))
    with pytest.raises(OptionError, match=rf"test_case_0' is damaged.*{message}"):
        replay_dumped_data(tmp_path)


def test_a_tensor_cannot_read_another_file(tmp_path: Path) -> None:
    case = dump_for_debug(tmp_path, torch.ones(1))
    (tmp_path / "secret").write_bytes(b"1234")
    tensor = onnx.TensorProto(data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    (case / "input_0.pb").write_bytes(tensor.SerializeToString())
    with pytest.raises(OptionError, match="refers to another file"):
        replay_dumped_data(tmp_path)


@pytest.mark.parametrize(
    "program",
    [
        [18, 0, 1000000, -1, 0],
        [0, 2**62, -1, -1, 0],
        [6, 0, -1000000, 0, 0],
        [99, 0, -1, -1, 0],
        [6, 0, -(2**63), 0, 0],
    ],
)
def test_a_crafted_program_is_an_error(program: list[int], tmp_path: Path) -> None:
    """It reads and writes nothing outside of its tensors."""
    if not is_available():
        pytest.skip("there is no C++ compiler")
    model = onnx.parser.parse_model(
        f'''<ir_version: 8, opset_import: ["": 18, "{OWN_DOMAIN}": 1]>
        g (float[N] x) => (float[N] y) {{
            y = {OWN_DOMAIN}.Elementwise<program = {program}, results = [0]>(x)
        }}'''
    )
    x = torch.ones(700)
    dump_for_debug(tmp_path, x, model=model)
    with pytest.raises(DortError, match=r"program|registers|instructions"):
        replay_dumped_data(tmp_path)
