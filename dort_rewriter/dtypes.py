"""Element types of torch, ONNX and numpy, side by side.

NOTE: every torch dtype is named here, also those no converter takes, so that a refusal names the
type instead of failing on a missing key.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from dort_rewriter.errors import ExportError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "holds",
    "is_convertible",
    "to_numpy",
    "to_onnx_type",
    "to_torch",
]

_D = ir.DataType

_TORCH_TO_ONNX: dict[torch.dtype, ir.DataType] = {
    torch.float32: _D.FLOAT,
    torch.float64: _D.DOUBLE,
    torch.float16: _D.FLOAT16,
    torch.bfloat16: _D.BFLOAT16,
    torch.int8: _D.INT8,
    torch.int16: _D.INT16,
    torch.int32: _D.INT32,
    torch.int64: _D.INT64,
    torch.uint8: _D.UINT8,
    torch.bool: _D.BOOL,
    torch.float8_e4m3fn: _D.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: _D.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: _D.FLOAT8E5M2,
    torch.float8_e5m2fnuz: _D.FLOAT8E5M2FNUZ,
}
for _name in ("uint16", "uint32", "uint64"):  # torch >= 2.3 on some platforms only
    if hasattr(torch, _name):
        _TORCH_TO_ONNX[getattr(torch, _name)] = ir.DataType[_name.upper()]

_ONNX_TO_TORCH = {value: key for key, value in _TORCH_TO_ONNX.items()}

_CONTAINS: dict[ir.DataType, frozenset[ir.DataType]] = {
    _D.DOUBLE: frozenset(
        {_D.FLOAT, _D.FLOAT16, _D.BFLOAT16, _D.INT8, _D.INT16, _D.INT32, _D.UINT8, _D.BOOL}
    ),
    _D.FLOAT: frozenset({_D.FLOAT16, _D.BFLOAT16, _D.INT8, _D.INT16, _D.UINT8, _D.BOOL}),
    _D.FLOAT16: frozenset({_D.INT8, _D.UINT8, _D.BOOL}),
    _D.BFLOAT16: frozenset({_D.INT8, _D.UINT8, _D.BOOL}),
    _D.INT64: frozenset({_D.INT32, _D.INT16, _D.INT8, _D.UINT8, _D.BOOL}),
    _D.INT32: frozenset({_D.INT16, _D.INT8, _D.UINT8, _D.BOOL}),
    _D.INT16: frozenset({_D.INT8, _D.UINT8, _D.BOOL}),
}
"""For each type, those whose every value it holds exactly."""


def holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Tell whether a type has every value of another, exactly."""
    return wide == narrow or narrow in _CONTAINS.get(wide, ())


def is_convertible(dtype: torch.dtype) -> bool:
    """Tell whether ONNX has this element type (complex and quantized types are not converted)."""
    return dtype in _TORCH_TO_ONNX


def to_onnx_type(dtype: torch.dtype) -> ir.DataType:
    """The ONNX element type of a torch dtype."""
    if (found := _TORCH_TO_ONNX.get(dtype)) is None:
        raise ExportError(f"{dtype} has no counterpart in ONNX models written by this package.")
    return found


def to_torch(dtype: ir.DataType | int) -> torch.dtype:
    """The torch dtype of an ONNX element type."""
    if (found := _ONNX_TO_TORCH.get(ir.DataType(int(dtype)))) is None:
        raise ExportError(f"ONNX element type {ir.DataType(int(dtype)).name} is unknown to torch.")
    return found


@functools.cache
def to_numpy(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype (one of ml_dtypes for bfloat16 and float8)."""
    return to_onnx_type(dtype).numpy()
