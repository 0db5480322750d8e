"""Models that need not be read before onnxruntime does, and whose kernels a model needs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_CALL, TORCH_KERNELS
from dort_rewriter.kernels.torch_library import works_alone

if TYPE_CHECKING:
    import onnx
    from typing_extensions import TypeIs

__all__ = ["StoredModel", "is_message", "uses_custom_kernels", "uses_torch_kernels"]


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


def uses_custom_kernels(model: Any) -> bool:
    """Whether a model imports our domain."""
    if isinstance(model, bytes):
        return OWN_DOMAIN.encode() in model  # at worst a library is loaded for nothing
    if is_message(model):
        return any(opset.domain == OWN_DOMAIN for opset in model.opset_import)
    return OWN_DOMAIN in model.graph.opset_imports


def uses_torch_kernels(model: Any) -> bool:
    """Whether kernels of torch compute nodes of a model in torch's own threads."""
    if isinstance(model, StoredModel):
        return model.torch_kernels
    if isinstance(model, bytes):
        return False
    nodes: Iterable[Any] = model.graph.node if is_message(model) else model.graph
    kernels = {TORCH_CALL} if works_alone() else {*TORCH_KERNELS, TORCH_CALL}
    return any(n.domain == OWN_DOMAIN and n.op_type in kernels for n in nodes)
