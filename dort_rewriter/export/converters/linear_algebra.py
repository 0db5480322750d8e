"""Products of matrices and vectors.

NOTE: a 1-D MatMul is never emitted: onnxruntime computes MatMul(Transpose(A), v) wrongly.
"""

from __future__ import annotations

import string
from typing import Any

import onnx_ir as ir

from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Arguments, Refused, by_name, converter
from dort_rewriter.graph.shapes import may_be_zero
from dort_rewriter.graph.values import Value

_SMALL_INTEGERS = frozenset(
    {
        ir.DataType.BOOL,
        ir.DataType.INT8,
        ir.DataType.INT16,
        ir.DataType.UINT8,
        ir.DataType.UINT16,
    }
)


def product(op: Recorder, a: Value, b: Value) -> Value:
    """The matrix product, of integers too: they wrap around as in torch.

    NOTE: torch multiplies two types, and bool, only where there is nothing to add up; the result is
    of the second's type.
    """
    dtype = b.dtype
    assert dtype is not None
    if a.dtype is not dtype:
        a = op.cast(a, dtype)
    if dtype in _SMALL_INTEGERS:
        wide = op.MatMul(op.cast(a, ir.DataType.INT32), op.cast(b, ir.DataType.INT32))
        return op.cast(wide, dtype)
    result = op.MatMul(a, b)
    if may_be_zero(a.dims[-1]):  # see defects.over_nothing: the size may turn out to be zero
        is_empty = op.Equal(op.size(a, -1), 0)
        return op.Where(is_empty, op.constant(0, dtype), result)
    return result


def scaled(op: Recorder, x: Value, factor: Any) -> Value:
    """A tensor times a number (maybe computed by the graph) of its own dtype."""
    assert x.dtype is not None
    if isinstance(factor, Value):
        return op.Mul(x, op.cast(factor, x.dtype))
    return x if factor == 1 else op.Mul(x, op.constant(factor, x.dtype))


def _combined(op: Recorder, x: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """Beta * x + alpha * product; with beta = 0, x may hold NaN and does not count."""
    product = scaled(op, product, alpha)
    if not isinstance(beta, Value) and beta == 0:
        return product
    return op.Add(scaled(op, x, beta), product)


def _column(op: Recorder, vector: Value) -> Value:
    return op.Unsqueeze(vector, [1])


@converter("aten::mm", "aten::bmm")
def mm(op: Recorder, x: Value, mat2: Value) -> Value:
    """mm(Tensor self, Tensor mat2) -> Tensor"""
    return product(op, x, mat2)


@converter("aten::_int_mm")
def int_mm(op: Recorder, x: Value, mat2: Value) -> Value:
    """_int_mm(Tensor self, Tensor mat2) -> Tensor"""
    return op.MatMul(op.cast(x, ir.DataType.INT32), op.cast(mat2, ir.DataType.INT32))


@converter("aten::mv")
def mv(op: Recorder, x: Value, vec: Value) -> Value:
    """mv(Tensor self, Tensor vec) -> Tensor"""
    return op.Squeeze(product(op, x, _column(op, vec)), [1])


@converter("aten::dot")
def dot(op: Recorder, x: Value, tensor: Value) -> Value:
    """dot(Tensor self, Tensor tensor) -> Tensor"""
    return op.Squeeze(product(op, op.Unsqueeze(x, [0]), _column(op, tensor)), [0, 1])


@converter("aten::vdot")
def vdot(op: Recorder, x: Value, other: Value) -> Value:
    """vdot(Tensor self, Tensor other) -> Tensor"""
    return dot(op, x, other)


@converter("aten::addmm")
def addmm(
    op: Recorder, x: Value, mat1: Value, mat2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    assert mat1.dtype is not None
    numbers = not isinstance(beta, Value) and not isinstance(alpha, Value)
    if numbers and alpha and mat1.dtype.is_floating_point() and not may_be_zero(mat1.dims[1]):
        inputs = (mat1, mat2, x) if beta else (mat1, mat2)
        return op.Gemm(*inputs, alpha=float(alpha), beta=float(beta))
    return _combined(op, x, product(op, mat1, mat2), beta, alpha)


@converter("aten::baddbmm")
def baddbmm(
    op: Recorder, x: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    """baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _combined(op, x, product(op, batch1, batch2), beta, alpha)


@converter("aten::addbmm")
def addbmm(
    op: Recorder, x: Value, batch1: Value, batch2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    """addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    assert batch1.dtype is not None
    if batch1.dtype.is_floating_point():
        total = op.ReduceSum(product(op, batch1, batch2), [0], keepdims=0)
    else:  # one product over all batches
        batches, rows, size = (op.size(batch1, i) for i in range(3))
        rowwise = op.Transpose(batch1, perm=[1, 0, 2])
        wide = op.Reshape(rowwise, op.vector([rows, batches * size]), allowzero=1)
        high = op.Reshape(batch2, op.vector([batches * size, op.size(batch2, 2)]), allowzero=1)
        total = product(op, wide, high)
    return _combined(op, x, total, beta, alpha)


@converter("aten::addmv")
def addmv(
    op: Recorder, x: Value, mat: Value, vec: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    """addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _combined(op, x, mv(op, mat, vec), beta, alpha)


@converter("aten::addr")
def addr(
    op: Recorder, x: Value, vec1: Value, vec2: Value, *, beta: Any = 1, alpha: Any = 1
) -> Value:
    """addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    assert vec1.dtype is not None
    if vec1.dtype == ir.DataType.BOOL:
        products = op.And(_column(op, vec1), vec2)
        products = op.And(products, op.constant(bool(alpha), ir.DataType.BOOL))
        return op.Or(products, x) if beta else products
    return _combined(op, x, op.Mul(_column(op, vec1), vec2), beta, alpha)


@converter("aten::linear")
def linear(op: Recorder, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"""
    assert input.dtype is not None
    is_float, is_vector = input.dtype.is_floating_point(), weight.rank == 1
    if input.rank == 2 and is_float and not is_vector and not may_be_zero(input.dims[1]):
        return op.Gemm(input, weight, bias, transB=1)
    rows = input if input.rank > 1 else op.Unsqueeze(input, [0])
    factor = _column(op, weight) if is_vector else op.Transpose(weight, perm=[1, 0])
    result = product(op, rows, factor)
    result = op.Squeeze(result, [-1]) if is_vector else result
    result = result if input.rank > 1 else op.Squeeze(result, [0])
    return result if bias is None else op.Add(result, bias)


@converter("aten::linalg_cross")
def linalg_cross(op: Recorder, x: Value, other: Value, *, dim: int = -1) -> Value:
    """linalg_cross(Tensor self, Tensor other, *, int dim=-1) -> Tensor"""
    axis = dim % x.rank
    x1, x2 = op.Gather(x, [1, 2, 0], axis=axis), op.Gather(x, [2, 0, 1], axis=axis)
    y1, y2 = op.Gather(other, [1, 2, 0], axis=axis), op.Gather(other, [2, 0, 1], axis=axis)
    return op.Sub(op.Mul(x1, y2), op.Mul(x2, y1))


@converter("aten::_trilinear")
@by_name
def trilinear(op: Recorder, given: Arguments) -> Value:
    """_trilinear(Tensor i1, Tensor i2, Tensor i3, int[] expand1, int[] expand2, int[] expand3, int[] sumdim, int unroll_dim=1) -> Tensor"""
    letters = string.ascii_lowercase[: given.i1.rank + len(given.expand1)]
    terms = [
        "".join(c for axis, c in enumerate(letters) if axis not in missing)
        for missing in (given.expand1, given.expand2, given.expand3, given.sumdim)
    ]
    factors = [given.i1, given.i2, given.i3]
    if any(may_be_zero(size) for factor in factors for size in factor.dims):
        # NOTE: Einsum of onnxruntime 1.19 divides by the sizes, which ends the process.
        wide = [
            op.Unsqueeze(factor, missing)
            for factor, missing in zip(
                factors, (given.expand1, given.expand2, given.expand3), strict=True
            )
        ]
        return op.ReduceSum(op.Mul(op.Mul(*wide[:2]), wide[2]), given.sumdim, keepdims=0)
    order = [0, 1, 2]
    if given.unroll_dim in given.sumdim and given.unroll_dim in given.expand3:
        # torch multiplies all three before it adds up along this axis, of both signs where the
        # third is infinite. A product of the first and the third has nothing to add up.
        order = [0, 2, 1]
    equation = f"{','.join(terms[i] for i in order)}->{terms[3]}"
    return op.Einsum(*(factors[i] for i in order), equation=equation)


# -- groups of rows, each with a matrix of its own: mixtures of experts ------------------------


@converter("aten::_grouped_mm")
def grouped_mm(
    op: Recorder,
    x: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: Any = None,
) -> Value:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor"""
    found = op.MatMul(x, mat2) if offs is None else _grouped_product(op, x, mat2, offs)
    return op.cast(found if bias is None else op.Add(found, bias), op.dtype)


@converter("transformers::grouped_mm_fallback")
def grouped_mm_fallback(op: Recorder, input: Value, weight: Value, offs: Value) -> Value:
    """grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor

    The operator of transformers with which mixtures of experts train where torch's has no kernel.
    """
    return op.cast(_grouped_product(op, input, weight, offs), op.dtype)


def _grouped_product(op: Recorder, x: Value, mat2: Value, offs: Value) -> Value:
    groups, ends = offs.dims[0], op.Cast(offs, to=ir.DataType.INT64)
    if not isinstance(groups, int):
        raise Refused("the number of groups is not known")
    if x.rank == 2 and mat2.rank == 3:  # rows in groups
        parts = [op.MatMul(_group(op, x, ends, i, 0), _matrix(op, mat2, i)) for i in range(groups)]
        return op.Concat(*parts, _rest(op, x, ends, 0, op.size(mat2, 2)), axis=0)
    if x.rank == 3 and mat2.rank == 2:  # columns in groups
        parts = [op.MatMul(_matrix(op, x, i), _group(op, mat2, ends, i, 1)) for i in range(groups)]
        return op.Concat(*parts, _rest(op, mat2, ends, 1, op.size(x, 1)), axis=1)
    if x.rank == 2 and mat2.rank == 2:  # what is summed over in groups
        parts = [_group_sum(op, x, mat2, ends, i) for i in range(groups)]
        return op.Concat(*(op.Unsqueeze(part, [0]) for part in parts), axis=0)
    raise Refused(f"groups in matrices of ranks {x.rank} and {mat2.rank}")


def _group_sum(op: Recorder, x: Value, mat2: Value, ends: Value, index: int) -> Value:
    product = op.MatMul(_group(op, x, ends, index, 1), _group(op, mat2, ends, index, 0))
    # NOTE: onnxruntime 1.19 leaves a product over nothing as its memory was.
    is_empty = op.Equal(_start(op, ends, index), op.Slice(ends, [index], [index + 1], [0]))
    return op.Where(is_empty, op.constant(0, product.dtype), product)


def _matrix(op: Recorder, x: Value, index: int) -> Value:
    return op.Squeeze(op.Slice(x, [index], [index + 1], [0]), [0])


def _group(op: Recorder, x: Value, ends: Value, index: int, axis: int) -> Value:
    end = op.Slice(ends, [index], [index + 1], [0])
    return op.Slice(x, _start(op, ends, index), end, [axis])


def _start(op: Recorder, ends: Value, index: int) -> Any:
    return op.Slice(ends, [index - 1], [index], [0]) if index else op.constant([0])


def _rest(op: Recorder, x: Value, ends: Value, axis: int, across: Any) -> Value:
    """Zeros for what no group has, behind the last one."""
    count = op.Sub(op.Shape(x, start=axis, end=axis + 1), op.Slice(ends, [-1], [2**62], [0]))
    return op.Expand(
        op.cast(0, op.dtype), op.vector([count, across] if axis == 0 else [across, count])
    )
