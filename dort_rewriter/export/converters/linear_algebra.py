"""Products of matrices and vectors.

NOTE: a 1-D MatMul is never emitted: onnxruntime computes MatMul(Transpose(A), v) wrongly.
"""

from __future__ import annotations

from typing import Any

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import converter
from dort_rewriter.export.values import Value


@converter("aten::mm", "aten::bmm")
def mm(op: Recorder, x: Value, mat2: Value) -> Value:
    """mm(Tensor self, Tensor mat2) -> Tensor"""
    return op.MatMul(x, mat2)


@converter("aten::addmm")
def addmm(
    op: Recorder, x: Value, mat1: Value, mat2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return op.Gemm(mat1, mat2, x, alpha=float(alpha), beta=float(beta))
