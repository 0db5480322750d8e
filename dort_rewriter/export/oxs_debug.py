"""OxsDebugDispatcher: our converter and torchlib's function side by side, both against torch.

Each operator that both convert is rebuilt alone, on made-up inputs of the right shapes and types,
and run by ONNX's reference evaluator. The graph under export is converted as usual.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator

from dort_rewriter.errors import ExportError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import convert_graph
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.export.registry import Converter, op_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Comparison:
    """What each side made of one operator."""

    op: str
    node: str
    ours: float | str
    """The largest difference to torch, or why there is none."""
    torchlib: float | str
    """The same for torchlib."""
    nodes: tuple[int, int]
    """How many ONNX nodes each side recorded (0 when it failed)."""


class OxsDebugDispatcher(OxsDispatcher):
    """Compares while it dispatches; `report` holds one :class:`Comparison` an operator seen."""

    def __init__(
        self,
        registered_functions: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        own_converters: bool = True,
    ) -> None:
        super().__init__(registered_functions, own_converters=own_converters)
        self.report: list[Comparison] = []
        self._seen: set[torch.fx.Node] = set()
        self._ours = Dispatcher(registered_functions)
        self._torchlib = OxsDispatcher(own_converters=False)

    def find(self, node: torch.fx.Node) -> Converter | str:
        """The converter of an FX node, once both sides have been compared on it."""
        name = op_name(node.target)
        if node not in self._seen and self._ours.converts(name) and self._torchlib.converts(name):
            self._seen.add(node)
            self._compare(node, name)
        return super().find(node)

    def _compare(self, node: torch.fx.Node, name: str) -> None:
        try:
            single, inputs = _isolate(node)
        # An operator refuses made-up inputs in its own ways: a position out of range, mostly.
        except (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError) as e:
            why = f"torch refuses the made-up inputs: {e}"
            self.report.append(Comparison(name, node.name, why, why, (0, 0)))
            return
        expected = list(single(*inputs))
        ours, ours_nodes = _difference(single, inputs, expected, self._ours)
        theirs, their_nodes = _difference(single, inputs, expected, self._torchlib)
        comparison = Comparison(name, node.name, ours, theirs, (ours_nodes, their_nodes))
        logger.info("%s", comparison)
        self.report.append(comparison)


def _isolate(node: torch.fx.Node) -> tuple[torch.fx.GraphModule, list[Any]]:
    """A graph holding this node alone, and inputs for it."""
    graph = torch.fx.Graph()
    made: dict[torch.fx.Node, torch.fx.Node] = {}
    inputs = []
    for source in node.all_input_nodes:
        inputs.append(_invent(source.meta.get("val")))
        made[source] = graph.placeholder(source.name)
        made[source].meta["val"] = inputs[-1]
    copy = graph.node_copy(node, lambda n: made[n])
    results, parts = node.meta.get("val"), [copy]
    if isinstance(results, list | tuple):
        parts = [graph.call_function(operator.getitem, (copy, i)) for i in range(len(results))]
    graph.output(tuple(parts))
    single = torch.fx.GraphModule(torch.nn.Module(), graph)
    copy.meta["val"] = values = single(*inputs)
    for part, value in zip(parts, values, strict=True):
        part.meta["val"] = value
    return single, inputs


def _invent(meta: Any) -> Any:
    if not isinstance(meta, torch.Tensor):
        return meta.node.hint if isinstance(meta, torch.SymInt | torch.SymFloat) else meta
    shape = [d if isinstance(d, int) else d.node.hint for d in meta.shape]
    generator = torch.Generator().manual_seed(len(shape))
    if meta.dtype.is_floating_point:
        return torch.rand(shape, generator=generator).to(meta.dtype)
    return torch.randint(0, 2, shape, generator=generator).to(meta.dtype)


def _difference(
    single: torch.fx.GraphModule, inputs: list[Any], expected: list[Any], dispatcher: Dispatcher
) -> tuple[float | str, int]:
    try:
        exported = convert_graph(single, dispatcher)
        evaluator = ReferenceEvaluator(ir.to_proto(exported.model))
        feed = {
            name: torch.as_tensor(value).numpy()
            for name, value in zip(exported.input_names, inputs, strict=True)
        }
        got = evaluator.run(None, feed)
    except (ExportError, LookupError, RuntimeError, TypeError, ValueError) as e:
        return f"{type(e).__name__}: {e}", 0
    worst = 0.0
    computed = [e for e in expected if e is not None]
    for a, b in zip(got, computed, strict=True):
        difference = torch.as_tensor(a).double() - torch.as_tensor(b).double()
        worst = max(worst, float(difference.abs().max()) if difference.numel() else 0.0)
    return worst, len(exported.model.graph)
