"""What a model depends on, as a key: a graph, the choices made for it, and who made it.

NOTE: two graphs with one key get one model: whatever the exporter or the optimizer reads belongs
here. What cannot be written down (functions of a user, large constants) has no key.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dort_rewriter.aten import source_line
from dort_rewriter.capture.graph_data import MAX_CONSTANT
from dort_rewriter.env import IMPORTED_AT
from dort_rewriter.export.registry import op_name
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.plan.nodes import plan_of
from dort_rewriter.plan.outputs import ModelOutput
from dort_rewriter.plan.placement import described_mkl, uses_own_kernels
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.providers import CPU

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


__all__ = ["NoKey", "constant", "fingerprint", "installed", "model_key"]

_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "ml-dtypes", "numpy")


class NoKey(Exception):
    """Something has no description that is the same in another process."""


def model_key(
    graph_module: torch.fx.GraphModule,
    recipe: Recipe,
    provider: str,
    *,
    numbers: Mapping[int, float],
    outputs: Sequence[tuple[str, ModelOutput]],
    orders: Mapping[str, tuple[int, ...]],
) -> str | None:
    """The key of the model of a graph, or None when it has none.

    ``numbers`` are the arguments that the model holds, by position; ``outputs`` what it computes;
    ``orders`` the placeholders that it reads in another order.
    """
    try:
        parts = [
            *_environment(provider),
            *_choices(recipe, provider),
            *_graph(graph_module),
            repr(sorted(numbers.items())),
            repr([(name, output.node.name, output.order) for name, output in outputs]),
            repr(sorted(orders.items())),
        ]
    except NoKey:
        return None
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


# -- the graph ----------------------------------------------------------------------------------


def _graph(graph_module: torch.fx.GraphModule) -> Iterator[str]:
    symbols: dict[Any, ShapeEnv] = {}
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        target = op_name(node.target) if node.op == "call_function" else str(node.target)
        plan = plan_of(node)
        if plan is not None and plan.by == "call":
            raise NoKey("a call that other processes do not know")
        if plan is not None and plan.is_kernel:
            target = f"torch's kernel {target}"
        yield f"{node.op} {node.name} {target} {source_line(node)}"
        yield f"{_argument(node.args)} {_argument(node.kwargs)} {_value(value, symbols)}"
        if node.op == "get_attr":
            yield constant(graph_module, str(node.target))
    yield from sorted(_knowledge(symbols))


def _knowledge(symbols: Mapping[Any, ShapeEnv]) -> Iterator[str]:
    """Yield what is known about symbols: what each may be, and how they relate to each other.

    NOTE: a relation of two symbols is in a guard of the graph and nowhere else: a converter that
    asks whether a difference is positive gets another answer without it.
    """
    for symbol, environment in symbols.items():
        yield f"{symbol} in {environment.var_to_range.get(symbol)}"
    for environment in {id(e): e for e in symbols.values()}.values():
        asserted = environment.deferred_runtime_asserts.values()
        known = [g.expr for g in environment.guards] + [a.expr for f in asserted for a in f]
        yield from (str(e) for e in known if not e.free_symbols.isdisjoint(symbols))


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
    raise NoKey(type(argument).__name__)


def _value(value: Any, symbols: dict[Any, ShapeEnv]) -> str:
    """Describe a fake result, and note what is known about its symbols."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(v, symbols) for v in value)}]"
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise NoKey(value.layout)
        numbers = (*value.shape, *value.stride(), value.storage_offset())
        sizes = [_size(d, symbols) for d in numbers]
        bits = (value.is_conj(), value.is_neg())
        return f"{value.dtype} {value.device} {sizes} {bits}"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"{type(value).__name__} {_size(value, symbols)}"
    if value is None or isinstance(value, bool | int | float):
        return f"{type(value).__name__}:{value!r}"
    raise NoKey(type(value).__name__)


def _size(size: Any, symbols: dict[Any, ShapeEnv]) -> str:
    if isinstance(size, int):
        return str(size)
    node = size.node
    for symbol in node.expr.free_symbols:
        symbols.setdefault(symbol, node.shape_env)
    return f"{node.expr} ~ {node.hint}"


def constant(graph_module: torch.fx.GraphModule, path: str) -> str:
    """Describe a tensor that a graph holds; :class:`NoKey` for a large one."""
    value: Any = functools.reduce(getattr, path.split("."), graph_module)
    if (
        not isinstance(value, torch.Tensor)
        or type(value) not in (torch.Tensor, torch.nn.Parameter)
        or value.nbytes > MAX_CONSTANT
        or value.device.type != "cpu"
    ):
        raise NoKey(path)
    plain = value.detach().resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    content = hashlib.sha256(bytes(plain.tolist())).hexdigest()
    return f"{value.dtype} {tuple(value.shape)} {content}"


# -- the choices --------------------------------------------------------------------------------


def _choices(recipe: Recipe, provider: str) -> Iterator[str]:
    dispatcher = recipe.dispatcher.description()
    if dispatcher is None:
        raise NoKey("dispatcher")
    yield dispatcher
    yield f"{recipe.options.target_opset} {recipe.rename_inputs} {recipe.as_stored}"
    optimization = recipe.options.optimization
    own = provider == CPU and uses_own_kernels(optimization)
    yield f"own kernels: {own}"  # a compiler may come and go
    yield f"MKL: {described_mkl(recipe.options) if recipe.may_call_torch(provider) else None}"
    placed = sorted((recipe.options.placement or {}).items())
    yield f"torch's kernels: {recipe.torch_kernels}, {placed}"
    yield f"frozen: {recipe.options.freeze}"
    if optimization.dump_applied_patterns is not None:
        raise NoKey("dump_applied_patterns")
    for field in dataclasses.fields(OptimizationOptions):
        if field.name == "verbose":
            continue
        value = getattr(optimization, field.name)
        if isinstance(value, list | tuple) and not all(isinstance(v, str) for v in value):
            raise NoKey(field.name)
        yield f"{field.name}={value!r}"


# -- who made it --------------------------------------------------------------------------------


def _environment(provider: str) -> Iterator[str]:
    yield provider
    yield from installed()


@functools.cache
def installed() -> tuple[str, ...]:
    """The versions of what takes part, and a fingerprint of this package's own files."""
    from dort_rewriter.ort_module import describe

    versions = [f"{name} {_version(name)}" for name in _PACKAGES]
    try:
        own = fingerprint(Path(__file__).parent.parent, IMPORTED_AT)
    except OSError as error:
        raise NoKey("this package") from error
    if own is None:
        raise NoKey("this package")
    about = (describe(), platform.python_version(), platform.machine(), own)
    return (*versions, *about)


def fingerprint(root: Path, since: float) -> str | None:
    """The digest of the sources in a folder, by name and content.

    None when there are none, or one was changed after a time: what runs is not what lies there.
    """
    digest = hashlib.sha256()
    found = False
    for folder, below, files in os.walk(root):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(files):
            if not name.endswith((".py", ".h", ".cpp")):
                continue
            with open(os.path.join(folder, name), "rb") as file:
                # of the change of the file, which installers do not set as they set the other
                if os.fstat(file.fileno()).st_ctime > since:
                    return None
                content = file.read()
            path = os.path.relpath(os.path.join(folder, name), root)
            digest.update(f"{path}\0{len(content)}\0".encode() + content)
            found = True
    return digest.hexdigest() if found else None


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
