"""The place of nodes that nobody but the caller reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from dort_rewriter.optimize.patterns.standard.passes import LeavesLast
from tests.optimize.rewrites import apply, assert_refuses, model_of

BACKWARD = """(float[4,4] g, float[4,4] w, float[4,4] x)
=> (float[4,4] a, float[4,4] b, float[4,4] c) {
    s = Neg(g)
    a = MatMul(x, s)
    t = MatMul(s, w)
    b = MatMul(x, t)
    u = MatMul(t, w)
    c = MatMul(x, u)
}"""


def test_leaves_stand_last_in_reverse() -> None:
    """The first that can run is written last."""
    model = model_of(BACKWARD)
    apply(LeavesLast, model)
    assert [n.outputs[0].name for n in model.graph] == ["s", "t", "u", "c", "b", "a"]
    assert apply(LeavesLast, model).rules["LeavesLast"].matches == 0


def test_onnxruntime_then_runs_them_early(tmp_path: Path) -> None:
    """Each as soon as what it reads is there; as written by the exporter, all at the end."""
    model = model_of(BACKWARD)
    before = _order_of_execution(model, tmp_path / "before")
    apply(LeavesLast, model)
    after = _order_of_execution(model, tmp_path / "after")
    assert before.index("a") > before.index("u")
    assert after.index("a") < after.index("t") < after.index("b") < after.index("u")


def _order_of_execution(model: ir.Model, prefix: Path) -> list[str]:
    for node in model.graph:
        node.name = node.outputs[0].name
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(prefix)
    session = onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, {name: np.ones((4, 4), np.float32) for name in "gwx"})
    events = json.loads(Path(session.end_profiling()).read_text())
    return [e["name"][0] for e in events if e["name"].endswith("_kernel_time")]


def test_one_leaf_is_where_it_should_be() -> None:
    """There is nothing to order."""
    assert_refuses(LeavesLast, "(float[2] x) => (float[2] y) {a = Neg(x) y = Exp(a)}")
