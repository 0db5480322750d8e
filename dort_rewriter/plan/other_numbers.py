"""What an execution provider computes with other numbers than eager mode: torch computes that.

A provider may take a type and compute another one, and may let NaN go. Each entry has its reason,
which ``explain`` says of the nodes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping

import torch

from dort_rewriter.export.registry import op_name
from dort_rewriter.runtime.providers import OPENVINO

_IN_INT32 = f"{OPENVINO} computes its integers in int32"
_SATURATES = f"{OPENVINO} keeps the largest number where one of its type wraps around"
_UNROUNDED = f"{OPENVINO} computes halves in float32, without their roundings"
_NARROWED = f"{OPENVINO} computes float64 in float32"

OF_FLOATS = frozenset({_UNROUNDED, _NARROWED})
"""The reasons that are about what models compute, not what they count."""

_TYPES: Mapping[str, Mapping[torch.dtype, str]] = {
    OPENVINO: {
        torch.float64: _NARROWED,
        torch.complex128: _NARROWED,
        torch.float16: _UNROUNDED,
        torch.bfloat16: _UNROUNDED,
        torch.int32: f"{OPENVINO} divides and compares int32 in float32",
        torch.int64: _IN_INT32,
        torch.uint16: _IN_INT32,
        torch.uint32: _IN_INT32,
        torch.uint64: _IN_INT32,
        torch.int8: _SATURATES,
        torch.int16: _SATURATES,
        torch.uint8: _SATURATES,
    }
}
"""Seen with ``onnxruntime-ep-openvino`` 1.8.1 and ``onnxruntime-openvino`` 1.24.1."""

_DROPS_NAN = f"{OPENVINO} takes a number for a NaN"
_LOSES_SIGN = f"{OPENVINO} gives 0.0 for -0.0"
_FAR_OFF = f"{OPENVINO} is far off where results are small"
_DIVIDES = f"{OPENVINO} gives NaN for a number divided by infinity"

_BY_REASON = {
    _DROPS_NAN: "amax amin aminmax argmax argmin cummax cummin kthvalue logcumsumexp logsumexp "
    "max min sort topk",
    _DIVIDES: "div.Tensor_mode div.Scalar_mode floor_divide",
    _LOSES_SIGN: "fmod remainder",
    _FAR_OFF: "lgamma log_sigmoid_forward logaddexp mish softplus",
}
_OPERATORS: Mapping[str, Mapping[str, str]] = {
    OPENVINO: {f"aten::{n}": why for why, names in _BY_REASON.items() for n in names.split()}
}

OTHER_NUMBERS = frozenset(
    [reason for types in _TYPES.values() for reason in types.values()]
    + [reason for operators in _OPERATORS.values() for reason in operators.values()]
)
"""The reasons why a node is not for a provider."""

_COUNTS_PLACES = frozenset(
    {
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::max_pool3d_with_indices",
        "aten::max_pool3d_with_indices_backward",
    }
)
"""Operators whose integers are below the size of a tensor."""


def has_other_numbers(node: torch.fx.Node, name: str, provider: str) -> str | None:
    """Why the numbers of a node are others where a provider computes them; None where not."""
    operators = _OPERATORS.get(provider, {})
    if (reason := operators.get(name) or operators.get(name.partition(".")[0])) is not None:
        return reason
    types = _TYPES.get(provider, {})
    if not types or name in _COUNTS_PLACES:
        return None
    for known in (node, *node.all_input_nodes):
        values = known.meta.get("val")
        for value in values if isinstance(values, list | tuple) else [values]:
            if isinstance(value, torch.Tensor) and value.dtype in types:
                return types[value.dtype]
    return None


def others_of(graph: torch.fx.Graph, provider: str) -> tuple[Counter[str], int]:
    """The operators of a graph whose numbers are others where a provider computes them, by the
    reason; and how many operators it has."""
    if provider not in _TYPES:
        return Counter(), 0
    found = [
        has_other_numbers(n, op_name(n.target), provider)
        for n in graph.nodes
        if n.op == "call_function" and n.target is not operator.getitem
    ]
    return Counter(reason for reason in found if reason is not None), len(found)
