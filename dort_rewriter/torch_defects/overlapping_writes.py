"""Writes in place to elements that are one in memory, as those of an expanded tensor.

AOTAutograd makes a new value of what is written, and adds to the base what has changed: once for
each place that an element is seen at. In eager mode most such writes are an error, and
``x.expand(2, 3).zero_()`` writes zeros.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from dort_rewriter.aten import hint_of, overlaps, written_arguments
from dort_rewriter.torch_defects.defect import Defect

DEFECT = Defect(
    operators="in-place mutation of an expanded tensor",
    effect=(
        "Each place that an element is seen at counts: other numbers, or numbers where eager "
        "mode raises an exception."
    ),
    seen_in=("2.8", "2.13"),
    remedy="the graph runs in eager mode",
    upstream="pytorch#197448, pytorch#114302, pytorch#152425",
)


REASON = "it writes in place to elements that are one in memory (of an expanded tensor)"
"""Why such a node is left to eager mode."""

_OPERATORS = frozenset(
    {
        *("iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow"),
        *("irshift", "isub", "itruediv", "ixor", "setitem"),
    }
)
"""Functions of Python's ``operator``, and methods with two underscores on either side."""
_OF_SHAPE = frozenset(
    {
        *("as_strided_", "detach_", "rename_", "requires_grad_", "resize_", "resize_as_", "set_"),
        *("share_memory_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_"),
        "unsqueeze_",
    }
)
"""What changes a tensor in place, and no element of it."""
_TAKEN = frozenset(
    {
        *("__setitem__", "embedding", "embedding_bag", "embedding_renorm_", "fill_"),
        *("fill_diagonal_", "index_fill_", "index_put_", "masked_fill_", "setitem", "tril_"),
        *("triu_", "zero_"),
    }
)
"""What eager mode does to an expanded tensor: it refuses all other writes."""


def overlapping_writes(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The nodes of Dynamo's graph, and of those inside it, that write where elements are one in
    memory, or to a part of such a view: what has changed is added to the base, rounded, there
    too."""
    graphs = [m.graph for m in graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return [
        node
        for node in itertools.chain(*(graph.nodes for graph in graphs))
        if (written := mutated_arguments(node))
        if any(map(overlaps, (*_written(node, written), *itertools.chain(*map(_viewed, written)))))
    ]


def raises_in_eager_mode(node: torch.fx.Node) -> bool:
    """Whether eager mode refuses a write where elements are one in memory."""
    if name_of(node) in _TAKEN:
        return False
    return any(
        hint_of(stride) == 0 and hint_of(size) != 1
        for value in _written(node, mutated_arguments(node))
        for stride, size in zip(value.stride(), value.shape, strict=True)
    )


def name_of(node: torch.fx.Node) -> str:
    """What a node of Dynamo's graph calls, without where that lies."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def mutated_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a node of Dynamo's graph writes to, of its arguments."""
    if node.op not in ("call_method", "call_function"):
        return []
    kwargs = node.kwargs
    written = [kwargs.get("out")]
    first = node.args[0] if node.args else kwargs.get("input", kwargs.get("self"))
    name = name_of(node)
    if isinstance(node.target, torch._ops.OpOverload):
        written = list(written_arguments(node))
    elif name.strip("_") in _OPERATORS:
        written = [first]
    elif name.endswith("_") and not name.endswith("__"):
        written = [first] if name not in _OF_SHAPE else []
    elif getattr(node.target, "__module__", "") == functional.__name__:
        written += [first] if _argument(node, "inplace") else []
        written += [_argument(node, "weight")] if _argument(node, "max_norm") is not None else []
    return [n for n in tree_leaves(written) if isinstance(n, torch.fx.Node)]


def _argument(node: torch.fx.Node, name: str) -> Any:
    """What a function of Python is called with by a name; None where that is left out."""
    place = _places(node.target).get(name)
    if place is None or place >= len(node.args):
        return node.kwargs.get(name)
    return node.args[place]


@functools.cache
def _places(function: Any) -> Mapping[str, int]:
    """The parameters of a function of ``torch.nn.functional``, with their numbers."""
    if not inspect.isfunction(function):
        return {}
    return {name: i for i, name in enumerate(inspect.signature(function).parameters)}


def traced_value(node: Any) -> Any:
    """The value of a node as Dynamo or AOTAutograd traced it; another argument as it is."""
    if not isinstance(node, torch.fx.Node):
        return node
    return node.meta.get("example_value", node.meta.get("val"))


def _written(node: torch.fx.Node, written: Sequence[torch.fx.Node]) -> list[torch.Tensor]:
    """What a node writes to, as far as it is traced as tensors."""
    values = [traced_value(n) for n in written]
    tensors = [v for v in values if isinstance(v, torch.Tensor) and v.layout is torch.strided]
    if name_of(node).strip("_") != "setitem" or not any(map(overlaps, tensors)):
        return tensors
    index: Any = torch.fx.map_arg(node.args[1], traced_value)
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, torch.Tensor | list) for i in items):
        return tensors  # a copy would be read; what is written may overlap
    return [value[index] for value in tensors]


def _viewed(node: Any) -> Iterator[torch.Tensor]:
    """The value of a node, and what it is a view of, as far as first arguments tell."""
    memory = None
    while isinstance(node, torch.fx.Node):
        value = traced_value(node)
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return
        if is_functorch_wrapped_tensor(value):  # which has no memory
            return
        if memory not in (None, memory := value.untyped_storage()._cdata):
            return
        yield value
        node = node.args[0] if node.args else None


def present() -> bool:
    """Whether zeros written to an expanded tensor are something else."""
    return bool(torch.compile(_clear, backend="aot_eager")(torch.ones(3)).any())


def _clear(x: torch.Tensor) -> torch.Tensor:
    return x.expand(2, 3).zero_()
