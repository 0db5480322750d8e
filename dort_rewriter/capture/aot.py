"""AOTAutograd wiring: forward, backward and inference graphs of ATen operators for a compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.capture.randomness import RANDOM_DECOMPOSITIONS

__all__ = ["CompileGraph", "compile_with_aot"]

CompileGraph = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""Takes an ATen graph and its example arguments, returns a callable with the same arguments."""


def compile_with_aot(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    compile_graph: CompileGraph,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """Compile Dynamo's graph through AOTAutograd: forward and backward, or inference.

    NOTE: min_cut_rematerialization_partition works on every torch; default_partition fails on
    torch 2.8 with dynamic shapes.
    """
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    compiler = aot_autograd(
        fw_compiler=compile_graph,
        partition_fn=min_cut_rematerialization_partition,
        decompositions={**decompositions, **RANDOM_DECOMPOSITIONS},
    )
    compiled: Callable[..., Any] = compiler(graph_module, args)
    return compiled
