"""Arguments that are one number of float64, which torch takes for numbers of Python.

Each has a symbol. After AOTAutograd has traced, a pass of torch notes the symbols that it cannot
compute with, and starts Dynamo again, which takes what shows such a symbol and has no reader for
an unused argument: in ``a.add_(1)`` the result shows it, and the write was lost.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.python_kernels import swapped

DEFECT = Defect(
    operators="in-place mutation of an argument of float64 without dimensions",
    effect="The mutation is lost where its result is not used.",
    seen_in=("2.8", "2.13"),
    remedy=(
        "torch's pass over such arguments is shown the used ones only, for the thread that "
        "traces, while it does"
    ),
    upstream="`reports/scalar_arguments.md`",
)


_PASS = "tensorify_python_scalars"
_CALLERS = ("graph_compile", "jit_compile_runtime_wrappers")
"""The modules of AOTAutograd that may call it, the newest first."""


@contextlib.contextmanager
def keep_scalar_writes() -> Iterator[None]:
    """Trace without starting again for numbers that no node of the graph reads."""
    with contextlib.ExitStack() as stack:
        for caller in _callers():
            stack.enter_context(swapped(vars(caller), {_PASS: _of_what_is_read}))
        yield


@functools.cache
def _callers() -> tuple[ModuleType, ...]:
    """The modules that this torch has: Python looks for one that is not there each time."""
    found = []
    for name in _CALLERS:
        with contextlib.suppress(ImportError):
            found.append(importlib.import_module(f"torch._functorch._aot_autograd.{name}"))
    return tuple(module for module in found if hasattr(module, _PASS))


def _of_what_is_read(run: Callable[..., None]) -> Callable[..., None]:
    """The pass, to which only the numbers that a graph reads are shown."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    def shown(graph_module: torch.fx.GraphModule, shape_env: Any, fake_mode: Any) -> None:
        known = getattr(shape_env, "backed_var_to_val", None)
        values: dict[Any, Any] = shape_env.var_to_val if known is None else known
        read = {s for n in graph_module.graph.nodes for s in _symbols(n.meta.get("val"))}
        unused = [s for s in values if symbol_is_type(s, SymT.FLOAT) and s not in read]
        hidden = {s: values.pop(s) for s in unused}
        try:
            run(graph_module, shape_env, fake_mode)
        finally:
            values.update(hidden)

    return shown


def _symbols(value: Any) -> Iterator[Any]:
    """The symbols of what a node gives: of numbers, and of the sizes of tensors."""
    for leaf in tree_leaves(value):
        for number in leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,):
            if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
                # NOTE: ``expr`` would be the number itself, where it is known by now.
                yield from number.node._expr.free_symbols


def present() -> bool:
    """Whether a mutation whose result is not used is lost."""
    x = torch.zeros((), dtype=torch.float64)
    torch.compile(_mutate, backend="aot_eager")(x)
    return x.item() != 1


def _mutate(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x + 1
