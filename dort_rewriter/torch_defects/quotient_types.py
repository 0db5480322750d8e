"""The type of a quotient of whole numbers of symbolic size, which torch 2.8 takes from those.

Its fast way to a record compares the types of the two, and leaves one type as it is. While
AOTAutograd traces, that way leads to the type that the kernel gives.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode, fake_impls
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.python_kernels import swapped

DEFECT = Defect(
    operators="div of integers",
    effect="A quotient of integers of symbolic sizes is traced as an integer.",
    seen_in=("2.8",),
    remedy=(
        "torch's fast path of fake tensors is corrected, for the thread that traces, while it does"
    ),
    upstream=(
        "fixed in 2.13 without a thread of its own; pytorch#150874 made quotients by a number "
        "right"
    ),
)


_QUOTIENT = torch.ops.aten.div.Tensor


def correct_quotient_types(
    traced: torch.fx.GraphModule | None = None,
) -> contextlib.AbstractContextManager[None]:
    """Trace quotients of whole numbers as floating-point numbers, where torch does not.

    ``traced`` is the graph that is traced again, if it is one.
    """
    symbols = None if traced is None else _symbols_of(traced)
    # What Dynamo recorded of quotients before is of other types.
    caches = [FakeTensorMode.cache, getattr(symbols, "fake_tensor_cache", {})]
    others = {_QUOTIENT: lambda own: functools.partial(_divided, own)}
    return swapped(_kernels(), others, caches)


@functools.cache
def present() -> bool:
    """Whether this torch takes the type of such a quotient from its operands."""
    if _QUOTIENT not in _kernels():
        return False
    mode = FakeTensorMode(shape_env=ShapeEnv())
    given = torch.empty((4, 3), dtype=torch.int32)
    torch._dynamo.maybe_mark_dynamic(given, 0)
    with mode:
        fake = mode.from_tensor(given)
        return not torch.div(fake, fake).is_floating_point()


def _kernels() -> dict[Any, Callable[..., Any]]:
    find: Callable[[], dict[Any, Callable[..., Any]]] = getattr(
        fake_impls, "get_fast_op_impls", dict
    )
    return find()


def _divided(kernel: Callable[..., Any], mode: Any, *args: Any, **kwargs: Any) -> Any:
    result = kernel(mode, *args, **kwargs)
    if not isinstance(result, torch.Tensor) or result.is_floating_point() or result.is_complex():
        return result
    with mode:
        return result.to(torch.get_default_dtype())


def _symbols_of(graph_module: torch.fx.GraphModule) -> ShapeEnv | None:
    """Whose symbols the sizes of the arguments are."""
    for node in graph_module.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode.shape_env
    return None
