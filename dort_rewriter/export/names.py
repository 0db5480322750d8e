"""Names of a model's inputs, outputs and dimensions.

They are what its users know it by: names of what lies between give way to them.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.errors import ExportError
from dort_rewriter.signature import GraphSignature

_WORD = re.compile(r"[A-Za-z_]\w*")


def create_input_names(graph_module: torch.fx.GraphModule, args: Sequence[Any] = ()) -> list[str]:
    """A name for each placeholder: ``input0`` for a tensor, ``input_dim_1`` for an integer.

    Args:
        graph_module: a graph of Dynamo, or of ATen operators.
        args: its arguments; each, where there is one, decides before the node metadata.

    Returns:
        The names, in the order of the placeholders.
    """
    placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    values = [
        args[i] if i < len(args) else node.meta.get("val", node.meta.get("example_value"))
        for i, node in enumerate(placeholders)
    ]
    return [
        f"input_dim_{i}" if _is_integer(value) else f"input{i}" for i, value in enumerate(values)
    ]


def create_output_names(values: Sequence[Any]) -> list[str]:
    """A name for each result: ``output_0``, ``output_dim_1`` (int), ``output_NONE_2``."""
    return [
        f"output_NONE_{i}"
        if value is None
        else f"output_dim_{i}"
        if _is_integer(value)
        else f"output_{i}"
        for i, value in enumerate(values)
    ]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def read_names(option: str, names: Iterable[str] | None) -> list[str] | None:
    """Read ``input_names`` or ``output_names``: texts that are names, each another."""
    if names is None:
        return None
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise ExportError(f"{option} is a list of names, not {names!r}.")
    given = list(names)
    if wrong := [name for name in given if not isinstance(name, str) or not name]:
        raise ExportError(f"{option} has {wrong[0]!r}, which is not a name.")
    if len(set(given)) != len(given):
        raise ExportError(f"{option} has duplicates: {given}.")
    return given


def check_names(
    given: Sequence[str] | None, names: Sequence[str], count: int, output_names: Sequence[str]
) -> None:
    """Refuse names of inputs that are not one for each, and outputs with the name of an input.

    `names` are those of the `count` inputs where none are given.
    """
    if given is not None and len(given) != count:
        raise ExportError(
            f"input_names has {len(given)} name(s) but the graph has {count} input(s); "
            "create_input_names(graph_module, args) gives one for each."
        )
    inputs = names if given is None else given
    if len(set(inputs)) != len(inputs):
        raise ExportError(f"input_names has duplicates: {inputs}.")
    if both := [name for name in output_names if name in inputs]:
        raise ExportError(
            f"output_names has {both[0]!r}, which is the name of an input; "
            "input_names gives the inputs other names."
        )


def give_way(model: ir.Model, names: Sequence[str]) -> None:
    """Rename what lies between inputs and outputs and has one of their names."""
    if not names:
        return
    ends = {*model.graph.inputs, *model.graph.outputs}
    values = [
        v
        for g in model.graphs()
        for v in (*g.inputs, *g.initializers.values(), *(o for n in g for o in n.outputs))
    ]
    taken = {*names, *(str(v.name) for v in values)}
    for value in values:
        if value.name not in names or value in ends:
            continue
        number = next(i for i in itertools.count(1) if f"{value.name}_{i}" not in taken)
        value.name = f"{value.name}_{number}"
        taken.add(value.name)


def rename_symbols(
    model: ir.Model, signature: GraphSignature, names: Mapping[str, str]
) -> GraphSignature:
    """Give symbols other names: in the model, which is changed, and in the signature returned."""

    def rename(dim: Any) -> Any:
        text = dim.value if isinstance(dim, ir.SymbolicDim) else dim
        if not isinstance(text, str):
            return text
        return _WORD.sub(lambda word: names.get(word[0], word[0]), text)

    for graph in model.graphs():
        for value in [*graph.inputs, *(o for node in graph for o in node.outputs)]:
            if value.shape is not None:
                value.shape = ir.Shape([rename(d) for d in value.shape])
    return GraphSignature(
        inputs=tuple(
            dataclasses.replace(slot, shape=tuple(map(rename, slot.shape)))
            for slot in signature.inputs
        ),
        outputs=tuple(
            dataclasses.replace(slot, shape=tuple(map(rename, slot.shape)))
            for slot in signature.outputs
        ),
    )
