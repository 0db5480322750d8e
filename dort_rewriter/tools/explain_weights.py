"""How far a model with weights of few bits is from the same in float32."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.backends.onnxrt_graphs import make_dispatcher, make_recipe
from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.compiler.block import compile_graph
from dort_rewriter.deployment.restoring import left_as_it_was
from dort_rewriter.export.decompositions import get_tracing_table
from dort_rewriter.optimize.low_bits import ERROR
from dort_rewriter.plan.recipe import BuiltBlock

__all__ = ["LowBitError", "compare_with_float32"]


@dataclass(frozen=True, kw_only=True)
class LowBitError:
    """What rounded weights change: errors are lengths of differences, by those of float32."""

    weights: str
    """The option: ``int8``, ``int4``."""
    products: int
    """How many products read a rounded weight."""
    weight_error: float
    """Of the weight that is farthest from what it was."""
    result_error: float
    """Of the result that is farthest from that of eager mode."""

    def __str__(self) -> str:
        if not self.products:
            return f"weights={self.weights!r}: no product has a constant weight large enough"
        return (
            f"weights={self.weights!r}: {self.products} products; error of the weights up to "
            f"{self.weight_error:.2%}, of the results {self.result_error:.2%}"
        )


def compare_with_float32(
    model: Callable[..., Any], inputs: tuple[Sequence[Any], Mapping[str, Any]], backend: OrtBackend
) -> LowBitError:
    """Call a model in inference, in eager mode and by a backend, and compare the results."""
    args, kwargs = inputs
    built: list[BuiltBlock] = []
    compiled = torch.compile(model, backend=functools.partial(_compile, backend, built))
    with torch.no_grad():
        with left_as_it_was(model, (tuple(args), dict(kwargs))):
            expected = _tensors(model(*args, **kwargs))
        with left_as_it_was(model, (tuple(args), dict(kwargs))):
            given = _tensors(compiled(*args, **kwargs))
    nodes = [n for b in built for n in b.exported.model.graph if n.op_type == "MatMulNBits"]
    errors = [float(n.metadata_props[ERROR]) for n in nodes]
    return LowBitError(
        weights=str(backend._options.weights),
        products=len(nodes),
        weight_error=max(errors, default=0.0),
        result_error=max(
            (_error(a, b) for a, b in zip(given, expected, strict=True)), default=0.0
        ),
    )


def _compile(
    backend: OrtBackend,
    built: list[BuiltBlock],
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
) -> Callable[..., Any]:
    recipe = dataclasses.replace(make_recipe(backend), on_built=built.append)
    return compile_with_aot(
        graph_module,
        args,
        compile_graph=lambda graph, _: compile_graph(graph, recipe),
        compile_inference=lambda graph, weights: compile_graph(
            graph, dataclasses.replace(recipe, weights=weights)
        ),
        decompositions=get_tracing_table(make_dispatcher()),
    )


def _tensors(results: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(results)
    floats = [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return [t.detach().clone() for t in floats]


def _error(given: torch.Tensor, expected: torch.Tensor) -> float:
    length = float(expected.double().norm())
    difference = float((given.double() - expected.double()).norm())
    return difference / length if length else difference
