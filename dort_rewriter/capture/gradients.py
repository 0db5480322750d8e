"""Graphs of models that differentiate, by ``torch.autograd.grad`` or transforms of ``torch.func``.

``torch.export`` traces no such model. Here one is run once on fake tensors, below autograd, by
``make_fx``: what the gradients compute is in the graph as anything else is.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from dort_rewriter.aten import is_mutation
from dort_rewriter.errors import CaptureError
from dort_rewriter.torch_defects.margin_loss import corrected


def trace_with_gradients(
    mod: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    shapes: Sequence[Any] | None,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> tuple[torch.fx.GraphModule, dict[str, torch.Tensor]]:
    """The ATen graph of a call, and the tensors of the module that are its first inputs.

    ``shapes`` says for each leaf of the arguments which axes may vary; None if none may. Raises
    :class:`CaptureError` where nothing is differentiated: what else ``torch.export`` refuses it
    refuses for a reason.
    """
    held: dict[str, torch.Tensor] = {}
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in (
        *mod.named_parameters(remove_duplicate=False),
        *mod.named_buffers(remove_duplicate=False),
    ):
        names[name] = first.setdefault(id(tensor), name)
        held.setdefault(names[name], tensor)
    if any(tensor.is_meta for tensor in held.values()):
        raise CaptureError("Weights are on the meta device and without values.")
    leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stored = dict(zip(held, values, strict=False))
        state = {
            name: stored[known].detach().requires_grad_(held[known].requires_grad)
            for name, known in names.items()
        }
        given = iter(values[len(held) :])
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        inner_args, inner_kwargs = tree_unflatten(filled, spec)
        with torch.enable_grad(), _Differentiation() as noted:
            result = torch.func.functional_call(mod, state, inner_args, inner_kwargs)
        if not noted.seen:
            raise CaptureError("Nothing is differentiated.")
        found = tree_leaves(result)
        if not all(isinstance(leaf, torch.Tensor) for leaf in found):
            raise CaptureError("A model that differentiates returns tensors only.")
        return tuple(leaf.detach() for leaf in found)

    mode, fakes = _fakes([*held.values(), *tensors], shapes, len(held))
    table = dict(corrected(decompositions))
    with mode, _without_torchs_errors():
        graph = make_fx(run, decomposition_table=table)(*fakes)
        made: list[torch.Tensor] = []
        if any(map(is_mutation, graph.graph.nodes)):
            graph, made = _without_mutations(graph, fakes, table, is_dynamic=shapes is not None)
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    _set_metadata(graph, mode)
    constants = zip(placeholders, [*made, *held.values()], strict=False)
    return graph, {node.name: tensor.detach() for node, tensor in constants}


class _Differentiation(TorchFunctionMode):
    """Notes whether anything is differentiated, backward or forward."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.seen |= func is torch.autograd.grad or getattr(func, "__name__", "") == "_make_dual"
        return func(*args, **(kwargs or {}))


def _without_mutations(
    graph: torch.fx.GraphModule,
    fakes: Sequence[torch.Tensor],
    table: dict[Any, Callable[..., Any]],
    *,
    is_dynamic: bool,
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A graph that writes to nothing, and gives what one gives that writes to what it made.

    What that writes to buffers and arguments is left out: a model file has no state. Behind it
    the tensors of the graph that are its inputs now, in front of the others: torch 2.8 makes
    inputs of those that tracing left in it.
    """
    from torch._functorch.aot_autograd import aot_export_module

    with torch.no_grad():
        functional, signature = aot_export_module(
            graph, tuple(fakes), trace_joint=False, decompositions=table, dynamic_shapes=is_dynamic
        )
    assert isinstance(functional, torch.fx.GraphModule)
    output = next(n for n in functional.graph.nodes if n.op == "output")
    results = output.args[0]
    output.args = (results[len(results) - len(signature.user_outputs) :],)
    return functional, [graph.get_buffer(name) for name in signature.inputs_to_buffers.values()]


@contextlib.contextmanager
def _without_torchs_errors() -> Iterator[None]:
    """Have torch print nothing of a trace that fails: the exception is all that counts."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def _fakes(
    tensors: Sequence[torch.Tensor], shapes: Sequence[Any] | None, held: int
) -> tuple[Any, list[torch.Tensor]]:
    """Fake tensors: with symbols where the arguments, behind those held, may vary."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    mode = FakeTensorMode(
        shape_env=None if shapes is None else ShapeEnv(), allow_non_fake_inputs=True
    )
    said = [*[None] * held, *(shapes if shapes is not None else [None] * len(tensors))]
    made: list[torch.Tensor] = []
    for tensor, shape in zip(tensors, said, strict=False):
        tensor = tensor.detach()
        if shapes is None:
            made.append(mode.from_tensor(tensor))
            continue
        axes = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
        varying = {axis for axis, dim in axes if dim is not None and not isinstance(dim, int)}
        kinds = [
            DimDynamic.DYNAMIC if i in varying else DimDynamic.STATIC for i in range(tensor.dim())
        ]
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
        made.append(mode.from_tensor(tensor, symbolic_context=context))
    return mode, made


def _set_metadata(graph: torch.fx.GraphModule, mode: Any) -> None:
    """Note what constants are that tracing left in the graph."""
    for node in graph.graph.nodes:
        if node.op == "get_attr" and isinstance(
            value := getattr(graph, str(node.target), None), torch.Tensor
        ):
            node.meta["val"] = mode.from_tensor(value)
    graph.graph.eliminate_dead_code()
    graph.recompile()
