"""Write a model as bytes or files, whatever its size, leaving nothing half-written behind.

NOTE: protobuf refuses messages of 2 GB and more: above ``INLINE_LIMIT`` the weights go to a file
of their own, beside the model.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

import onnx
import onnx_ir as ir

from dort_rewriter.errors import ExportError

__all__ = ["INLINE_LIMIT", "save_model", "to_proto", "weight_bytes"]

INLINE_LIMIT = 1_800_000_000
"""Bytes of weights above which they are stored outside the model."""


def weight_bytes(model: ir.Model) -> int:
    """Return the size of all initializers."""
    return sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None
    )


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as a protobuf message.

    Weights of more than ``INLINE_LIMIT`` bytes stay outside: the message names a file in a
    temporary folder, which lives as long as `model` does.
    """
    if weight_bytes(model) <= INLINE_LIMIT:
        return ir.to_proto(model)
    folder = tempfile.mkdtemp(prefix="dort_rewriter_")
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, "model.onnx")
    _write(model, path)
    proto = onnx.load(path, load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = os.path.join(folder, entry.value)
    return proto


def save_model(model: ir.Model, filename: str | os.PathLike[str]) -> None:
    """Write the model to a file (and a ``.data`` file beside it when it is large)."""
    target = Path(filename)
    if not target.parent.is_dir():
        raise ExportError(f"Cannot write {target}: the folder {target.parent} does not exist.")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".dort_") as folder:
            _write(model, os.path.join(folder, target.name))
            for name in sorted(os.listdir(folder), key=lambda n: n == target.name):
                os.replace(os.path.join(folder, name), target.parent / name)
    except OSError as e:
        raise ExportError(f"Cannot write {target}: {e}.") from e


def _write(model: ir.Model, path: str) -> None:
    if weight_bytes(model) <= INLINE_LIMIT:
        ir.save(model, path)
    else:
        ir.save(model, path, external_data=f"{os.path.basename(path)}.data")
