"""What a model depends on, as a key: a graph, the choices made for it, and who made it.

NOTE: two graphs with one key get one model: whatever the exporter or the optimizer reads belongs
here. What cannot be written down (functions of a user, large constants) has no key.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dort_rewriter.backends.own_kernels import uses_own_kernels
from dort_rewriter.export.provenance import source_line
from dort_rewriter.export.registry import op_name
from dort_rewriter.options import OptimizationOptions

if TYPE_CHECKING:
    from dort_rewriter.backends.recipe import Recipe

__all__ = ["fingerprint", "model_key"]

_MAX_CONSTANT = 2**16
"""Bytes of a constant that are worth hashing."""

_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "ml-dtypes", "numpy")


class _NoKey(Exception):
    """Something has no description that is the same in another process."""


def model_key(
    graph_module: torch.fx.GraphModule,
    recipe: Recipe,
    provider: str,
    numbers: Mapping[int, float] | None = None,
    outputs: Sequence[tuple[str, tuple[int, ...] | None]] = (),
) -> str | None:
    """Return the key of the model of a graph, or None when it has none.

    ``numbers`` are the arguments that the model holds, by position; ``outputs`` the nodes that it
    computes, by name, and in which order of their dimensions.
    """
    try:
        parts = [
            *_environment(provider),
            *_choices(recipe),
            *_graph(graph_module),
            repr(sorted((numbers or {}).items())),
            repr(outputs),
        ]
    except _NoKey:
        return None
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


# -- the graph ----------------------------------------------------------------------------------


def _graph(graph_module: torch.fx.GraphModule) -> Iterator[str]:
    symbols: dict[str, str] = {}
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        target = op_name(node.target) if node.op == "call_function" else str(node.target)
        yield f"{node.op} {node.name} {target} {source_line(node)}"
        yield f"{_argument(node.args)} {_argument(node.kwargs)} {_value(value, symbols)}"
        if node.op == "get_attr":
            yield _constant(graph_module, str(node.target))
    yield repr(sorted(symbols.items()))


def _argument(argument: Any) -> str:
    if isinstance(argument, torch.fx.Node):
        return f"%{argument.name}"
    if isinstance(argument, list | tuple):
        return f"[{', '.join(map(_argument, argument))}]"
    if isinstance(argument, Mapping):
        return f"{{{', '.join(f'{k}: {_argument(v)}' for k, v in argument.items())}}}"
    if isinstance(argument, slice):
        return f"slice({_argument([argument.start, argument.stop, argument.step])})"
    plain = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
    if argument is None or isinstance(argument, (*plain, torch.memory_format)):
        return f"{type(argument).__name__}:{argument!r}"
    raise _NoKey(type(argument).__name__)


def _value(value: Any, symbols: dict[str, str]) -> str:
    """Describe a fake result, and note what is known about its symbols."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v, symbols) for v in value)}]"
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise _NoKey(value.layout)
        sizes = [_size(d, symbols) for d in (*value.shape, *value.stride())]
        bits = (value.is_conj(), value.is_neg())
        return f"{value.dtype} {value.device} {sizes} {bits}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"{type(value).__name__} {_size(value, symbols)}"
    if value is None or isinstance(value, bool | int | float):
        return f"{type(value).__name__}:{value!r}"
    raise _NoKey(type(value).__name__)


def _size(size: Any, symbols: dict[str, str]) -> str:
    if isinstance(size, int):
        return str(size)
    node = size.node
    for symbol in node.expr.free_symbols:
        known = node.shape_env.var_to_range.get(symbol)
        symbols.setdefault(str(symbol), str(known))
    return f"{node.expr} ~ {node.hint}"


def _constant(graph_module: torch.fx.GraphModule, path: str) -> str:
    value: Any = functools.reduce(getattr, path.split("."), graph_module)
    if (
        not isinstance(value, torch.Tensor)
        or type(value) not in (torch.Tensor, torch.nn.Parameter)
        or value.nbytes > _MAX_CONSTANT
        or value.device.type != "cpu"
    ):
        raise _NoKey(path)
    plain = value.detach().contiguous().view(-1).view(torch.uint8)
    return hashlib.sha256(bytes(plain.tolist())).hexdigest()


# -- the choices --------------------------------------------------------------------------------


def _choices(recipe: Recipe) -> Iterator[str]:
    dispatcher = recipe.dispatcher.description()
    if dispatcher is None:
        raise _NoKey("dispatcher")
    yield dispatcher
    yield f"{recipe.options.target_opset} {recipe.rename_inputs} {recipe.as_stored}"
    optimization = recipe.options.optimization
    yield f"own kernels: {uses_own_kernels(optimization)}"  # a compiler may come and go
    if optimization.dump_applied_patterns is not None:
        raise _NoKey("dump_applied_patterns")
    for field in dataclasses.fields(OptimizationOptions):
        if field.name == "verbose":
            continue
        value = getattr(optimization, field.name)
        if isinstance(value, list | tuple) and not all(isinstance(v, str) for v in value):
            raise _NoKey(field.name)
        yield f"{field.name}={value!r}"


# -- who made it --------------------------------------------------------------------------------


def _environment(provider: str) -> Iterator[str]:
    yield provider
    yield from _installed()


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the versions of what takes part, and a fingerprint of this package's own files."""
    from dort_rewriter.runtime.installed import describe

    versions = [f"{name} {_version(name)}" for name in _PACKAGES]
    own = fingerprint(Path(__file__).parent.parent)
    return (*versions, describe(), platform.python_version(), platform.machine(), own)


def fingerprint(root: Path) -> str:
    """Return what changes with any source file in a folder."""
    sources = (p for p in sorted(root.rglob("*")) if p.suffix in (".py", ".h", ".cpp"))
    lines = (f"{p.relative_to(root)} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in sources)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
