"""Results of kernels that nobody reads."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from dort_rewriter.optimize.provider_fit import drop_unused_results

BACKWARD = """
<ir_version: 10, opset_import: ["": 20, "dort_rewriter": 1]>
g (float[2, 4, 5, 5] y, float[2, 3, 5, 5] x, float[4, 3, 1, 1] w) => (float[4, 3, 1, 1] made) {
    of_x, made, of_b = dort_rewriter.convolution_backward (y, x, w)
}
"""


@pytest.mark.parametrize("reader", [None, "Relu"])
def test_they_get_no_name(reader: str | None) -> None:
    """Those of gradients of convolutions, unless a node or the caller reads them."""
    model = ir.from_onnx_text(BACKWARD)
    (node,) = model.graph
    if reader:
        model.graph.append(ir.node(reader, [node.outputs[0]]))
    assert drop_unused_results(model) == (1 if reader else 2)
    names = [result.name for result in node.outputs]
    assert names == ["of_x" if reader else "", "made", ""]
    written = ir.to_proto(model).graph.node[0].output
    assert list(written) == names[: len(written)]
    assert drop_unused_results(model) == 0


def test_results_of_others_stay() -> None:
    """Of a kernel that makes all of them, and of operators that are not ours."""
    model = ir.from_onnx_text(BACKWARD.replace("convolution_backward", "SoftmaxGrad"))
    assert drop_unused_results(model) == 0
