"""What torch computes at each node of a graph, to compare the results of a model with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dort_rewriter.aten import source_line
from dort_rewriter.errors import DivergenceError
from dort_rewriter.plan.outputs import ModelOutput
from dort_rewriter.runtime.reference import tensor_to_array

__all__ = ["TorchResults"]

_TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
"""Relative to the largest value of a result: two orders of summation differ by less."""

_SMALLEST_SCALE = 0.01
"""A result whose values are all smaller is what is left of larger ones: their rounding shows."""


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
        difference = describe_difference(expected, array, tolerance)
        if difference is None:
            return
        where = source_line(node)
        raise DivergenceError(
            f"{name!r}, computed by {made_by}, is not what torch gives for "
            f"{node.format_node()}: {difference}. The {self.compared - 1} result(s) compared "
            f"before are the same.{f' It comes from {where}' if where else ''}",
            name=name,
            node=node.name,
            where=where,
        )


def describe_difference(
    expected: torch.Tensor, array: np.ndarray[Any, Any], tolerance: float | None = None
) -> str | None:
    """How a result differs from that of torch; None when it is the same."""
    if tuple(expected.shape) != array.shape:
        return f"its shape is {list(array.shape)} instead of {list(expected.shape)}"
    wanted = tensor_to_array(expected)
    if wanted.size == 0:
        return None
    if tolerance is None:
        tolerance = _TOLERANCES.get(expected.dtype, 0.0)
    a, b = array.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    finite = np.abs(b[np.isfinite(b)])
    limit = tolerance * max(_SMALLEST_SCALE, float(finite.max(initial=0.0)))
    if not (wrong := ~(gap <= limit)).any():
        return None
    at = np.unravel_index(int(np.argmax(np.where(np.isnan(gap), np.inf, gap))), gap.shape)
    place = f" at {[int(i) for i in at]}" if at else ""
    return (
        f"{int(wrong.sum())} of {wanted.size} value(s) differ by more than {limit:.1e}, "
        f"{array[at]} instead of {wanted[at]}{place}"
    )
