"""Which gradients of attention MKL computes."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from dort_rewriter.kernels.operators import MKL_ATTENTION_GRAD, TORCH_FLASH
from dort_rewriter.optimize.mkl import differentiate_by_mkl

TEXT = """<ir_version: 8, opset_import: ["" : 18, "dort_rewriter" : 1]>
graph (TYPE[2,3,4,8] g, TYPE[2,3,4,8] q, TYPE[2,3,5,8] k, TYPE[2,3,5,8] v)
    => (TYPE[2,4,3,8] x, TYPE[2,3,5,8] y) {
    out, sums = dort_rewriter.NAME (q, k, v)
    x, , y = dort_rewriter.NAME_backward <is_causal = 1, scale = 0.5, order0 = [0, 2, 1, 3]>
        (g, q, k, v, out, sums)
}"""


def model_of(dtype: str) -> ir.Model:
    text = TEXT.replace("TYPE", dtype).replace("NAME", TORCH_FLASH)
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("of_bfloat16", [False, True])
@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
def test_a_gradient_by_torchs_kernel(dtype: str, of_bfloat16: bool) -> None:
    """It keeps what it reads, gives and knows; the attention itself is left alone."""
    model = model_of(dtype)
    assert differentiate_by_mkl(model, of_bfloat16=of_bfloat16) == 1
    attention, gradient = model.graph
    assert (attention.op_type, gradient.op_type) == (TORCH_FLASH, MKL_ATTENTION_GRAD)
    assert [v.name for v in gradient.inputs if v is not None] == "g q k v out sums".split()
    assert [v.name for v in gradient.outputs] == ["x", "", "y"]
    assert list(model.graph.outputs) == [gradient.outputs[0], gradient.outputs[2]]
    known = {name: a.value for name, a in gradient.attributes.items()}
    narrow = {"of_bfloat16": 1} if of_bfloat16 and dtype == "bfloat16" else {}
    assert known == {"is_causal": 1, "scale": 0.5, "order0": (0, 2, 1, 3), **narrow}
    assert differentiate_by_mkl(model, of_bfloat16=of_bfloat16) == 0
