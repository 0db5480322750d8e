"""Types of what is counted (indices, counts, bins), which torch 2.8 takes from its elements.

Each torch takes a dimension that is counted from the last for one before the first. While it
traces, its kernels of fake tensors are corrected: what asks for a type (a cast that is one
already, an index) is traced for the right one then.
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
    operators="unique, unique_consecutive, bincount",
    effect=(
        "Indices, counts and bins are traced with the dtype of the elements (2.8); a dimension "
        "counted from the last gives other sizes."
    ),
    seen_in=("2.8", "2.13"),
    remedy=(
        "torch's kernels of fake tensors are corrected, for the thread that traces, while it does"
    ),
    upstream=(
        "types: pytorch#179401, pytorch#186077 (fixes); the dimension: `reports/count_types.md`"
    ),
)


aten = torch.ops.aten

_DISTINCT = frozenset(
    {aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default}
)
_DIM = {aten.unique_dim.default: 1, aten.unique_consecutive.default: 3}
"""Which argument is the dimension."""

COUNTING = _DISTINCT | {aten.bincount.default}
"""The operators whose results are corrected."""


def correct_count_types() -> contextlib.AbstractContextManager[None]:
    """Trace what counts with the types that kernels give."""
    kernels: dict[Any, Callable[..., Any]] = getattr(fake_impls, "op_implementations_dict", {})
    return swapped(
        kernels, {op: lambda own: functools.partial(_call, own) for op in COUNTING & {*kernels}}
    )


def _call(kernel: Callable[..., Any], mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    place = _DIM.get(op, 0)
    if kwargs.get("dim") is not None:
        kwargs["dim"] %= args[0].dim() or 1
    elif 0 < place < len(args) and args[place] is not None:
        args = (*args[:place], args[place] % (args[0].dim() or 1), *args[place + 1 :])
    return with_count_types(op, kernel(mode, op, *args, **kwargs), *args, **kwargs)


def with_count_types(op: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
    """A result on fake tensors, with the types of the kernel; itself if it has them."""
    if op in _DISTINCT:
        elements, *counted = result
        right = [_of_type(v, torch.int64) for v in counted]
        same = all(a is b for a, b in zip(counted, right, strict=True))
        return result if same else (elements, *right)
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    if weights is None:
        return _of_type(result, torch.int64)
    return _of_type(result, weights.dtype if weights.dtype is torch.float32 else torch.float64)


def _of_type(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value if value.dtype is dtype else value.new_empty(value.shape, dtype=dtype)


def present() -> bool:
    """Whether this torch takes a dimension that is counted from the last for another one."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        elements = aten.unique_consecutive.default(torch.empty(2, 3), False, False, -1)[0]
    return elements.dim() != 2
