"""Graphs of models that differentiate: ``torch.autograd.grad``, ``backward``, ``torch.func``.

``torch.export`` traces no such model. Here one is run on fake tensors, below autograd, by
``make_fx``: what the gradients compute is in the graph as anything else is. Tensors that the model
reads and does not hold, those of a closure, are found so and are inputs when it is run again:
transforms take no real tensors beside fake ones.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode, is_fake
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.traceback import preserve_node_meta
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)

from dort_rewriter.aten import is_mutation
from dort_rewriter.capture.functions import named_tensors
from dort_rewriter.capture.lines import Lines
from dort_rewriter.errors import CaptureError
from dort_rewriter.torch_defects.margin_loss import corrected

_REPEATS = 4
"""How often a model is run again: it may fail at the first tensor of several that it reads."""


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
    call = _Call(mod, args, kwargs)
    for is_last in (*[False] * _REPEATS, True):
        call.transforms = _Transforms()
        fakes = Fakes(shapes is not None)
        varying = map(varying_axes, shapes or [None] * len(call.tensors))
        given = [*map(fakes.of, call.held.values()), *map(fakes.of, call.tensors, varying)]
        try:
            graph, made = _traced(call, given, fakes, decompositions)
            break
        except Exception:  # of any kind: what transforms say to a real tensor
            if is_last or not call.transforms.beside:
                raise
        call.hold(call.transforms.beside.values())
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    _set_metadata(graph, fakes.mode)
    names = map(_initializer_name, call.held, call.held.values())
    labels = [*(f"c_{i}" for i, _ in enumerate(made)), *names, *_argument_names(mod, args, kwargs)]
    for node, label in zip(placeholders, labels, strict=True):
        node.target = label
        node._rename(label)
    graph.recompile()
    constants = zip(placeholders, [*made, *call.held.values()], strict=False)
    return graph, {node.name: tensor.detach() for node, tensor in constants}


class _Call:
    """A call of a module as a function of tensors: those held, then those among the arguments."""

    def __init__(
        self, mod: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._mod = mod
        self.held: dict[str, torch.Tensor] = {}
        self._names: dict[str, str] = {}
        self._beside: dict[str, torch.Tensor] = {}
        first: dict[int, str] = {}
        for name, tensor in named_tensors(mod):
            self._names[name] = first.setdefault(id(tensor), name)
            self.held.setdefault(self._names[name], tensor)
        if any(tensor.is_meta for tensor in self.held.values()):
            raise CaptureError("Weights are on the meta device and without values.")
        self._leaves, self._spec = tree_flatten((tuple(args), dict(kwargs)))
        self.tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        self.transforms = _Transforms()

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take tensors that the module reads for inputs, too."""
        for tensor in tensors:
            name = f"constant_{len(self._beside)}"
            self._beside[name] = self.held[name] = tensor

    def __call__(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stored = {
            name: value.detach().requires_grad_(tensor.requires_grad)
            for (name, tensor), value in zip(self.held.items(), values, strict=False)
        }
        for name, tensor in self._beside.items():
            self.transforms.stand_ins[id(tensor)] = stored[name]
        given = iter(values[len(self.held) :])
        filled = [
            next(given).detach().requires_grad_(leaf.requires_grad)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in self._leaves
        ]
        args, kwargs = tree_unflatten(filled, self._spec)
        state = {name: stored[known] for name, known in self._names.items()}
        with torch.enable_grad(), self.transforms, Lines(_Call.__call__):
            result = torch.func.functional_call(self._mod, state, args, kwargs)
        if not self.transforms.seen:
            raise CaptureError("Nothing is differentiated or mapped.")
        found = [leaf for leaf in tree_leaves(result) if leaf is not None]
        if not all(isinstance(leaf, torch.Tensor) for leaf in found):
            raise CaptureError("A model that differentiates returns tensors only.")
        return tuple(leaf.detach() for leaf in found)


def _initializer_name(name: str, tensor: torch.Tensor) -> str:
    """What torch.export calls a parameter or a buffer."""
    kind = "p" if isinstance(tensor, torch.nn.Parameter) else "b"
    return f"{kind}_{name.replace('.', '_')}"


def _argument_names(
    mod: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """What torch.export calls the tensors among the arguments."""
    names: list[str] = []
    for i, parameter in enumerate(inspect.signature(mod.forward).parameters.values()):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{j}" for j in range(len(args) - i)]
        names.append(parameter.name)
    given = [*zip(names, args, strict=False), *kwargs.items()]
    return [
        re.sub(r"\W+", "_", name + keystr(path)).rstrip("_")
        for name, value in given
        for path, leaf in tree_flatten_with_path(value)[0]
        if isinstance(leaf, torch.Tensor)
    ]


def _traced(
    run: Callable[..., Any],
    given: Sequence[torch.Tensor],
    fakes: Fakes,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph of a function, and the tensors that are its inputs in front of the others."""
    table = {**corrected(decompositions), **_ZEROS}
    with fakes.tracing(), without_torchs_errors(), preserve_node_meta():
        # make_fx reads the arguments off a function.
        graph = make_fx(lambda *values: run(*values), decomposition_table=table)(*given)
        if any(map(is_mutation, graph.graph.nodes)):
            return _without_mutations(graph, given, table, is_dynamic=fakes.dynamic)
    return graph, []


class _Transforms(TorchFunctionMode):
    """Notes whether anything is differentiated, backward or forward, or mapped; has what stands in
    for tensors read, and notes the tensors for which nothing does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False
        self.stand_ins: dict[int, torch.Tensor] = {}
        """By the identity of what they stand for."""
        self.beside: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self.seen |= func in (torch.autograd.grad, torch.Tensor.backward)
        self.seen |= getattr(func, "__name__", "") == "_make_dual"
        self.seen |= torch._C._functorch.get_dynamic_layer_stack_depth() > 0
        args, kwargs = tree_map_only(torch.Tensor, self._of, (tuple(args), kwargs or {}))
        return func(*args, **kwargs)

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        if is_functorch_wrapped_tensor(tensor) or is_fake(tensor):
            return tensor
        if id(tensor) not in self.stand_ins:
            self.beside[id(tensor)] = tensor
        return self.stand_ins.get(id(tensor), tensor)


@contextlib.contextmanager
def transforms_ended() -> Iterator[None]:
    """End at last the transforms that are begun in here: a program of torch.export that has their
    begin and end as operators, and fails between, leaves them to all that follows."""
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        while torch._C._functorch.get_dynamic_layer_stack_depth() > depth:
            torch._C._functorch.pop_dynamic_layer_stack()
        if torch.autograd.forward_ad._current_level < 0:
            with contextlib.suppress(RuntimeError):  # mostly there is none
                torch._C._exit_dual_level(level=0)


def _without_mutations(
    graph: torch.fx.GraphModule,
    given: Sequence[torch.Tensor],
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
            graph, tuple(given), trace_joint=False, decompositions=table, dynamic_shapes=is_dynamic
        )
    assert isinstance(functional, torch.fx.GraphModule)
    output = next(n for n in functional.graph.nodes if n.op == "output")
    results = output.args[0]
    output.args = (results[len(results) - len(signature.user_outputs) :],)
    return functional, [graph.get_buffer(name) for name in signature.inputs_to_buffers.values()]


_ZEROS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default
}
"""torch's zeros of forward mode have no elements: products of them fail on fake tensors that are
mapped."""


@contextlib.contextmanager
def without_torchs_errors() -> Iterator[None]:
    """Have torch print nothing of a trace that fails: the exception is all that counts."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


class Fakes:
    """Fake tensors for tracing: with symbols for what is dynamic."""

    def __init__(self, dynamic: bool) -> None:
        self.dynamic = dynamic
        self.mode = FakeTensorMode(
            shape_env=ShapeEnv() if dynamic else None, allow_non_fake_inputs=True
        )

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace with these fakes.

        NOTE: torch 2.8 computes the sizes of some operators in Python only under this dispatcher;
        its own C++ does not take symbols.
        """
        in_python = enable_python_dispatcher() if self.dynamic else contextlib.nullcontext()
        with self.mode, in_python:
            yield

    def of(self, tensor: torch.Tensor, varying: Collection[int] = ()) -> torch.Tensor:
        """The fake of a tensor, of which these axes may vary."""
        tensor = tensor.detach()
        if not self.dynamic:
            return self.mode.from_tensor(tensor)
        kinds = [
            DimDynamic.DYNAMIC if i in varying else DimDynamic.STATIC for i in range(tensor.dim())
        ]
        context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
        return self.mode.from_tensor(tensor, symbolic_context=context)


def varying_axes(shape: Any) -> list[int]:
    """The axes of a tensor that may vary, by what ``dynamic_shapes`` says of it."""
    listed = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
    return [axis for axis, dim in listed if dim is not None and not isinstance(dim, int)]


def _set_metadata(graph: torch.fx.GraphModule, mode: Any) -> None:
    """Note what constants are that tracing left in the graph."""
    for node in graph.graph.nodes:
        if node.op == "get_attr" and isinstance(
            value := getattr(graph, str(node.target), None), torch.Tensor
        ):
            node.meta["val"] = mode.from_tensor(value)
    graph.graph.eliminate_dead_code()
    graph.recompile()
