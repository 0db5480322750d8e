"""The types and shapes that the metadata of an FX node gives to values of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.dtypes import CONVERTIBLE, FLOAT8, to_onnx_type
from dort_rewriter.export.recorder import scalar_type
from dort_rewriter.export.registry import Refused
from dort_rewriter.graph.values import Value
from dort_rewriter.signature import describe_value, order_of_pairs

_FLOAT8_SINCE = 19

_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def element_type(meta: Any) -> ir.DataType:
    """The element type of a (fake) tensor or number; of the parts of complex numbers."""
    if not isinstance(meta, torch.Tensor):
        return scalar_type(meta)
    return to_onnx_type(meta.dtype.to_real())


def _shape(meta: Any) -> tuple[int | str, ...]:
    shape: tuple[int | str, ...] = describe_value(meta).get("shape", ())
    return (*shape, 2) if isinstance(meta, torch.Tensor) and meta.is_complex() else shape


def unsupported_value(meta: Any) -> str | None:
    """Why no value of a model can stand for one of a graph, or for an item of a list of those;
    None when it can."""
    if isinstance(meta, list | tuple):
        return next((reason for m in meta if (reason := unsupported_value(m)) is not None), None)
    if isinstance(meta, torch.Tensor):
        if meta.layout is not torch.strided:
            return f"{meta.layout} tensors are not converted"
        known = meta.dtype.to_real() in CONVERTIBLE
        return None if known else f"{meta.dtype} tensors are not converted"
    known = meta is None or isinstance(meta, _NUMBERS)
    return None if known else f"{type(meta).__name__} values are not converted"


def newer_type(node: torch.fx.Node) -> str | None:
    """Why a model of an opset below :func:`opset_of` has no type for a node; None when it has."""
    found = any(map(_is_float8, (node, *node.all_input_nodes)))
    return f"no float8 before opset {_FLOAT8_SINCE}" if found else None


def opset_of(graph: torch.fx.Graph, at_least: int) -> int:
    """The opset of a model of a graph: the first that has all of its types."""
    return max(at_least, _FLOAT8_SINCE if any(map(_is_float8, graph.nodes)) else at_least)


def leaves_model(node: torch.fx.Node) -> str | None:
    """Why no session takes a node, whose numbers would enter or leave it; None when they do not:
    rounded to float8, and read as other numbers, they stay inside."""
    found = [n for n in (node, *node.all_input_nodes) if _is_float8(n)]
    return None if all(map(_is_rounded, found)) else "onnxruntime exchanges no float8"


def _is_rounded(node: torch.fx.Node) -> bool:
    casts = (torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default)
    others = [n for n in (*node.all_input_nodes, *node.users) if _is_float8(n)]
    return all(n.target in casts for n in (node, *node.users)) and not others


def _is_float8(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype in FLOAT8


def permutation(meta: torch.Tensor, order: Sequence[int]) -> list[int]:
    """A permutation of the dimensions of a tensor, as one of the value that stands for it."""
    return list(order_of_pairs(order) if meta.is_complex() else order)


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor as a model holds them."""
    tensor = tensor.detach()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def annotate(value: Value, meta: Any) -> None:
    """Write type and shape to a value, unless it has another shape (see :func:`check_shape`)."""
    value.type = ir.TensorType(element_type(meta))
    value.shape = ir.Shape(check_shape(value, meta))
    if isinstance(meta, torch.SymInt):
        value.meta["size"] = str(meta.node.expr)  # the symbol that dimensions know it by


def check_shape(value: Value, meta: Any) -> tuple[int | str, ...]:
    """The shape that torch computed; raise :class:`Refused` where a result cannot have it."""
    want = _shape(meta)
    given = want if value.shape is None else value.shape
    wrong = len(given) != len(want) or any(
        isinstance(a, int) and isinstance(b, int) and a != b
        for a, b in zip(given, want, strict=True)
    )
    if wrong:
        raise Refused(f"its converter gave the shape {value.shape} instead of {list(want)}")
    return want


def is_automatic(value: ir.Value) -> bool:
    """Whether a value got its name from onnx_ir when its node was appended."""
    return value.producer() is not None and (value.name or "").startswith("val_")
