"""One node in a session of its own: what it reads, what it gives."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import onnx.reference
import torch

from dort_rewriter.runtime.reference import ReferenceModel

BRANCHES = """<ir_version: 8, opset_import: ["" : 18]>
graph (float[2] x, bool choice) => (float[2] y) {
    double = Add(x, x)
    y = If (choice) <
        then_branch = then_graph () => (float[2] t) { t = Mul(double, x) },
        else_branch = else_graph () => (float[2] e) { e = Sub(double, x) }
    >
}"""

POOLING = """<ir_version: 8, opset_import: ["" : 18]>
graph (float[1, 1, 2, 2] x, float top) => (float[1, 1, 1, 1] y) {
    y, _ = MaxPool <kernel_shape = [2, 2]> (x)
    clipped = Clip (x, , top)
}"""


OWN = """<ir_version: 8, opset_import: ["" : 18, "dort_rewriter" : 1]>
graph (float[4] x) => (float[4] y) <bfloat16[4] b, bfloat16[4] c> {
    b = Cast <to = 16> (x)
    c = dort_rewriter.Elementwise <program = [2, 0, -1, -1, 0], results = [0]> (b)
    y = dort_rewriter.Elementwise <program = [6, 0, -1, 0, 0], results = [0]> (c)
}"""


def run(text: str, **feeds: Any) -> dict[str, Any]:
    return ReferenceModel(onnx.parser.parse_model(text), engine="onnxruntime").run(feeds)


def test_a_branch_reads_what_stands_outside_of_it() -> None:
    x = np.array([1.0, 3.0], dtype=np.float32)
    for choice, expected in ((True, 2 * x * x), (False, x)):
        results = run(BRANCHES, x=x, choice=np.array(choice))
        np.testing.assert_allclose(results["y"], expected)


def test_inputs_may_be_left_out() -> None:
    x = np.array([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=np.float32)
    results = run(POOLING, x=x, top=np.array(2, dtype=np.float32))
    np.testing.assert_allclose(results["y"], [[[[4.0]]]])
    np.testing.assert_allclose(results["clipped"], np.minimum(x, 2))


def test_a_type_that_numpy_lacks_runs_in_the_reference() -> None:
    text = BRANCHES.replace("float[2]", "bfloat16[2]").replace("Mul(double, x)", "Add(double, x)")
    x = np.array([1.0, 3.0], dtype=ml_dtypes.bfloat16)
    results = run(text, x=x, choice=np.array(True))
    np.testing.assert_allclose(results["y"].astype(np.float32), [3.0, 9.0])


def test_a_kernel_of_torch_runs_on_a_type_that_numpy_lacks() -> None:
    """And gives results of several types, of which the model alone knows."""
    flash = "dort_rewriter._scaled_dot_product_flash_attention_for_cpu"
    results = ReferenceModel(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : 18, "dort_rewriter" : 1]>
            graph (bfloat16[1,2,3,4] q) => (bfloat16[1,2,3,4] y, float[1,2,3] s)
            {{ y, s = {flash}(q, q, q) }}"""
        ),
        engine="onnxruntime",
    ).run({"q": np.ones((1, 2, 3, 4), dtype=ml_dtypes.bfloat16)})
    assert results["y"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(results["y"].astype(np.float32), 1)
    q = torch.ones(1, 2, 3, 4).bfloat16()
    _, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q)
    np.testing.assert_array_equal(results["s"], sums.numpy())


def test_kernels_of_our_own_read_and_write_bfloat16() -> None:
    """numpy has no such type, onnxruntime's Python neither."""
    x = torch.randn(4)
    results = run(OWN, x=x.numpy())
    squared = x.bfloat16() * x.bfloat16()
    np.testing.assert_array_equal(results["c"].astype(np.float32), squared.float().numpy())
    np.testing.assert_array_equal(results["y"], -squared.float().numpy())
