"""Profiles of onnxruntime, read run by run, kernel by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper

from dort_rewriter.ort_module import max_ir_version
from dort_rewriter.runtime.profiling import (
    profiling,
    read_profile,
    source_of,
    sources_of,
    split_by_run,
)
from dort_rewriter.runtime.session import create_session, session_options


def node(ts: int, dur: int, op: str = "Add", suffix: str = "_kernel_time") -> dict[str, Any]:
    args = {"op_name": op}
    return {"cat": "Node", "name": f"n{suffix}", "ts": ts, "dur": dur, "tid": 1, "args": args}


def run(ts: int) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": ts, "dur": 9}


def test_kernels_are_split_by_run() -> None:
    """What is before the first run, or no kernel, is not counted."""
    events = [node(5, 2), node(11, 3), node(14, 1, "Mul"), run(10)]
    events += [node(21, 5), node(27, 2, "A", "_fence_before"), run(20)]
    first, second = split_by_run(events)
    assert first.seconds == second.seconds == 9e-6
    assert first.kernels == (("Add", "n", 3e-6), ("Mul", "n", 1e-6))
    assert second.kernels == (("Add", "n", 5e-6),)


def test_kernels_inside_another_are_taken_from_its_time() -> None:
    inner = [node(12, 2), node(14, 0), node(14, 3, "Mul")]
    (found,) = split_by_run([*inner, node(11, 8, "If"), node(19, 1), run(10)])
    seconds = {op: round(s * 1e6) for op, _, s in found.kernels if s}
    assert seconds["If"] == seconds["Mul"] == 3
    assert sum(s for _, _, s in found.kernels) == pytest.approx(9e-6)


def test_the_line_of_what_onnxruntime_makes() -> None:
    sources = {"node_Mul_1": "one", "node_Mul_12": "twelve", "node_Add_3": "three"}
    assert source_of("node_Mul_12", sources) == "twelve"
    assert source_of("fused node_Add_3", sources) == "three"
    assert source_of("node_Mul_12/QuickGelu", sources) == "twelve"
    assert source_of("node_Mul_123", sources) == ""
    assert source_of("Transpose_token_4", sources) == ""


def model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Exp", ["x"], ["y"], name="a"),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    nodes[0].metadata_props.add(key="source", value="model.py:3")
    values = [helper.make_tensor_value_info(n, 1, [4]) for n in "xz"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, ir_version=max_ir_version(), opset_imports=opsets)


def test_a_session_writes_a_profile_and_the_next_does_not(tmp_path: Path) -> None:
    options = session_options(optimization_level="disable")
    with profiling(options, tmp_path / "profile"):
        session = create_session(model(), options=options)
    assert not options.enable_profiling
    for _ in range(3):
        session.ort.run(None, {"x": torch.ones(4).numpy()})
    create_session(model(), options=options).ort.run(None, {"x": torch.ones(4).numpy()})
    assert len(list(tmp_path.iterdir())) == 1
    runs = read_profile(session)
    assert len(runs) == 3
    for found in runs:
        assert [op for op, _, _ in found.kernels] == ["Exp", "Neg"]
        assert 0 <= sum(s for _, _, s in found.kernels) <= found.seconds


def test_lines_of_models_of_both_kinds() -> None:
    for given in (model(), ir.from_proto(model())):
        assert sources_of(given)["a"] == "model.py:3"
