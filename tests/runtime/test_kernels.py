"""What the installed onnxruntime answers about its kernels, held against what it then runs."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from dort_rewriter.errors import ExecutionError
from dort_rewriter.ort_module import load_onnxruntime, max_opset
from dort_rewriter.runtime.kernel_query import has_kernel, kernel_query
from dort_rewriter.runtime.session import create_session
from tests.runtime.graphs import parse

D = ir.DataType
MS = "com.microsoft"


@pytest.mark.parametrize(
    ("op_type", "domain", "types", "expected"),
    [
        ("Add", "", [D.FLOAT, D.FLOAT], True),
        ("Add", "", [D.BFLOAT16, D.BFLOAT16], False),
        ("Reshape", "", [D.BFLOAT16, D.INT64], True),
        ("Erf", "", [D.DOUBLE], False),
        ("Conv", "", [D.DOUBLE, D.DOUBLE], False),
        ("Conv", "", [D.FLOAT, D.FLOAT], True),
        ("Clip", "", [D.FLOAT, None, D.FLOAT], True),
        ("Add", "", [D.STRING, D.STRING], False),
        ("NoSuchOp", "", [D.FLOAT], False),
        ("NoSuchOp", MS, [D.FLOAT], False),
        ("FusedMatMul", MS, [D.FLOAT, D.FLOAT], True),
        # Nodes in float16 need nothing: onnxruntime puts the casts itself.
        ("Erf", "", [D.FLOAT16], True),
        ("Conv", "", [D.FLOAT16, D.FLOAT16], True),
    ],
)
def test_answers(op_type: str, domain: str, types: list, expected: bool) -> None:
    version = 1 if domain else 18
    assert has_kernel(op_type, domain, version, types) is expected


@pytest.mark.parametrize("op", ["Erf", "Sin", "Softmax", "Gelu", "Neg", "Sigmoid", "Round"])
@pytest.mark.parametrize("name", ["float", "double", "float16", "bfloat16", "int64"])
def test_answers_agree_with_sessions(op: str, name: str) -> None:
    types = {"float": 1, "double": 11, "float16": 10, "bfloat16": 16, "int64": 7}
    model = parse(f"({name}[N] x) => ({name}[N] y) {{ y = {op}(x) }}", 20)
    try:
        create_session(model)
        built = True
    except ExecutionError:
        built = False
    assert has_kernel(op, "", 20, [types[name]]) is built


def test_attributes_and_outputs() -> None:
    attributes = {"kernel_shape": [2, 2]}
    assert has_kernel("MaxPool", "", 18, [D.FLOAT], attributes=attributes, outputs=2)
    assert not has_kernel("MaxPool", "", 18, [D.BFLOAT16], attributes=attributes)
    with pytest.raises(ExecutionError, match="needs its attributes"):
        has_kernel("MaxPool", "", 18, [D.FLOAT])


def test_newer_opset_than_loadable() -> None:
    assert not has_kernel("Add", "", max_opset() + 1, [D.FLOAT, D.FLOAT])


def test_gradient_kernels_belong_to_the_training_build() -> None:
    training = hasattr(load_onnxruntime().RunOptions(), "training_mode")
    assert has_kernel("ConvGrad", MS, 1, [D.FLOAT] * 3, outputs=2) is training


def test_shapes_are_tried() -> None:
    """A kernel may be there, and refuse what it is given."""
    types = [D.FLOAT] * 3
    attributes = {"num_heads": 2}
    fitting = [(1, 3, 8), (1, 2, 5, 4), (1, 2, 5, 4)]
    assert has_kernel("MultiHeadAttention", MS, 1, types, attributes=attributes, shapes=fitting)
    other = [(1, 3, 8), (1, 3, 5, 4), (1, 2, 5, 4)]
    assert not has_kernel("MultiHeadAttention", MS, 1, types, attributes=attributes, shapes=other)


def test_the_optimizer_hears_of_no_slow_kernel() -> None:
    """They run: they are only slower than what they would replace."""
    types = [D.FLOAT] * 4
    assert has_kernel("SkipLayerNormalization", MS, 1, types)
    assert not kernel_query()("SkipLayerNormalization", MS, 1, types)
    assert kernel_query()("MultiHeadAttention", MS, 1, types[:3], attributes={"num_heads": 2})
