"""A model as bytes or as files, whatever its form and size."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

__all__ = ["INLINE_LIMIT", "Model", "serialize", "write_model"]

Model: TypeAlias = onnx.ModelProto | ir.Model | bytes

INLINE_LIMIT = 2**31 - 2**24
"""Bytes of weights that fit in one message: protobuf refuses 2 GB, nodes and names take some."""


def serialize(model: Model, folder: Path) -> bytes | str:
    """Return the model as bytes, or the path of files in ``folder`` if its weights do not fit."""
    if isinstance(model, bytes):
        return model
    if not _needs_data_file(model):
        proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
        return bytes(proto.SerializeToString())
    path = folder / "model.onnx"
    write_model(model, path)
    return str(path)


def write_model(model: Model, path: Path) -> None:
    """Write a model to ``path``, and its weights to ``<path>.data`` when they do not fit there."""
    if isinstance(model, bytes):
        path.write_bytes(model)
        return
    external = f"{path.name}.data" if _needs_data_file(model) else None
    source = model if isinstance(model, ir.Model) else ir.from_proto(model)
    ir.save(source, path, external_data=external)


def _needs_data_file(model: onnx.ModelProto | ir.Model) -> bool:
    if isinstance(model, onnx.ModelProto):
        try:
            return bool(model.ByteSize() >= INLINE_LIMIT)
        except EncodeError:  # protobuf holds 2 GB and more, but refuses to measure them
            return True
    values = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    weights = [w for w in values if w is not None]
    # Weights that are in a file already are named by a path that means nothing elsewhere.
    in_files = any(isinstance(w, ir.ExternalTensor) for w in weights)
    return in_files or sum(w.nbytes for w in weights) >= INLINE_LIMIT
