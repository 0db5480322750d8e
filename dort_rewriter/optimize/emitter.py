"""Emitter: the writer rules build with; its nodes wait until the driver finds their place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from dort_rewriter.graph.writer import Writer

__all__ = ["Emitter"]


class Emitter(Writer):
    """Collects the nodes of one application."""

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        super().__init__(graph, opset)
        self.nodes: list[ir.Node] = []
        self._adopt_constants()
        self._named = len(graph.initializers)

    def begin(self, provenance: Mapping[str, str]) -> None:
        """Start an application; its nodes say where they come from."""
        self.nodes = []
        self.provenance = provenance

    def call(self, name: str, /, *inputs: Any, domain: str = "", **options: Any) -> Any:
        """Emit a node. The first result of one of another domain has the type of its first input
        unless the rule, or what it replaces, says otherwise."""
        results = super().call(name, *inputs, domain=domain, **options)
        first = results[0] if isinstance(results, tuple) else results
        if first.type is None and isinstance(inputs[0], ir.Value):
            first.type = inputs[0].type
        return results

    def _adopt_constants(self) -> None:
        for value in self.graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                self.adopt(value)

    def _place(self, node: ir.Node) -> None:
        self.nodes.append(node)

    def _key(self, *args: Any) -> None:
        """Nodes are not shared between applications: those of an earlier one may be gone."""
        return

    def _constant_name(self) -> str:
        while (name := f"constant_{self._named}") in self.graph.initializers:
            self._named += 1
        return name
