"""A model in any of its forms, as an ``onnx_ir.Model``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from dort_rewriter.errors import OptionError

__all__ = ["AnyModel", "load_model"]

AnyModel: TypeAlias = onnx.ModelProto | ir.Model | bytes | str | Path
"""A model, its bytes, or the path of its file."""


def load_model(model: Any) -> ir.Model:
    """Return the model; an ``onnx_ir.Model`` as it is, weights in files stay there until read.

    Raises :class:`OptionError` for what is no model.
    """
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return ir.from_proto(model)
    if not isinstance(model, bytes | str | Path):
        raise OptionError(
            "Expected an ONNX model, its bytes or the path of its file, not "
            f"{type(model).__name__}."
        )
    source = "the bytes" if isinstance(model, bytes) else repr(str(model))
    try:
        loaded = (
            ir.from_proto(onnx.ModelProto.FromString(model))
            if isinstance(model, bytes)
            else ir.load(model)
        )
    except (DecodeError, OSError) as error:
        raise OptionError(f"No ONNX model can be read from {source}: {error}.") from error
    if loaded.ir_version == 0:  # protobuf reads an empty file, or another one, without a complaint
        raise OptionError(f"No ONNX model can be read from {source}: it names no version.")
    return loaded
