"""Effects whose tokens torch loses where arguments share memory, one of which is mutated.

AOTAutograd takes such arguments as one, their base, and makes new metadata of the graph for
it, without the tokens of the effects that it found: it takes each for one of a backward, and the
graph of a forward has an argument that no caller passes.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable
from typing import Any

import torch

from dort_rewriter.torch_defects.defect import Defect
from dort_rewriter.torch_defects.lost_checks import keep_checks
from dort_rewriter.torch_defects.python_kernels import swapped

DEFECT = Defect(
    operators=(
        "linalg.inv, solve and cholesky, and other operators with an effect, beside the mutation "
        "of an argument that shares its memory with another one"
    ),
    effect="The call raises a TypeError or StopIteration of the graph: `tangents_token`.",
    seen_in=("2.8", "2.13"),
    remedy="AOTAutograd's metadata is given the tokens again, for the thread that traces",
    upstream="`reports/lost_tokens.md`",
)

_MODULE = "torch._functorch._aot_autograd.runtime_wrappers"
_FUNCTION = "create_synthetic_base_metadata"


def keep_tokens() -> contextlib.AbstractContextManager[None]:
    """Trace with the tokens of effects where arguments become one."""
    names = vars(importlib.import_module(_MODULE))
    if _FUNCTION not in names:  # another torch may do this elsewhere
        return contextlib.nullcontext()
    return swapped(names, {_FUNCTION: _with_tokens})


def _with_tokens(make: Callable[..., Any]) -> Callable[..., Any]:
    def call(metadata: Any, *args: Any, **kwargs: Any) -> Any:
        made = make(metadata, *args, **kwargs)
        made[0].tokens = metadata.tokens
        return made

    return call


def present() -> bool:
    """Whether an effect beside a mutation of shared memory breaks the graph."""
    x = torch.eye(2)
    with keep_checks(), contextlib.redirect_stderr(io.StringIO()):  # the graph prints its error
        try:
            torch.compile(_mutate, backend="aot_eager")(x, x[0])
        except (TypeError, StopIteration):
            return True
    return False


def _mutate(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    row.add_(1)
    return torch.linalg.inv(x)
