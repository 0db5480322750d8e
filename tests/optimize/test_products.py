"""Nodes for the kernels that call MKL."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from dort_rewriter.kernels.operators import (
    ATTENTION,
    ATTENTION_GRAD,
    MKL_ATTENTION_GRAD,
    MKL_PRODUCT,
    TORCH_FLASH,
)
from dort_rewriter.optimize.products import attend_by_own, multiply_by_mkl, multiply_small_by_mkl

FLASH_GRAD = f"{TORCH_FLASH}_backward"


def model_of(node: str, *inputs: str) -> ir.Model:
    """A model of one node ``y = node``, of inputs such as ``float[2,3] a``."""
    text = (
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
        f"graph ({', '.join(inputs)}) => (float[] y) {{ y = {node} }}"
    )
    model = onnx.parser.parse_model(text)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    return ir.from_proto(model)


FUSED = "com.microsoft.FusedMatMul"
PRODUCTS: dict[str, tuple[bool, str, list[str]]] = {
    "of a layer": (True, "Gemm <transB=1> (a, b, c)", ["[512,512] a", "[512,512] b", "[512] c"]),
    "of a smaller layer": (
        *(False, "Gemm <transB=1> (a, b, c)"),
        ["[128,512] a", "[512,512] b", "[512] c"],
    ),
    "of its gradient": (True, "MatMul (a, b)", ["[128,512] a", "[512,512] b"]),
    "of a small gradient": (False, "MatMul (a, b)", ["[64,256] a", "[256,256] b"]),
    "of the gradient of a weight": (
        *(True, f"{FUSED} <transA=1> (a, b)"),
        ["[128,128] a", "[128,128] b"],
    ),
    "of the gradient of a small weight": (
        *(False, f"{FUSED} <transA=1> (a, b)"),
        ["[16,32] a", "[16,32] b"],
    ),
    "of rows of three axes": (True, "MatMul (a, b)", ["[4,128,512] a", "[512,512] b"]),
    "of batches": (False, "MatMul (a, b)", ["[64,512,512] a", "[64,512,512] b"]),
    "of batches that are turned": (
        *(False, f"{FUSED} <transA=1> (a, b)"),
        ["[64,512,512] a", "[512,512] b"],
    ),
    "of axes that are turned": (
        *(False, f"{FUSED} <transBatchA=1> (a, b)"),
        ["[64,512,512] a", "[512,512] b"],
    ),
    "of a vector": (False, "MatMul (a, b)", ["[51200] a", "[51200,1000] b"]),
    "of unknown rows": (True, "MatMul (a, b)", ["[N,1024] a", "[1024,1024] b"]),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_that_gain(case: str) -> None:
    """By how their factors are read."""
    expected, node, inputs = PRODUCTS[case]
    model = model_of(node, *(f"float{i}" for i in inputs))
    assert multiply_by_mkl(model) == expected
    (left,) = model.graph
    assert (left.op_type == MKL_PRODUCT) is expected
    assert left.outputs[0].name == "y"
    assert left.outputs[0].is_graph_output()


@pytest.mark.parametrize(("rows", "expected"), [(256, 0), (512, 1)])
def test_weights_that_are_packed_once(rows: int, expected: int) -> None:
    """By ONNX Runtime, where they are constants."""
    model = model_of("MatMul (a, b)", f"float[{rows},1024] a", "float[1024,1024] b")
    weight = model.graph.inputs.pop()
    weight.const_value = ir.tensor(np.zeros((1024, 1024), np.float32), name=weight.name)
    model.graph.register_initializer(weight)
    assert multiply_by_mkl(model) == expected


BY_PARTS: dict[str, tuple[int | None, str, list[str]]] = {
    "of a layer": (0, "MatMul (a, b)", ["[256,256] a", "[256,256] b"]),
    "of rows of three axes": (0, "MatMul (a, b)", ["[4,64,256] a", "[256,256] b"]),
    "of few rows": (None, "Gemm <transB=1> (a, b)", ["[255,512] a", "[512,512] b"]),
    "of few rows for MKL": (0, "MatMul (a, b)", ["[64,1024] a", "[1024,1024] b"]),
    "of rows that are turned": (0, "Gemm <transA=1> (a, b)", ["[64,1024] a", "[64,256] b"]),
    "of a constant": (1, "MatMul (a, b)", ["[64,512] a", "[512,512] b"]),
    "of a constant and few rows": (None, "MatMul (a, b)", ["[63,512] a", "[512,512] b"]),
}


@pytest.mark.parametrize("case", BY_PARTS)
def test_products_by_parts(case: str) -> None:
    """They gain where MKL's do not; the kernel knows the sizes, and whether the second factor is
    the same at each call."""
    constant, node, inputs = BY_PARTS[case]
    model = model_of(node, *(f"float{i}" for i in inputs))
    if "constant" in case:
        weight = model.graph.inputs.pop()
        weight.const_value = ir.tensor(np.zeros((512, 512), np.float32), name=weight.name)
        model.graph.register_initializer(weight)
    assert multiply_by_mkl(model, 6) == (constant is not None)
    (left,) = model.graph
    if constant is not None:
        assert left.attributes["terms"].value == 6
        assert left.attributes["constant"].value == constant


@pytest.mark.parametrize("dtype", ["double", "float16", "bfloat16"])
def test_other_types_stay(dtype: str) -> None:
    model = model_of("MatMul (a, b)", f"{dtype}[512,512] a", f"{dtype}[512,512] b")
    assert multiply_by_mkl(model) == 0


def test_what_scales_a_product_goes_along() -> None:
    """Zeros too: what is added may be no number."""
    settings: dict[str, Any] = {"alpha": 0.5, "beta": 0.0, "transA": 1}
    node = "Gemm <alpha=0.5, beta=0.0, transA=1> (a, b, c)"
    model = model_of(node, "float[128,128] a", "float[128,128] b", "float[128] c")
    assert multiply_by_mkl(model) == 1
    (left,) = model.graph
    assert {n: a.value for n, a in left.attributes.items()} == settings


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float"])
def test_small_products_of_bfloat16(dtype: str, name: str) -> None:
    """Of two matrices; the kernel knows which are small."""
    given = ["c"] * ("add" in name) + ["a", "b"]
    text = (
        '<ir_version: 8, opset_import: ["" : 18, "dort_rewriter" : 1]>\n'
        f"graph ({', '.join(f'{dtype}[M,N] {x}' for x in given)}) => ({dtype}[M,N] y) "
        f"{{ y = dort_rewriter.{name} <perm0 = [1, 0]> ({', '.join(given)}) }}"
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    expected = int(dtype == "bfloat16" and name in ("mm", "addmm"))
    assert multiply_small_by_mkl(model) == expected
    (node,) = model.graph
    assert ("small_by_mkl" in node.attributes) is bool(expected)
    assert node.attributes["perm0"].value == (1, 0)


TEXT = """<ir_version: 8, opset_import: ["" : 18, "dort_rewriter" : 1]>
graph (TYPE[2,3,4,8] g, TYPE[2,3,4,8] q, TYPE[2,3,5,8] k, TYPE[2,3,5,8] v)
    => (TYPE[2,4,3,8] x, TYPE[2,3,5,8] y) {
    out, sums = dort_rewriter.NAME (q, k, v)
    x, , y = dort_rewriter.NAME_backward <is_causal = 1, scale = 0.5, order0 = [0, 2, 1, 3]>
        (g, q, k, v, out, sums)
}"""


def attention_model(dtype: str) -> ir.Model:
    text = TEXT.replace("TYPE", dtype).replace("NAME", TORCH_FLASH)
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("calls_mkl", [False, True])
@pytest.mark.parametrize("torchs", [False, True])
@pytest.mark.parametrize("dtype", ["float", "float16", "bfloat16"])
def test_attention_of_torch(dtype: str, torchs: bool, calls_mkl: bool) -> None:
    """It keeps what it reads, gives and knows."""
    model = attention_model(dtype)
    names, how = [TORCH_FLASH, FLASH_GRAD], {"torchs_bfloat16": torchs, "calls_mkl": calls_mkl}
    by_torch = dtype == "bfloat16" and torchs
    done = attend_by_own(model, names, **how)
    expected = (TORCH_FLASH, MKL_ATTENTION_GRAD if calls_mkl else FLASH_GRAD)
    if not by_torch:
        expected = ATTENTION, ATTENTION_GRAD
    attention, gradient = model.graph
    assert (attention.op_type, gradient.op_type) == expected
    assert done == len({*expected} - {*names})
    assert [v.name for v in gradient.inputs if v is not None] == "g q k v out sums".split()
    assert [v.name for v in gradient.outputs] == ["x", "", "y"]
    assert list(model.graph.outputs) == [gradient.outputs[0], gradient.outputs[2]]
    known = {name: a.value for name, a in gradient.attributes.items()}
    assert known == {"is_causal": 1, "scale": 0.5, "order0": (0, 2, 1, 3)}
    assert attend_by_own(model, names, **how) == 0


@pytest.mark.parametrize("name", [TORCH_FLASH, FLASH_GRAD])
def test_attention_that_somebody_wants_of_torch(name: str) -> None:
    model = attention_model("float")
    assert attend_by_own(model, [name], torchs_bfloat16=False, calls_mkl=True) == 1
    assert {TORCH_FLASH, FLASH_GRAD} & {n.op_type for n in model.graph} == {
        TORCH_FLASH,
        FLASH_GRAD,
    } - {name}
