"""``options={"verify": True}``: the first calls of each graph are compared with torch.

What differs by more than rounding raises, names the first node that does, and is written to a
folder (:mod:`~dort_rewriter.compiler.problem_report`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from dort_rewriter import env
from dort_rewriter.capture.updates import updates_of
from dort_rewriter.compiler.differences import farthest, first_difference
from dort_rewriter.compiler.divergence import TorchResults
from dort_rewriter.compiler.problem_report import report_problem
from dort_rewriter.errors import DivergenceError, ExecutionError, OptionError
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.recipe import BuiltBlock, RunBoxed
from dort_rewriter.runtime.reference import ReferenceExecutor, describe_node

logger = logging.getLogger(__name__)

CALLS = 2
"""How many calls of a graph ``verify=True`` compares: what the first leaves behind, the second
meets."""

_ROUNDINGS = 3
"""How often arguments are moved by a rounding, to see how much of a difference that makes."""
_NOISE = 4.0
"""How much larger than that a difference has to be."""


def checks_finite(options: OrtBackendOptions) -> bool:
    """Whether the option or the variable asks for results that are finite."""
    return "finite" in (options.verify, env.read("DORT_VERIFY"))


def calls_to_verify(options: OrtBackendOptions) -> int:
    """How many calls of each graph are compared: what the option or the variable says.

    None of those whose weights are rounded on purpose, which the option refuses.
    """
    if options.weights is not None:
        return 0
    chosen: int | str = options.verify or env.read("DORT_VERIFY") or 0
    if chosen == "finite":  # which compares nothing
        return 0
    if not str(chosen).isdecimal() and not isinstance(chosen, bool):
        raise OptionError(f"DORT_VERIFY is a number of calls, or finite, not {chosen!r}.")
    return CALLS if chosen is True or chosen == "1" else int(chosen)


def verified(built: BuiltBlock, run: RunBoxed, options: OrtBackendOptions, calls: int) -> RunBoxed:
    """What runs a block, and compares its first calls with torch."""
    graph_module, left = built.graph_module, calls
    updated = _updated(graph_module)

    def call(args: list[Any]) -> Any:
        nonlocal left
        if left <= 0:
            return run(args)
        left -= 1
        given = copies(args)  # what runs the block may write to its arguments
        ours = list(args)
        results = run(args)
        reference = copies(given)
        expected = _in_torch(graph_module, reference)
        got = [*results, *_but(updated, ours)]
        expected += _but(updated, reference)
        found = first_difference(got, expected)
        if found and not _is_noise(graph_module, given, got, expected):
            raise _divergence(built, given, options, found)
        return results

    return call


def copies(args: Sequence[Any]) -> list[Any]:
    """Arguments with memory of their own, laid out as it was.

    NOTE: each has its own: AOTAutograd gives no graph two arguments of one memory to write to.
    """
    return [_copy(a) if isinstance(a, torch.Tensor) else a for a in args]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if not plain.numel():
        return plain.clone()
    reach = 1 + sum((d - 1) * s for d, s in zip(plain.shape, plain.stride(), strict=True))
    whole = plain.as_strided((reach,), (1,), plain.storage_offset()).clone()
    return whole.as_strided(plain.shape, plain.stride())


def _updated(graph_module: torch.fx.GraphModule) -> frozenset[int]:
    """The arguments that have their new value among the results, and may have it already."""
    return frozenset(updates_of(graph_module.graph).values())


def _but(left_out: frozenset[int], args: Sequence[Any]) -> list[Any]:
    return [a for i, a in enumerate(args) if i not in left_out]


def _in_torch(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> list[Any]:
    with torch.no_grad():
        results = graph_module.forward(*args)
    return list(results) if isinstance(results, list | tuple) else [results]


def _is_noise(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    got: Sequence[Any],
    expected: Sequence[Any],
) -> bool:
    """Whether torch's own results move as far when the arguments move by a rounding."""
    gaps = [farthest(a, b) for a, b in zip(got, expected, strict=True)]
    noise = [0.0] * len(gaps)
    generator, updated = torch.Generator().manual_seed(0), _updated(graph_module)
    for _ in range(_ROUNDINGS):
        moved = [_moved(a, generator) for a in copies(args)]
        results = [*_in_torch(graph_module, moved), *_but(updated, moved)]
        noise = [max(n, farthest(r, b)) for n, r, b in zip(noise, results, expected, strict=True)]
    tolerable = all(gap <= _NOISE * n for gap, n in zip(gaps, noise, strict=True) if gap)
    if tolerable:
        logger.info("A difference to torch is no larger than what rounding the arguments makes.")
    return tolerable


def _moved(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    step = torch.rand(value.shape, generator=generator).to(value.device) * 2 - 1
    return value + value * (step * torch.finfo(value.dtype).eps).to(value.dtype)


def _divergence(
    built: BuiltBlock, args: Sequence[Any], options: OrtBackendOptions, found: str
) -> DivergenceError:
    """The error that names the first node that differs, a folder being written."""
    first = _first_difference(built, args)
    place = f"The first node that differs: {first}" if first is not None else (
        "Run one node at a time, the model gives what torch does: look at ONNX Runtime's own "
        'optimizations (options={"ort_optimization_level": "disable"}).'
    )  # fmt: skip
    text = f"A graph does not give what torch gives: {found}. {place}"
    folder = report_problem(built.graph_module, args, options, text, built)
    written = "" if folder is None else f" All that shows it is in {str(folder)!r}."
    name, node, where = ("", "", "") if first is None else (first.name, first.node, first.where)
    return DivergenceError(f"{text}{written}", name=name, node=node, where=where)


def _first_difference(built: BuiltBlock, args: Sequence[Any]) -> DivergenceError | None:
    """Run the model one node at a time, and compare each result with torch's."""
    torch_results = TorchResults(built.graph_module, built.computed)
    torch_results.compute(copies(args))

    def see(name: str, value: Any, node: Any) -> None:
        if node is not None:
            torch_results.check(name, value, describe_node(node))

    try:
        executor = ReferenceExecutor(
            built.model, built.signature, on_result=see, engine="onnxruntime"
        )
        executor(*copies(args))
    except DivergenceError as error:
        return error
    except ExecutionError as error:
        logger.warning("The model cannot be run one node at a time: %s", error)
    return None
