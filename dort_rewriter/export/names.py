"""Names of a model's inputs, outputs and dimensions: for readers, nothing relies on them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.signature import GraphSignature

__all__ = ["create_input_names", "create_output_names", "rename_symbols"]

_WORD = re.compile(r"[A-Za-z_]\w*")


def create_input_names(graph_module: torch.fx.GraphModule, args: Sequence[Any] = ()) -> list[str]:
    """A name for each placeholder: ``input0`` for a tensor, ``input_dim_1`` for an integer.

    An argument in `args`, when there is one, decides before the metadata of the placeholder.
    """
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    values = [
        args[i] if i < len(args) else node.meta.get("val", node.meta.get("example_value"))
        for i, node in enumerate(placeholders)
    ]
    return [
        f"input_dim_{i}" if _is_integer(value) else f"input{i}" for i, value in enumerate(values)
    ]


def create_output_names(values: Sequence[Any]) -> list[str]:
    """A name for each result: ``output_0``, ``output_dim_1`` (int), ``output_NONE_2``."""
    return [
        f"output_NONE_{i}"
        if value is None
        else f"output_dim_{i}"
        if _is_integer(value)
        else f"output_{i}"
        for i, value in enumerate(values)
    ]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def rename_symbols(
    model: ir.Model, signature: GraphSignature, names: Mapping[str, str]
) -> GraphSignature:
    """Give symbols other names: in the model, which is changed, and in the signature returned."""

    def rename(dim: Any) -> Any:
        text = dim.value if isinstance(dim, ir.SymbolicDim) else dim
        if not isinstance(text, str):
            return text
        return _WORD.sub(lambda word: names.get(word[0], word[0]), text)

    for graph in model.graphs():
        for value in [*graph.inputs, *(o for node in graph for o in node.outputs)]:
            if value.shape is not None:
                value.shape = ir.Shape([rename(d) for d in value.shape])
    return GraphSignature(
        inputs=tuple(
            dataclasses.replace(slot, shape=tuple(map(rename, slot.shape)))
            for slot in signature.inputs
        ),
        outputs=tuple(
            dataclasses.replace(slot, shape=tuple(map(rename, slot.shape)))
            for slot in signature.outputs
        ),
    )
