"""Element types of torch, ONNX and numpy, side by side.

NOTE: every torch dtype is named here, also those no converter takes, so that a refusal names the
type instead of failing on a missing key. Names stand for ONNX's types until one is asked for: a
saved model is loaded without onnx_ir, whose import takes longer than that.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from dort_rewriter.errors import ExportError

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

CONVERTIBLE: dict[torch.dtype, str] = {
    torch.float32: "FLOAT",
    torch.float64: "DOUBLE",
    torch.float16: "FLOAT16",
    torch.bfloat16: "BFLOAT16",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.uint8: "UINT8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "FLOAT8E4M3FN",
    torch.float8_e4m3fnuz: "FLOAT8E4M3FNUZ",
    torch.float8_e5m2: "FLOAT8E5M2",
    torch.float8_e5m2fnuz: "FLOAT8E5M2FNUZ",
}
for _name in ("uint16", "uint32", "uint64"):  # torch >= 2.3 on some platforms only
    if hasattr(torch, _name):
        CONVERTIBLE[getattr(torch, _name)] = _name.upper()
"""The element types that ONNX has, with their names there: no complex or quantized ones."""

FLOAT8 = frozenset(dtype for dtype, name in CONVERTIBLE.items() if name.startswith("FLOAT8"))

_CONTAINS: dict[str, frozenset[str]] = {
    "DOUBLE": frozenset(
        {"FLOAT", "FLOAT16", "BFLOAT16", "INT8", "INT16", "INT32", "UINT8", "BOOL"}
    ),
    "FLOAT": frozenset({"FLOAT16", "BFLOAT16", "INT8", "INT16", "UINT8", "BOOL"}),
    "FLOAT16": frozenset({"INT8", "UINT8", "BOOL"}),
    "BFLOAT16": frozenset({"INT8", "UINT8", "BOOL"}),
    "INT64": frozenset({"INT32", "INT16", "INT8", "UINT8", "BOOL"}),
    "INT32": frozenset({"INT16", "INT8", "UINT8", "BOOL"}),
    "INT16": frozenset({"INT8", "UINT8", "BOOL"}),
}
"""For each type, those whose every value it holds exactly."""


def holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether a type has every value of another, exactly."""
    return wide == narrow or narrow.name in _CONTAINS.get(wide.name, ())


def onnx_name(dtype: torch.dtype) -> str:
    """The name of the ONNX element type of a torch dtype: ``FLOAT``."""
    if (found := CONVERTIBLE.get(dtype)) is None:
        raise ExportError(f"{dtype} has no counterpart in ONNX models written by this package.")
    return found


@functools.cache
def to_onnx_type(dtype: torch.dtype) -> ir.DataType:
    """The ONNX element type of a torch dtype."""
    import onnx_ir as ir

    return ir.DataType[onnx_name(dtype)]


@functools.cache
def to_torch(dtype: ir.DataType | int) -> torch.dtype:
    """The torch dtype of an ONNX element type."""
    import onnx_ir as ir

    name = ir.DataType(int(dtype)).name
    for found, named in CONVERTIBLE.items():
        if named == name:
            return found
    raise ExportError(f"ONNX element type {name} is unknown to torch.")


@functools.cache
def to_numpy(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype (one of ml_dtypes for bfloat16 and float8)."""
    import numpy as np

    name = str(dtype).removeprefix("torch.")
    if onnx_name(dtype).startswith(("BFLOAT16", "FLOAT8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)
