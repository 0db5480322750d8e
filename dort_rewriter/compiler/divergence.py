"""What torch computes at each node of a graph, to compare the results of a model with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dort_rewriter.aten import source_line
from dort_rewriter.compiler.differences import difference, of_graph, widened
from dort_rewriter.errors import DivergenceError
from dort_rewriter.plan.outputs import ModelOutput
from dort_rewriter.runtime.ort_values import array_to_tensor


class TorchResults(torch.fx.Interpreter):
    """The results of one run of a graph in torch, by the names they have in its model.

    NOTE: a model names a result after the node it comes from, ``split_1`` when the node has
    several; a result that a rewriting rule took out of the model is not compared.
    """

    def __init__(
        self, graph_module: torch.fx.GraphModule, computed: Mapping[str, ModelOutput]
    ) -> None:
        super().__init__(graph_module, garbage_collect_values=False)
        self.computed = computed
        self.nodes: dict[str, torch.fx.Node] = {}
        self.expected: dict[str, torch.Tensor] = {}
        self.compared = 0

    def compute(self, args: Sequence[Any]) -> None:
        """Run the graph in torch."""
        with torch.no_grad():
            self.run(*args)
        for name, output in self.computed.items():
            value = self.expected.get(output.node.name)
            if value is not None:
                self.nodes[name] = output.node
                order = output.order
                self.expected[name] = value if order is None else value.permute(order)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node and keep its results."""
        value = super().run_node(n)
        if n.op != "call_function":
            return value
        several = isinstance(value, list | tuple)
        for i, item in enumerate(value if several else (value,)):
            name = f"{n.name}_{i}" if several else n.name
            if isinstance(item, bool | int | float):
                item = torch.tensor(item)
            if isinstance(item, torch.Tensor) and name not in self.expected:
                self.nodes[name] = n
                self.expected[name] = item.detach()
        return value

    def check(self, name: str, array: Any, made_by: str, tolerance: float | None = None) -> None:
        """Compare a result of the model; raise :class:`DivergenceError` when it differs."""
        if name not in self.expected or not isinstance(array, np.ndarray):
            return
        expected, node = self.expected[name], self.nodes[name]
        self.compared += 1
        got, limit = array_to_tensor(array), of_graph(expected, tolerance)
        if got.dtype is not expected.dtype:  # a value inside may have another type in ONNX
            got, expected = widened(got), widened(expected)
        found = difference(got, expected, limit)
        if found is None:
            return
        where = source_line(node)
        raise DivergenceError(
            f"{name!r}, computed by {made_by}, is not what torch gives for "
            f"{node.format_node()}: {found.text}. The {self.compared - 1} result(s) compared "
            f"before are the same.{f' It comes from {where}' if where else ''}",
            name=name,
            node=node.name,
            where=where,
        )
