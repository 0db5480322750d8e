"""``pre_ort_model_transforms``: functions of the user that change a model before it is run.

They see operators of ONNX and of ONNX Runtime: those with kernels of our own are made after them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import onnx_ir as ir

from dort_rewriter.errors import ExecutionError, calling
from dort_rewriter.optimize.patterns import kernels
from dort_rewriter.optimize.pipeline import get_pattern_list, optimize
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.kernel_query import kernel_query
from dort_rewriter.runtime.model_files import to_proto
from dort_rewriter.runtime.session import Session

if TYPE_CHECKING:
    import onnx


__all__ = ["before_transforms", "check_results", "transform"]


def before_transforms(options: OptimizationOptions) -> OptimizationOptions:
    """What is done to a model before functions of the user see it."""
    chosen = get_pattern_list(options.patterns, kernels.RULES)
    # NOTE: a model has a place on disk when its rules are given by name.
    named = [rule.name for rule in chosen] if isinstance(options.patterns, str) else chosen
    return dataclasses.replace(options, patterns=named)


def transform(model: ir.Model, recipe: Recipe, provider: str) -> onnx.ModelProto:
    """A model as the functions of the user make it, with our own operators put in then."""
    proto = to_proto(model)
    for change in recipe.options.pre_ort_model_transforms or ():
        with calling("a pre_ort_model_transform", change):
            change(proto)
    options = recipe.options.optimization
    own = [rule for rule in get_pattern_list(options.patterns) if isinstance(rule, kernels.RULES)]
    if not own:
        return proto
    changed = ir.from_proto(proto)
    report = optimize(
        changed, dataclasses.replace(options, patterns=own), has_kernel=kernel_query(provider)
    )
    recipe.trace.reports.append(report)
    return to_proto(changed)


def check_results(session: Session, exported: ir.Model) -> None:
    """Refuse a model that functions of the user gave results of other sizes than the graph has."""
    declared = {output.name: output.shape for output in session.ort.get_outputs()}
    for value in exported.graph.outputs:
        shape, wanted = declared.get(str(value.name)), value.shape
        if shape is None or wanted is None:
            continue
        fixed = [d if isinstance(d, int) else None for d in wanted]
        pairs = [(a, b) for a, b in zip(shape, fixed, strict=False) if isinstance(a, int)]
        if len(shape) != len(fixed) or any(b is not None and a != b for a, b in pairs):
            raise ExecutionError(
                f"pre_ort_model_transforms made {value.name!r} a result of the shape {shape} "
                f"instead of {wanted}."
            )
