"""Arguments like those of an earlier call: one look of torch's C++ at all of them.

Each tensor of a call must be dense memory of one type on one device. To ask torch for each of
that takes three times as long as ``TensorGuards``, which compares with tensors of an earlier call:
their class, dispatch keys (device, layout, negation bit), types, sizes and strides. Dynamo's
guards rest on the same comparison.

NOTE: a no means that Python has to look, nothing else: other sizes and other classes are welcome.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dort_rewriter.signature import inverse_order

__all__ = ["KnownArguments"]

Shapes = tuple[Sequence[int], ...]


class KnownArguments:
    """What the arguments of an earlier call were like, and the shapes to pass on for them.

    Calls from several threads may overlap: ``latest`` is replaced as a whole.
    """

    __slots__ = ("_back", "_scalars", "_strange", "latest")

    def __init__(
        self, scalars: int = 0, orders: Sequence[tuple[int, ...] | None] | None = None
    ) -> None:
        """Know nothing yet; the shapes of so many numbers follow those of the tensors.

        ``orders`` tells how the dimensions of each argument were reordered for the session.
        """
        self._back = [None if o is None else inverse_order(o) for o in orders or ()]
        self.latest: tuple[Callable[..., bool], Shapes] = (_unknown, ())
        self._scalars: Shapes = ((),) * scalars
        self._strange = 0

    def learn(self, tensors: Sequence[torch.Tensor]) -> Shapes:
        """The shapes of tensors found fit for the session.

        Their like is known from then on, at the first, second, fourth, eighth such call: sizes
        that always vary are not worth it, one smaller batch now and then does not stand in the way
        of the others for long.
        """
        shapes = (*(t.shape for t in tensors), *self._scalars)
        self._strange += 1
        if self._strange & (self._strange - 1):
            return shapes
        guards = _tensor_guards()
        # The guards keep the address of a class, not the class: only those that stay.
        if guards is not None and all(type(t) in _LASTING for t in tensors):
            self.latest = (_check(guards, self._as_given(tensors)), shapes)
        return shapes

    def _as_given(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Tensors as the arguments are that need no copy."""
        if not any(self._back):
            return tensors
        pairs = zip(tensors, self._back, strict=True)
        return [t if back is None else t.permute(back) for t, back in pairs]


_LASTING = frozenset({torch.Tensor, torch.nn.Parameter})


def _unknown(*arguments: Any) -> bool:
    return False


def _check(guards: Any, tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    # NOTE: without these keywords torch crashes.
    check: Callable[..., bool] = guards(
        *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    return check


@functools.cache
def _tensor_guards() -> Any:
    """Torch's class, or None where it is not what it was: it is no public interface."""
    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None:
        return None
    try:
        check = _check(guards, [torch.zeros(2, 3)])
        others = (
            torch.zeros(2, 4),
            torch.zeros(3, 2).t(),
            torch._neg_view(torch.zeros(2, 3)),
            torch.zeros(2, 3, dtype=torch.float64),
            torch.zeros(2, 3, device="meta"),
            torch.zeros(2, 3).to_sparse(),
        )
        right = check(torch.ones(2, 3)) and not any(check(other) for other in others)
    except (TypeError, RuntimeError):
        return None
    return guards if right else None
