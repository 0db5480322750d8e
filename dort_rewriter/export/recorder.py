"""Recorder: the `op` of every converter: a writer that knows the FX node under conversion."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.errors import ExportError
from dort_rewriter.export.registry import Refused
from dort_rewriter.graph.values import Value
from dort_rewriter.graph.writer import Writer
from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES


class Recorder(Writer):
    """Records the nodes that stand for one FX node after the other."""

    def __init__(self, graph: ir.Graph, opset: int, *, own_kernels: bool = False) -> None:
        super().__init__(graph, opset)
        self.own_kernels = own_kernels
        """Whether nodes with kernels of our own may be recorded."""
        self.fx_node: torch.fx.Node
        """The FX node under conversion; set by the interpreter."""
        self.walk: Callable[[Recorder, torch.fx.GraphModule, Sequence[Any]], list[Any]]
        """Records another FX graph with a recorder; set by the interpreter."""
        self.drawn: Value | None = None
        """What the next draw of random numbers in torch waits for."""
        self.prefix = ""
        """Of the names in a subgraph: they differ from all others of the model."""
        self.serial = itertools.count()
        """Numbers the subgraphs of a model."""

    def inline(self, body: torch.fx.GraphModule, arguments: Sequence[Any]) -> list[Any]:
        """Record the nodes of another FX graph here, and return its results."""
        before = self.fx_node, self.provenance
        results = self.walk(self, body, arguments)
        self.fx_node, self.provenance = before
        return results

    def _constant_name(self) -> str:
        return f"{self.prefix}{super()._constant_name()}"

    def import_domain(self, domain: str, version: int) -> None:
        """Let the model have a version of a domain, the one of all nodes; :class:`Refused` when
        it has another."""
        known = self.graph.opset_imports.setdefault(domain, version)
        if known != version:
            raise Refused(f"{domain} is at version {known} already, not {version}")

    @property
    def dtype(self) -> ir.DataType:
        """The element type of the (first) result of the FX node under conversion; of the parts of
        complex numbers."""
        result = self.result
        if isinstance(result, list | tuple):
            result = next(r for r in result if r is not None)
        if isinstance(result, torch.Tensor):
            return to_onnx_type(result.dtype.to_real())
        return scalar_type(result)

    @property
    def result(self) -> Any:
        """The fake result (or results) of the FX node under conversion."""
        return self.fx_node.meta["val"]

    def takes_own(self, *values: Value | None) -> bool:
        """Whether a kernel of our own may compute with these values: float32, not empty, of
        not too many axes."""
        return self.own_kernels and all(
            v.dtype == ir.DataType.FLOAT and 0 not in v.dims and v.rank <= OWN_MOST_AXES
            for v in values
            if v is not None
        )

    def own(self, name: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Record a node with a kernel of our own; its results are float32 unless said later."""
        results = self.call(name, *inputs, domain=OWN_DOMAIN, outputs=outputs, **attributes)
        for result in results if isinstance(results, tuple) else (results,):
            result.type = ir.TensorType(ir.DataType.FLOAT)
        return results


def scalar_type(value: Any) -> ir.DataType:
    """The element type of a Python number or symbolic number: exact, so float is DOUBLE."""
    if isinstance(value, bool | torch.SymBool):
        return ir.DataType.BOOL
    if isinstance(value, int | torch.SymInt):
        return ir.DataType.INT64
    if isinstance(value, float | torch.SymFloat):
        return ir.DataType.DOUBLE
    raise ExportError(f"A result of type {type(value).__name__} has no counterpart in ONNX.")
