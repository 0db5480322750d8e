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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dort_rewriter.aten import source_line
from dort_rewriter.capture.graph_data import Description, constant
from dort_rewriter.env import IMPORTED_AT
from dort_rewriter.errors import CaptureError
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.plan.nodes import plan_of
from dort_rewriter.plan.outputs import ModelOutput
from dort_rewriter.plan.placement import described_products, uses_own_kernels
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.providers import CPU

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_PACKAGES = ("torch", "onnx", "onnx-ir", "onnxscript", "ml-dtypes", "numpy")


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
            provider,
            *installed(),
            *_choices(recipe, provider),
            *_graph(graph_module),
            repr(sorted(numbers.items())),
            repr([(name, output.node.name, output.order) for name, output in outputs]),
            repr(sorted(orders.items())),
        ]
    except CaptureError:
        return None
    return digest_of(parts)


def digest_of(parts: Iterable[str]) -> str:
    """The key of what is written down."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


# -- the graph ----------------------------------------------------------------------------------


def _graph(graph_module: torch.fx.GraphModule) -> Iterator[str]:
    described = Description(restored=False)
    for node in graph_module.graph.nodes:
        plan = plan_of(node)
        if plan is not None and plan.by == "call":
            raise CaptureError("a call that other processes do not know")
        is_kernel = plan is not None and plan.is_kernel
        *about, notes = described.node(node)
        yield f"{about} {is_kernel} {source_line(node)} {notes.get('val')}"
        if node.op == "get_attr":
            yield repr(constant(graph_module, node.target, restored=False))
    yield from sorted(_knowledge(described.sizes))


def _knowledge(sizes: Mapping[Any, Any]) -> Iterator[str]:
    """Yield what is known about sizes and their symbols: what each may be, and how they relate.

    NOTE: a relation of two symbols is in a guard of the graph and nowhere else: a converter that
    asks whether a difference is positive gets another answer without it.
    """
    symbols: dict[Any, ShapeEnv] = {}
    for expression, number in sizes.items():
        yield f"{expression} ~ {number.hint}"
        symbols.update(dict.fromkeys(expression.free_symbols, number.shape_env))
    for symbol, environment in symbols.items():
        yield f"{symbol} in {environment.var_to_range.get(symbol)}"
    for environment in {id(e): e for e in symbols.values()}.values():
        asserted = environment.deferred_runtime_asserts.values()
        known = [g.expr for g in environment.guards] + [a.expr for f in asserted for a in f]
        yield from (str(e) for e in known if not e.free_symbols.isdisjoint(symbols))


# -- the choices --------------------------------------------------------------------------------


def _choices(recipe: Recipe, provider: str) -> Iterator[str]:
    dispatcher = recipe.dispatcher.description()
    if dispatcher is None:
        raise CaptureError("converters of a user")
    yield dispatcher
    yield f"{recipe.options.target_opset} {recipe.rename_inputs} {recipe.as_stored}"
    optimization = recipe.options.optimization
    own = provider == CPU and uses_own_kernels(optimization)
    yield f"own kernels: {own}"  # a compiler may come and go
    calls_mkl = recipe.may_call_torch(provider)
    yield f"products: {described_products(recipe.options, calls_mkl=calls_mkl)}"
    placed = sorted((recipe.options.placement or {}).items())
    yield f"torch's kernels: {recipe.torch_kernels}, {placed}"
    yield f"frozen: {recipe.options.freeze}"
    if optimization.dump_applied_patterns is not None:
        raise CaptureError("applications of rules are written to a folder")
    yield plain_text(dataclasses.replace(optimization, verbose=0))


def plain_text(value: Any) -> str:
    """Options as text; :class:`CaptureError` for what is not the same in each process."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, OrtBackendOptions | OptimizationOptions):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return f"{type(value).__name__}{plain_text(fields)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k!r}: {plain_text(value[k])}' for k in sorted(value))}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(plain_text, value))}]"
    raise CaptureError(f"an option is a {type(value).__name__}")


# -- who made it --------------------------------------------------------------------------------


@functools.cache
def installed() -> tuple[str, ...]:
    """The versions of what takes part, and a fingerprint of this package's own files."""
    from dort_rewriter.ort_module import describe

    versions = [f"{name} {installed_version(name)}" for name in _PACKAGES]
    try:
        own = fingerprint(Path(__file__).parent.parent, IMPORTED_AT)
    except OSError as error:
        raise CaptureError("this package") from error
    if own is None:
        raise CaptureError("this package")
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


def installed_version(name: str) -> str:
    """The release of a distribution, an empty text where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
