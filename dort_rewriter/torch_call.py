"""A call of an operator of torch that a model has inside: what is called, and on what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

__all__ = ["Given", "Result", "TorchCall"]


@dataclass(frozen=True)
class Given:
    """Stands for an input of the node among the arguments of a call."""

    index: int
    kind: Literal["tensor", "complex", "int", "float", "bool"] = "tensor"
    """What it is for torch: complex tensors, and numbers that the graph computes, are tensors of
    reals in a model."""
    order: tuple[int, ...] | None = None
    """Its axes from the largest stride to the smallest; None where that is the order of its
    sizes."""
    has_gaps: bool = False
    """Whether it is not dense: its elements are not next to each other in any order."""


@dataclass(frozen=True)
class Result:
    """What is known of a result."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    """None for a size that is known when it runs."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TorchCall:
    """A call without effects, whose results are new tensors."""

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    """As torch takes them, with a :class:`Given` for each input."""
    kwargs: dict[str, Any]
    results: tuple[Result | None, ...]
    """None for one that torch does not make."""
    where: str = ""
    """The Python line it comes from."""
    ordered: bool = False
    """Whether the first result is the token, an empty tensor, by which calls keep their order."""

    @property
    def name(self) -> str:
        """``aten::linalg_inv_ex``."""
        return str(self.target.name())
