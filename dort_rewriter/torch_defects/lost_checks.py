"""Checks of torch's operators that an older torch loses while it traces.

What only looks at its arguments has no result: AOTAutograd drops it, or an operator leaves it out
where its arguments have no elements yet. Numbers come out then where eager mode raises an
exception. Newer versions of torch keep these two.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.python_kernels import replaced, swapped

DEFECT = Defect(
    operators="one_hot, linalg.inv, solve, cholesky, lu_factor",
    effect=(
        "Checks of the arguments are lost in tracing: numbers come out where eager mode raises "
        "an exception."
    ),
    seen_in=("2.8",),
    remedy=(
        "`one_hot` is traced with its checks, for the thread that traces; the check of "
        "factorizations is registered as one with an effect, for the process"
    ),
    upstream=(
        "pytorch#144211 (`one_hot`), pytorch#151309, pytorch#182965 (factorizations; fixed by "
        "pytorch#184111)"
    ),
)


aten = torch.ops.aten

_ONE_HOT = aten.one_hot.default
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_FACTORS = aten._linalg_check_errors.default


def keep_checks() -> contextlib.AbstractContextManager[None]:
    """Trace the checks of classes (``one_hot``) and of factorizations (``linalg.inv``)."""
    _order_check_of_factors()
    return replaced({_ONE_HOT: _one_hot}) if present() else contextlib.nullcontext()


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
    """Trace the check of factorizations as an operator without an effect, for the calling thread:
    a file raises no errors, and has no tokens that keep them in order.

    NOTE: the caller holds ``KERNELS_LOCK``.
    """
    from torch._higher_order_ops import effects

    def with_others(has: Callable[..., bool]) -> Callable[..., bool]:
        return lambda op, *args: op is not _FACTORS and has(op, *args)

    with swapped(vars(effects), {"has_effects": with_others}):
        yield


def _one_hot(index: torch.Tensor, num_classes: Any = -1) -> torch.Tensor:
    if num_classes != -1:
        aten._assert_async.msg((index >= 0).all(), "Class values must be non-negative.")
        known = (index < num_classes).all()
        aten._assert_async.msg(known, "Class values must be smaller than num_classes.")
    return _ONE_HOT._op_dk(_COMPOSITE, index, num_classes)


def _order_check_of_factors() -> None:
    """Let AOTAutograd keep the check, and its order among others, as newer versions do.

    Not only while it traces: what runs the graph later looks whether the check is one of these.
    """
    from torch._higher_order_ops import effects

    ordered = getattr(effects, "SIDE_EFFECTS", None)
    register = getattr(effects, "_register_effectful_op", None)
    if ordered is not None and register is not None and _FACTORS not in ordered:
        register(_FACTORS, effects._EffectType.ORDERED)


@functools.cache
def present() -> bool:
    """Whether this torch traces ``one_hot`` without its checks."""
    return _COMPOSITE not in _ONE_HOT.py_kernels
