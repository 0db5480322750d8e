"""Write a model as a message or as files, whatever its size, leaving nothing half-written behind.

NOTE: protobuf holds a message of 2 GB and more, but refuses to serialize it: in files, weights
above ``INLINE_LIMIT`` get one of their own, beside the model.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir

from dort_rewriter.errors import ExportError

__all__ = ["INLINE_LIMIT", "check_target", "save_model", "to_proto", "weight_bytes"]

INLINE_LIMIT = 1_800_000_000
"""Bytes of weights above which they are stored outside the model."""


def weight_bytes(model: ir.Model) -> int:
    """The size of all initializers."""
    return sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a protobuf message, all weights in it.

    NOTE: not in files of our own beyond 2 GB: neither onnx nor onnxruntime takes weights from
    another folder than the model's. ``onnx.save(..., save_as_external_data=True)`` writes it.
    """
    return ir.to_proto(ir.external_data.load_to_model(model))


def check_target(filename: str | os.PathLike[str]) -> Path:
    """The path of a file that can be made; an ExportError says why it cannot."""
    target = Path(filename)
    if target.is_dir():
        raise ExportError(f"Cannot write {target}: it is a folder; add the name of a file.")
    if not target.parent.is_dir():
        raise ExportError(
            f"Cannot write {target}: the folder {target.parent} does not exist; create it first."
        )
    return target


def save_model(model: ir.Model, filename: str | os.PathLike[str]) -> None:
    """Write the model to a file (and a ``.data`` file beside it when it is large)."""
    target = check_target(filename)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".dort_") as folder:
            _write(model, os.path.join(folder, target.name))
            for name in sorted(os.listdir(folder), key=lambda n: n == target.name):
                os.replace(os.path.join(folder, name), target.parent / name)
    except OSError as e:
        raise ExportError(
            f"Cannot write {target}: {e}. Choose a folder that is writable and has "
            f"{weight_bytes(model):,} bytes free."
        ) from e


def _write(model: ir.Model, path: str) -> None:
    if weight_bytes(model) <= INLINE_LIMIT:
        ir.save(model, path)
    else:
        ir.save(model, path, external_data=f"{os.path.basename(path)}.data")
