"""Results that are views, which torch would make again from another tensor than they are views of.

AOTAutograd records how a result is made from its base, and does it again after each call. What it
recorded is of the base of the whole family: where the base at hand is a view itself
(``w = (x * 2).t(); return w, w.detach()``), or memory that several arguments share, the steps are
taken twice, and some of them end the process. Without a record it reads sizes and strides.

It does so too where the steps have symbolic sizes. A view of an argument that was written is then
sought where a view of the new value lies, whose memory is another: it is a view of the argument
here, which lies and begins where it does in eager mode. One in another type, whose sizes torch
takes for those of the argument's elements, is not compiled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._functorch._aot_autograd.schemas import OutputAliasInfo, OutputType
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dort_rewriter.aten import lineage, results_of
from dort_rewriter.errors import CaptureError
from dort_rewriter.torch_defects.defect import Defect

DEFECT = Defect(
    operators=(
        "results that are views of other results, of mutated arguments, of arguments that "
        "share memory; views of arguments in another type"
    ),
    effect=(
        "The view is made again from a tensor that it is no view of: other elements, an "
        "exception, or the end of the process."
    ),
    seen_in=("2.8", "2.13"),
    remedy="AOTAutograd's metadata of the compilation, and the graph, are corrected",
    upstream=(
        "arguments that share memory: pytorch#198095; the others: `reports/view_replays.md`, "
        "`reports/view_replays_of_arguments.md`, `reports/view_replays_of_types.md`"
    ),
)


_RECORDS = ("view_meta_sequence", "functional_tensor")
"""The name in torch 2.9, and the one before."""


def drop_wrong_replays(graph: torch.fx.Graph, metadata: Any, *, shared: bool) -> None:
    """Let the graph under compilation have no record that its bases do not fit.

    ``metadata`` is AOTAutograd's of that graph, or None; with ``shared``, some of its arguments
    share memory. Raises :class:`CaptureError` for a view in another type, which is not made again
    without its record: torch takes its sizes for those of the base's elements.
    """
    if metadata is None:
        return
    merged = shared and any(info.mutates_data for info in metadata.input_info)
    results = metadata.output_info
    for info in results:
        if merged or _is_of_view(info, results):
            for name in _RECORDS:
                if hasattr(info, name):
                    object.__setattr__(info, name, None)  # it is frozen, and not ours to make
    if _has_other_types(graph, metadata):
        raise CaptureError(
            "A result shows an argument in another type, of which torch has no record."
        )


def _has_other_types(graph: torch.fx.Graph, metadata: Any) -> bool:
    """Whether a result is a view of an argument in another type, by no record."""
    arguments = [n for n in graph.nodes if n.op == "placeholder"]
    first = len(metadata.tokens) + len(metadata.mutated_inp_runtime_indices)
    pairs = zip(metadata.output_info, results_of(graph)[first:], strict=False)
    return any(
        _shown(arguments[info.base_idx].meta["val"].dtype, leaf.meta["val"].dtype.is_complex)
        is not leaf.meta["val"].dtype
        for info, leaf in pairs
        if info.output_type is OutputType.alias_of_input and not _is_done_again(info)
    )


def _shown(dtype: torch.dtype, as_complex: bool) -> torch.dtype:
    """The type of what torch makes of an argument: parts of complex numbers are real ones."""
    if dtype.is_complex is as_complex:
        return dtype
    return dtype.to_complex() if as_complex else dtype.to_real()


def _is_done_again(info: OutputAliasInfo) -> bool:
    """Whether torch does what it recorded: it does no steps of symbolic sizes."""
    made, traced = (getattr(info, name, None) for name in _RECORDS)
    if made is not None:
        return not any(step.has_symbolic_inputs for step in made.sequence)
    return traced is not None and not torch._functionalize_is_symbolic(traced.tensor)


def _is_of_view(info: OutputAliasInfo, results: Sequence[OutputAliasInfo]) -> bool:
    """Whether the base of a result is a result that is a view itself."""
    if info.output_type is not OutputType.alias_of_intermediate_base_is_user_output:
        return False
    assert info.base_idx is not None
    return results[info.base_idx].output_type is not OutputType.non_alias


def view_written_arguments(graph: torch.fx.Graph, metadata: Any) -> int:
    """Let the results that are views of new values of arguments be views of the arguments.

    Returns how many they are.

    Their numbers are those before the writes, which are unused: torch makes each view again,
    once the argument is written.
    """
    arguments = [n for n in graph.nodes if n.op == "placeholder"]
    if metadata is None or len(arguments) != len(metadata.input_info):
        return 0  # its arguments are not those that the results are said to be views of
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    results = results_of(graph)
    first = len(metadata.mutated_inp_runtime_indices)
    given = {arguments[i]: results[k] for k, i in enumerate(metadata.mutated_inp_runtime_indices)}
    copies = [n for n in graph.nodes if n.target is torch.ops.aten.copy_.default]
    given |= {n.args[0]: n.args[1] for n in copies}
    changed = 0
    for i, info in enumerate(metadata.output_info, first):
        if info.output_type is not OutputType.alias_of_input or info.base_idx is None:
            continue
        written = metadata.input_info[info.base_idx]
        argument, leaf = arguments[info.base_idx], results[i]
        if argument not in given or written.mutates_metadata:
            continue
        with graph.inserting_before(copies[0] if copies else output):
            view = _view_of(argument, leaf, given[argument])
        results[i] = leaf if view is None else view
        changed += view is not None
    output.args = (tuple(results),)
    return changed


def _view_of(
    argument: torch.fx.Node, result: torch.fx.Node, value: torch.fx.Node
) -> torch.fx.Node | None:
    """The view of an argument that a result is of its new value; None where there is none."""
    chain = lineage(result)
    if value not in chain:
        return None
    made = [argument]
    for node in reversed(chain[: chain.index(value)]):
        at = {node.args[0]: made[-1]}
        made.append(argument.graph.node_copy(node, functools.partial(_replaced, at)))
        args, kwargs = torch.fx.map_arg((made[-1].args, made[-1].kwargs), lambda n: n.meta["val"])
        try:
            made[-1].meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
        except RuntimeError:  # the argument lies otherwise, and has no such view
            for copied in reversed(made[1:]):
                argument.graph.erase_node(copied)
            return None
    return made[-1]


def _replaced(by: Mapping[Any, torch.fx.Node], node: torch.fx.Node) -> torch.fx.Node:
    return by.get(node, node)


def share_memory(args: Sequence[Any]) -> bool:
    """Whether some of the arguments are of the same memory. What a transform of ``torch.func``
    wraps has none.
    """
    is_subclass: Callable[[Any], bool] = is_traceable_wrapper_subclass
    storages = [
        a.untyped_storage()._cdata
        for a in args
        if isinstance(a, torch.Tensor)
        and a.layout is torch.strided
        and not is_subclass(a)
        and not is_functorch_wrapped_tensor(a)
    ]
    return len(set(storages)) < len(storages)


def present() -> bool:
    """Whether a view of a result that is a view is made of another tensor."""
    x = torch.randn(3, 3, requires_grad=True)
    return not torch.equal(torch.compile(_views, backend="aot_eager")(x)[1], (x * 2).t())


def _views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    w = (x * 2).t()
    return w, w.detach()
