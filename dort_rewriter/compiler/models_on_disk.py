"""Models of earlier processes: a graph met before is neither exported nor optimized again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
import torch

from dort_rewriter.compiler.model_key import model_key
from dort_rewriter.plan.outputs import ModelOutput
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.disk_cache import DiskCache, disk_cache
from dort_rewriter.runtime.model_files import to_proto, weight_bytes

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
        self._cache: DiskCache | None = disk_cache() if recipe.options.cache else None
        self._key: str | None = None
        if self._cache is not None:
            self._key = model_key(
                graph_module, recipe, provider, numbers=numbers, outputs=outputs, orders=orders
            )

    def load(self) -> ir.Model | None:
        """The model, if it is there."""
        if self._cache is None or self._key is None:
            return None
        data = self._cache.get(self._key)
        if data is None:
            return None
        model = ir.from_proto(onnx.ModelProto.FromString(data))
        logger.debug("A model of %s nodes was found on disk.", model.graph.num_nodes())
        return model

    def store(self, model: ir.Model) -> None:
        """Keep a model for other processes."""
        if self._cache is None or self._key is None or weight_bytes(model) > _MAX_WEIGHTS:
            return
        self._cache.put(self._key, to_proto(model).SerializeToString())
