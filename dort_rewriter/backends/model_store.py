"""Models of earlier processes: a graph met before is neither exported nor optimized again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
import torch

from dort_rewriter.backends.model_key import model_key
from dort_rewriter.capture.outputs import ModelOutput
from dort_rewriter.export.files import to_proto, weight_bytes
from dort_rewriter.export.interpreter import ExportedGraph
from dort_rewriter.export.names import create_input_names
from dort_rewriter.runtime.disk_cache import DiskCache, disk_cache
from dort_rewriter.signature import GraphSignature, InputSlot, OutputSlot, describe_value

if TYPE_CHECKING:
    from dort_rewriter.backends.recipe import Recipe

__all__ = ["ModelEntry"]

logger = logging.getLogger(__name__)

_MAX_WEIGHTS = 2**24
"""Bytes of constants above which a model is not stored."""


class ModelEntry:
    """The place of one graph's model on disk."""

    def __init__(
        self,
        graph_module: torch.fx.GraphModule,
        recipe: Recipe,
        provider: str,
        outputs: Sequence[tuple[str, ModelOutput]],
        numbers: Mapping[int, float],
        orders: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._graph_module = graph_module
        self._rename = recipe.rename_inputs
        self._orders = orders
        self._outputs = outputs
        self._cache: DiskCache | None = disk_cache() if recipe.options.cache else None
        self._key: str | None = None
        if self._cache is not None:
            self._key = model_key(
                graph_module, recipe, provider, numbers=numbers, outputs=outputs, orders=orders
            )

    def load(self) -> ExportedGraph | None:
        """Return the model, if it is there."""
        if self._cache is None or self._key is None:
            return None
        data = self._cache.get(self._key)
        if data is None:
            return None
        model = ir.from_proto(onnx.ModelProto.FromString(data))
        logger.debug("A model of %s nodes was found on disk.", model.graph.num_nodes())
        return ExportedGraph(model, self._signature(model))

    def store(self, exported: ExportedGraph) -> None:
        """Keep a model for other processes."""
        if self._cache is None or self._key is None or weight_bytes(exported.model) > _MAX_WEIGHTS:
            return
        self._cache.put(self._key, to_proto(exported.model).SerializeToString())

    def _signature(self, model: ir.Model) -> GraphSignature:
        placeholders = [n for n in self._graph_module.graph.nodes if n.op == "placeholder"]
        names = [n.name for n in placeholders]
        if self._rename:
            names = create_input_names(self._graph_module)
        fed = {v.name for v in model.graph.inputs}
        inputs = tuple(
            InputSlot(
                name=name if name in fed else None,
                **describe_value(n.meta.get("val")),
                order=self._orders.get(n.name) if name in fed else None,
            )
            for name, n in zip(names, placeholders, strict=True)
        )
        outputs = tuple(
            _output_slot(i, name, output) for i, (name, output) in enumerate(self._outputs)
        )
        return GraphSignature(inputs=inputs, outputs=outputs)


def _output_slot(index: int, name: str, output: ModelOutput) -> OutputSlot:
    described = describe_value(output.node.meta["val"])
    if output.order is not None:
        described["shape"] = tuple(described["shape"][i] for i in output.order)
    return OutputSlot(source="model", index=index, name=name, **described)
