"""What torch records wrongly while it traces: all that is corrected, at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from dort_rewriter.torch_defects.count_types import correct_count_types
from dort_rewriter.torch_defects.lost_checks import keep_checks
from dort_rewriter.torch_defects.margin_loss import correct_margin_loss
from dort_rewriter.torch_defects.norm_sizes import correct_norm_sizes
from dort_rewriter.torch_defects.quotient_types import correct_quotient_types
from dort_rewriter.torch_defects.scalar_arguments import keep_scalar_writes

__all__ = ["correct_tracing"]


@contextlib.contextmanager
def correct_tracing(traced: torch.fx.GraphModule | None = None) -> Iterator[None]:
    """Trace with the records that torch's kernels bear out.

    ``traced`` is the graph that is traced again, if it is one.
    """
    with (
        correct_margin_loss(),
        correct_count_types(),
        correct_norm_sizes(),
        correct_quotient_types(traced),
        keep_checks(),
        keep_scalar_writes(),
    ):
        yield
