"""Compile one ATen graph: plan it, and replace its blocks by what runs them.

A graph is planned when it is compiled; its blocks are exported and built at their first call, so
that a backward graph that does not run costs nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from dort_rewriter.compiler.autotune import Autotuned
from dort_rewriter.compiler.block import assemble
from dort_rewriter.compiler.conventions import boxed, boxed_module
from dort_rewriter.compiler.safety_net import guarded
from dort_rewriter.plan.graph_plan import GraphPlan, plan_graph, prepare
from dort_rewriter.plan.partition import copy_graph
from dort_rewriter.plan.placement import PLACED
from dort_rewriter.plan.recipe import Recipe, RunBoxed

__all__ = ["compile_graph"]


def compile_graph(graph_module: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
    """A callable that takes the list of arguments of the graph, and empties it.

    It returns the tuple of the results, also when the graph returns a single one.
    """
    return guarded(
        lambda: _compile(graph_module, recipe),
        lambda: boxed_module(graph_module),
        graph_module,
        fallback=recipe.options.fallback,
        trace=recipe.trace,
    )


def _compile(graph_module: torch.fx.GraphModule, recipe: Recipe) -> RunBoxed:
    if recipe.options.autotune:
        return boxed(Autotuned(_candidates(graph_module, recipe)).boxed)
    return assemble(plan_graph(graph_module, recipe))


def _candidates(graph_module: torch.fx.GraphModule, recipe: Recipe) -> dict[str, RunBoxed]:
    """The ways to run a graph: ONNX Runtime alone, with some operators in torch, torch."""
    options = dataclasses.replace(recipe.options, autotune=False)
    prepare(graph_module, recipe)

    def planned(**changes: Any) -> GraphPlan:
        changed = dataclasses.replace(options, **changes)
        return plan_graph(copy_graph(graph_module), dataclasses.replace(recipe, options=changed))

    plans = {"ONNX Runtime": planned(placement={"*": "onnxruntime"})}
    default = planned()
    if _computes_in_torch(default):
        plans["ONNX Runtime and torch"] = default
    return {
        **{name: assemble(plan) for name, plan in plans.items()},
        "torch": boxed_module(graph_module),
    }


def _computes_in_torch(plan: GraphPlan) -> bool:
    """Whether torch computes by choice what a session could: between sessions or out of one."""
    chosen = any(node.is_kernel or node.by == "call" for _, node in plan.nodes())
    return chosen or any(f.reason == PLACED for f in plan.fallbacks)
