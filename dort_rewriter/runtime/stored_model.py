"""Models that need not be read before onnxruntime does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx
    from typing_extensions import TypeIs

__all__ = ["StoredModel", "is_message"]


class StoredModel(bytes):
    """The bytes of a model that this package wrote to a file, which names no other file."""

    path: Path
    torch_kernels: bool
    """Whether kernels of torch compute some of its nodes."""

    def __new__(cls, content: bytes, path: Path, *, torch_kernels: bool) -> StoredModel:
        """Know what the one who wrote it knew."""
        made = super().__new__(cls, content)
        made.path, made.torch_kernels = path, torch_kernels
        return made


def is_message(model: Any) -> TypeIs[onnx.ModelProto]:
    """Whether a model is a message of protobuf, without importing onnx for it."""
    kind = getattr(sys.modules.get("onnx"), "ModelProto", None)
    return kind is not None and isinstance(model, kind)
