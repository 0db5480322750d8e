"""onnx_debug_backend: the graphs of ``onnx_custom_backend``, run one ONNX node at a time."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TextIO

import numpy as np
import onnx
import torch

from dort_rewriter.backends.arguments import CustomBackendOptions, takes_fields_of
from dort_rewriter.backends.custom import compile_any_graph, make_recipe, merge_options
from dort_rewriter.compiler.divergence import TorchResults
from dort_rewriter.compiler.safety_net import raises_at_call
from dort_rewriter.errors import OptionError, ResultReachedError
from dort_rewriter.options import OptimizationOptions, from_mapping
from dort_rewriter.plan.recipe import ExportedBlock
from dort_rewriter.runtime.reference import ReferenceExecutor, describe_node

logger = logging.getLogger(__name__)

Engine = Literal["reference", "onnxruntime"]

PRINT_RESULTS = 10
"""The verbosity from which every result is printed."""


@dataclass(frozen=True, kw_only=True)
class DebugBackendOptions(CustomBackendOptions):
    """What ``onnx_debug_backend`` takes by name, besides ``options``. From a ``verbose`` of 10 on
    every result of every run is printed."""

    backend: Engine = "reference"
    """``"reference"``: ONNX's reference evaluator, in numpy, which needs no onnxruntime but knows
    standard operators only; ``"onnxruntime"``: a session for each node."""
    raise_list: Sequence[str] = ()
    """Names of results at which a run stops, with ``ResultReachedError``, which has the value."""
    compare: bool = False
    """Compare every result with torch's; the first that differs raises ``DivergenceError``, which
    names the ONNX node, the FX node and its Python line."""
    tolerance: float | None = None
    """The largest difference accepted, relative to the largest value of a result (at least 0.01);
    None is 1e-4 for float32, 1e-7 for float64, 1e-2 and 5e-2 for float16 and bfloat16."""
    new_ops: Sequence[type[Any]] = ()
    """Implementations to add to ONNX's reference evaluator (subclasses of its ``OpRun``)."""
    stream: TextIO | None = None
    """Where results are printed; None is the standard output."""


@takes_fields_of(DebugBackendOptions)
@raises_at_call
def onnx_debug_backend(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    *,
    options: OptimizationOptions | Mapping[str, Any] | None = None,
    name: str | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Compile a graph to a model whose nodes run one at a time, to see what each computes.

    It is used as ``onnx_custom_backend`` is, takes its arguments too, and gives the same models:
    a result that is wrong here is wrong in the model, one that is right here and wrong there is
    onnxruntime's.

    Args:
        graph_module: a graph of Dynamo, or of ATen operators.
        args: the arguments it is compiled for.
        options: as for ``onnx_custom_backend``; a mapping may also name any argument.
        name: what ``torch.compile`` was given as such, which torch 2.15 passes on: not read.
        settings: the fields of :class:`DebugBackendOptions`, which says what each does.

    """
    chosen, optimization = merge_options(from_mapping(DebugBackendOptions, settings), options)
    if chosen.backend not in ("reference", "onnxruntime"):
        raise OptionError(f"backend is 'reference' or 'onnxruntime', not {chosen.backend!r}.")
    recipe = replace(
        make_recipe(chosen, optimization),
        make_runner=functools.partial(DebugRunner, settings=chosen),
    )
    return compile_any_graph(graph_module, args, chosen, recipe)


class DebugRunner:
    """Runs an exported graph node by node, and looks at each result."""

    def __init__(self, block: ExportedBlock, settings: DebugBackendOptions) -> None:
        self.block = block
        self.settings = settings
        self.executor = ReferenceExecutor(
            block.model,
            block.signature,
            on_result=self.see,
            new_ops=settings.new_ops,
            engine=settings.backend,
        )
        self.model = self.executor.model
        self.provider = f"{settings.backend}, node by node"
        self.torch_results: TorchResults | None = None

    def boxed(self, args: list[Any]) -> Any:
        """Run the graph on a list of arguments, which is emptied."""
        if self.settings.compare:
            self.torch_results = TorchResults(self.block.graph_module, self.block.computed)
            self.torch_results.compute(args)
        results = self.executor(*args)
        if self.torch_results is not None:
            logger.info("%d results are those of torch", self.torch_results.compared)
            self.torch_results = None
        args.clear()
        return results

    def see(self, name: str, value: Any, node: onnx.NodeProto | None) -> None:
        """Look at a result as soon as it exists."""
        settings = self.settings
        if settings.verbose >= PRINT_RESULTS:
            stream = sys.stdout if settings.stream is None else settings.stream
            stream.write(f"{describe_result(name, value, node)}\n")
        if self.torch_results is not None and node is not None:
            self.torch_results.check(name, value, describe_node(node), settings.tolerance)
        if name in settings.raise_list:
            raise ResultReachedError(
                f"The run stopped at a result of raise_list: {describe_result(name, value, node)}",
                name=name,
                value=value,
            )


def describe_result(name: str, value: Any, node: onnx.NodeProto | None) -> str:
    """A line about a result: its type, its shape, what is in it, what made it."""
    made = "" if node is None else f" = {describe_node(node)}"
    if not isinstance(value, np.ndarray):
        return f"{name}: {type(value).__name__} of {len(value)}{made}"
    text = f"{name}: {value.dtype}{list(value.shape)}{made}"
    if value.size == 0:
        return f"{text} -> empty"
    if value.size <= 8:
        return f"{text} -> {value.ravel().tolist()}"
    wide = value.astype(np.float64)
    return f"{text} -> min={wide.min():.6g} max={wide.max():.6g} mean={wide.mean():.6g}"
