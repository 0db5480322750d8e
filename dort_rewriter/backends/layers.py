"""Deep models, compiled layer by layer: layers that are equal share one compiled graph."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType, NoneType
from typing import Any, TypeVar

import torch
from torch.nn.modules import module as nn_module
from torch.utils.weak import WeakIdKeyDictionary

from dort_rewriter.backends.seen_calls import watch_code
from dort_rewriter.capture.functions import named_tensors
from dort_rewriter.errors import OptionError
from dort_rewriter.options import OrtBackendOptions

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=torch.nn.Module)
Modules = list[torch.nn.Module]


def compile_layers(model: Model, *, backend: Any = "onnxrt", **options: Any) -> Model:
    """Compile the layers of a model in place, equal ones as one graph, and return the model.

    Layers are modules of one class in a ``ModuleList``, ``ModuleDict`` or ``Sequential``, and
    those that a model lists in ``_repeated_blocks``, as models of diffusers do. One graph,
    forward and backward, serves all whose structure is equal: their weights are its arguments,
    and with ``options={"freeze": True}`` each layer has a session that holds its own. Each module
    beside layers is compiled for itself; what the model does between its modules runs in eager
    mode. A model without layers is compiled as a whole.

    ``options`` are the other arguments of ``torch.compile``. Modules stay what they are, as with
    ``torch.nn.Module.compile``: ``state_dict`` has the names it had, hooks are called, and a copy
    is not compiled.

    Raises :class:`OptionError` for what is no module, and for an option of the backend that is
    not within ``options={...}``.
    """
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"compile_layers compiles a torch.nn.Module, not {model!r}.")
    for field in dataclasses.fields(OrtBackendOptions):
        if field.name in options:
            raise OptionError(f"Write compile_layers(model, options={{{field.name!r}: ...}}).")
    groups = _groups(model)
    for group in groups:
        compiled = _compile(group, {"backend": backend, **options})
        _by_model.setdefault(model, compiled)
    logger.info(
        "%s is compiled in parts: %d modules, %d of them different.",
        type(model).__name__,
        sum(map(len, groups)),
        len(groups),
    )
    return model


_by_model: Any = WeakIdKeyDictionary()
"""What ``torch.compile`` returned for a part of each model."""


def compiled_layer(model: Any) -> Callable[..., Any] | None:
    """What ``torch.compile`` returned for a part of a model that was compiled layer by layer."""
    found: Callable[..., Any] | None = _by_model.get(model)
    return found


LONG = 2.0
"""Seconds that AOTAutograd takes for a graph until it is said that this can be shorter."""
MANY = 4
"""How many layers there are then at least."""

_HOOKS_OF_ALL_MODULES = (
    nn_module._global_backward_hooks,
    nn_module._global_backward_pre_hooks,
    nn_module._global_forward_hooks,
    nn_module._global_forward_pre_hooks,
)
"""What torch keeps of hooks that are registered for every module: it fills them in place."""

_IN_A_LIST = re.compile(r"\b\d+(?:'\])?$")
"""How the path of a module ends that is in a container."""


@contextmanager
def suggesting_layers(graph_module: torch.fx.GraphModule) -> Iterator[None]:
    """Log that layers can be compiled once, where the block takes long for a graph with many."""
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    if seconds < LONG or not logger.isEnabledFor(logging.INFO):
        return
    found: dict[type, set[str]] = {}
    for node in graph_module.graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            if _IN_A_LIST.search(path) and not _is_of_torch(kind):
                found.setdefault(kind, set()).add(path)
    kind, paths = max(found.items(), key=lambda item: len(item[1]), default=(object, set()))
    if len(paths) >= MANY:
        logger.info(
            "A graph with %d layers %s took %.0f s to trace: dort_rewriter.compile_layers(model) "
            "compiles one for all, in place.",
            len(paths),
            kind.__name__,
            seconds,
        )


# -- calls --------------------------------------------------------------------------------------


def _forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module.forward(*args, **kwargs)


_numbers = itertools.count()


def _compile(group: Modules, options: dict[str, Any]) -> Callable[..., Any]:
    """Compile modules of equal structure, as one function of a module and its arguments.

    NOTE: Dynamo keeps graphs, and what it learned of sizes, by code: each group has code of its
    own.
    """
    name = f"{type(group[0]).__name__}_{next(_numbers)}"
    function = FunctionType(_forward.__code__.replace(co_name=name), globals(), name)
    compiled: Callable[..., Any] = torch.compile(function, **options)
    for module in group:
        hooked = torch.compile(module._call_impl, **options)
        module._compiled_call_impl = _entry(module, compiled, hooked)
    if len(group) > DIFFERENT:
        watch_code(function.__code__, _Sharing(group, options).note)
    return compiled


DIFFERENT = 2
"""How many modules of a group may be compiled for themselves: the first gets what has no gradient
where the others do."""


class _Sharing:
    """Whether one graph serves a group: not where its modules read what differs between them,
    their number or their part of a cache, which Dynamo finds out."""

    def __init__(self, group: Modules, options: dict[str, Any]) -> None:
        self._modules = [weakref.ref(module) for module in group]
        self._options = options
        self._compiled: set[int] = set()
        self._ended = False

    def note(self, module: torch.nn.Module) -> None:
        """Take note that Dynamo compiles a module; give each code of its own if it is one more.

        NOTE: there would be as many graphs for one code as modules, which Dynamo limits.
        """
        self._compiled.add(id(module))
        if self._ended or len(self._compiled) <= DIFFERENT:
            return
        self._ended = True
        logger.info(
            "%d modules %s read what differs between them, such as their part of a cache of keys "
            "and values (use_cache=False), and are compiled each: TORCH_LOGS=recompiles names it.",
            len(self._modules),
            type(module).__name__,
        )
        for reference in self._modules[1:]:
            if (other := reference()) is not None:
                _compile([other], self._options)


def _entry(
    module: torch.nn.Module, compiled: Callable[..., Any], hooked: Callable[..., Any]
) -> Callable[..., Any]:
    """What calls a module: with hooks, those run in eager mode, and Dynamo begins behind them."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or any(_HOOKS_OF_ALL_MODULES)
        ):
            return hooked(*args, **kwargs)
        return compiled(module, *args, **kwargs)

    return call


# -- which modules ------------------------------------------------------------------------------


def _groups(model: torch.nn.Module) -> list[Modules]:
    """The modules to compile, those of equal structure together."""
    layers = list(_layers(model))
    groups: dict[Any, Modules] = {}
    for same in layers:
        counted = _counters(same)
        for layer in same:
            groups.setdefault(_structure(layer, counted), []).append(layer)
    known = {id(layer) for same in layers for layer in same}
    return [*groups.values(), *([module] for module in _beside(model, known))]


def _layers(model: torch.nn.Module) -> Iterator[Modules]:
    """The layers of a model that are within no other, in lists by where they are and class."""
    lists = [getattr(m, "_repeated_blocks", None) or () for m in model.modules()]
    named = {name for names in lists for name in names}
    seen: set[int] = set()
    for module in model.modules():
        if id(module) in seen:
            continue
        children = [c for c in module.children() if id(c) not in seen]
        counts = Counter(map(type, children))
        by_class: dict[type, Modules] = {}
        for child in children:
            kind = type(child)
            repeated = isinstance(module, _CONTAINERS) and counts[kind] > 1 and _is_made(child)
            if kind.__name__ in named if named else repeated:
                by_class.setdefault(kind, []).append(child)
                seen.update(map(id, child.modules()))
        yield from by_class.values()


_CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)


def _is_made(module: torch.nn.Module) -> bool:
    """Whether a module is more than one operator of torch."""
    return not _is_of_torch(type(module)) or any(module.children())


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.")


def _beside(module: torch.nn.Module, layers: set[int]) -> Iterator[torch.nn.Module]:
    """The outermost modules that hold no layers, but for single operators that only torch's own
    kernels compute: there is nothing to gain."""
    if id(module) in layers:
        return
    holds = any(id(m) in layers for m in module.modules())
    if holds or isinstance(module, torch.nn.ModuleList | torch.nn.ModuleDict):
        for child in module.children():
            yield from _beside(child, layers)
    elif _is_made(module) or isinstance(module, torch.nn.Linear | torch.nn.RNNBase):
        yield module


Attribute = tuple[str, str]
"""The name of a module within a layer, and that of an attribute."""


def _attributes(layer: torch.nn.Module) -> dict[Attribute, Any]:
    """The plain values that the modules of a layer have."""
    return {
        (path, name): value
        for path, module in layer.named_modules()
        for name, value in vars(module).items()
        if type(value) in (bool, int, float, str, NoneType)
    }


def _counters(layers: Sequence[torch.nn.Module]) -> frozenset[Attribute]:
    """The whole numbers that are another one in each layer, as its place is: few are read."""
    tables = [_attributes(layer) for layer in layers]
    return frozenset(
        attribute
        for attribute, value in tables[0].items()
        if type(value) is int and len({t.get(attribute) for t in tables}) == len(tables) > 1
    )


def _structure(layer: torch.nn.Module, counted: frozenset[Attribute]) -> Any:
    """What is equal for layers that one graph may serve: Dynamo's guards find what differs yet."""
    numbers: dict[int, int] = {}
    tensors = tuple(
        (
            name,
            numbers.setdefault(id(t), len(numbers)),
            (type(t), t.dtype, t.device, t.requires_grad),
            t.shape,
        )
        for name, t in named_tensors(layer)
    )
    modules = tuple((path, type(m)) for path, m in layer.named_modules())
    plain = frozenset(
        (attribute, type(value), value)
        for attribute, value in _attributes(layer).items()
        if attribute not in counted
    )
    return modules, tensors, plain
