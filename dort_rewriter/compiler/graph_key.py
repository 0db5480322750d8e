"""What AOTAutograd's graphs depend on besides Dynamo's graph and what torch's own key holds.

NOTE: two compilations with one key get one graph: whatever is read while a graph is traced belongs
here. What cannot be written down (functions and operators of a user) has no key.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dort_rewriter import env
from dort_rewriter.aten import source_line
from dort_rewriter.capture.graph_data import constant
from dort_rewriter.compiler.model_key import digest_of, installed, plain_text
from dort_rewriter.compiler.provider_choice import precisions
from dort_rewriter.errors import CaptureError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.torch_defects.view_replays import share_memory

logger = logging.getLogger(__name__)

_NAMESPACES = ("aten", "prims")
"""Whose operators are traced into others by torch alone."""


def graph_key(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    options: OrtBackendOptions,
    dispatcher: Dispatcher,
    table: Mapping[Any, Callable[..., Any]],
) -> str | None:
    """The key of the graphs that Dynamo's graph is traced to, None where none is to be kept.

    ``table`` are the decompositions that they are traced with.
    """
    if env.read("DORT_CACHE") == "0":
        return None
    try:
        if not _can_keep():
            raise CaptureError("this torch keeps graphs of its own compilers only")
        _refuse_watched()
        known = dispatcher.description()
        if known is None:
            raise CaptureError("converters of a user")
        parts = [known, *installed(), plain_text(options), *_state(), *_table(table)]
        parts.extend(_arguments(args))
        parts.extend(_graph(graph_module))
    except CaptureError as reason:
        logger.info("cache_graphs: no graph is kept for other processes: %s.", reason)
        return None
    return digest_of(parts)


@functools.cache
def _can_keep() -> bool:
    """Whether torch's cache takes what other compilers than its own make."""
    found: Any = None
    with contextlib.suppress(ImportError):
        found = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
    switches = ("bundled_autograd_cache", "force_non_lazy_backward_lowering")
    config: Any = torch._functorch.config
    return hasattr(found, "BundledOutputCodeLoadable") and all(
        hasattr(config, s) for s in switches
    )


def _refuse_watched() -> None:
    """Refuse to keep where torch does more with what compilers return."""
    config: Any = torch._dynamo.config
    if config.repro_after == "aot":
        raise CaptureError("torch's minifier watches the compilers")
    if getattr(config, "caching_precompile", False):
        raise CaptureError("torch's precompilation would find them where no backend is")


def _arguments(args: Sequence[Any]) -> Iterator[str]:
    """What torch's key leaves out of arguments: where they begin, what autograd knows of them.

    NOTE: a graph that writes to an argument is another one where others show the same memory, by
    rules that torch's key does not have: those are not kept.
    """
    is_subclass: Callable[[Any], bool] = is_traceable_wrapper_subclass
    for argument in args:
        if not isinstance(argument, torch.Tensor):
            continue
        if argument.layout is not torch.strided or is_subclass(argument):
            raise CaptureError("an argument is a tensor of a class or a layout of its own")
        kind = isinstance(argument, torch.nn.Parameter), argument.is_leaf, argument._is_view()
        yield f"{argument.storage_offset()} {_beyond(argument)} {kind} {_base(argument)}"
    if share_memory(args):
        raise CaptureError("arguments share memory")


def _beyond(tensor: torch.Tensor) -> int:
    """How many bytes of its storage lie behind a tensor: none, whatever its sizes, for most."""
    places = zip(tensor.shape, tensor.stride(), strict=True)
    used = 1 + sum((size - 1) * step for size, step in places) if tensor.numel() else 0
    end = (tensor.storage_offset() + used) * tensor.itemsize
    return int(tensor.untyped_storage().nbytes() - end)


def _base(view: torch.Tensor) -> str:
    base = view._base
    if base is None:
        return ""
    return f"{base.dtype} {base.dim()} {base.requires_grad} {base.is_leaf}"


def _state() -> Iterator[str]:
    """What of torch's settings decides which operators are recorded, or what they give."""
    attention = torch.backends.cuda
    yield str(torch.get_default_dtype())
    yield str(torch.get_default_device())
    yield str(torch.is_inference_mode_enabled())
    yield torch.backends.cpu.get_cpu_capability()
    yield str((torch.backends.mkldnn.is_available(), torch.backends.mkldnn.enabled))
    yield str(torch.backends.mha.get_fastpath_enabled())
    yield str(precisions())
    yield str(
        [
            attention.flash_sdp_enabled(),
            attention.mem_efficient_sdp_enabled(),
            attention.math_sdp_enabled(),
            attention.cudnn_sdp_enabled(),
            torch._C._get_sdp_priority_order(),
        ]
    )


def _table(table: Mapping[Any, Callable[..., Any]]) -> Iterator[str]:
    """Who decomposes which operator: torch and this package, or there is no key."""
    yield from (f"{operator} {_named(function)}" for operator, function in table.items())


def _named(function: Any) -> str:
    """A function of torch or of this package, whose versions say the rest."""
    if isinstance(function, functools.partial):
        given = [a for a in (*function.args, *function.keywords.values()) if callable(a)]
        return " ".join(map(_named, (function.func, *given)))
    module = str(getattr(function, "__module__", None))
    if module.partition(".")[0] not in ("torch", __name__.partition(".")[0]):
        raise CaptureError(f"an operator is decomposed by {module}")
    return f"{module}.{getattr(function, '__qualname__', function)}"


def _graph(graph_module: torch.fx.GraphModule) -> Iterator[str]:
    """What torch's key leaves out of a graph of Dynamo: Python lines, numbers of constants."""
    for module in graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            yield f"{node.name} {source_line(node)}"
            if node.op == "call_module":
                raise CaptureError(f"the graph calls the module {node.target}")
            if node.op == "get_attr":
                found: Any = functools.reduce(getattr, node.target.split("."), module)
                if not isinstance(found, torch.fx.GraphModule):
                    yield repr(constant(module, node.target, restored=False))
            target = node.target
            if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
                name = str(target).partition(".")[0]
                if name not in _NAMESPACES:
                    raise CaptureError(f"{target} is an operator of others")
