"""The multilabel margin loss as torch's kernel computes it, while AOTAutograd traces.

torch's decomposition, which each compiler gets through a Python kernel for autograd, reads the
first class for each target behind the -1 that ends a row, and adds up those margins too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import decomposition_table

from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.python_kernels import AUTOGRAD_KEYS, replaced

DEFECT = Defect(
    operators="multilabel_margin_loss",
    effect=("The decomposition also adds the margins of targets behind the -1 that ends a row."),
    seen_in=("2.8", "2.13"),
    remedy=(
        "another decomposition takes its place in the table of the compilation, and for the "
        "thread that traces"
    ),
    upstream="pytorch#141017, pytorch#185464; fixed after 2.13 by pytorch#186074",
)


Decomposition = Callable[..., Any]

_OP = torch.ops.aten.multilabel_margin_loss_forward.default

_MEAN, _SUM = 1, 2
"""``at::Reduction``; none is 0."""


def correct_margin_loss() -> contextlib.AbstractContextManager[None]:
    """Trace the loss with the margins of targets alone, where it is differentiated."""
    return replaced({_OP: _margin_loss}, AUTOGRAD_KEYS[:1])


def corrected(decompositions: Mapping[Any, Decomposition]) -> dict[Any, Decomposition]:
    """A table with this loss in the place of torch's."""
    has_torchs = _OP in decompositions and decompositions[_OP] is decomposition_table.get(_OP)
    return {**decompositions, _OP: _margin_loss} if has_torchs else dict(decompositions)


def _margin_loss(
    input: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and which classes are targets."""
    if input.dim() > 2 or input.shape != target.shape:
        raise RuntimeError(
            f"inconsistent target size: {tuple(target.shape)} for input of size: "
            f"{tuple(input.shape)}"
        )
    rows, targets = torch.atleast_2d(input), torch.atleast_2d(target)
    classes = rows.shape[1]
    index = torch.arange(classes, device=target.device)
    end = torch.where(targets == -1, index, classes).amin(-1, keepdim=True)
    given = index < end
    of_targets = rows.gather(-1, targets.where(given, 0))
    is_target = (targets.where(given, -1).unsqueeze(-1) == index).any(1)
    margins = (1 - of_targets.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0) / classes
    counted = given.unsqueeze(-1) & ~is_target.unsqueeze(1)
    losses = margins.masked_fill(~counted, 0).sum((1, 2))
    if reduction == _MEAN:
        losses = losses.mean()
    elif reduction == _SUM or input.dim() < 2:
        losses = losses.sum()
    return losses, is_target.to(input.dtype).reshape(target.shape)


def present() -> bool:
    """Whether torch's decomposition reads a target behind the end of a row."""
    given, target = torch.tensor([0.1, 0.2, 0.4, 0.8]), torch.tensor([3, 0, -1, 1])
    decomposed, kernel = (f(given, target, _SUM)[0] for f in (decomposition_table[_OP], _OP))
    return not torch.allclose(decomposed, kernel)
