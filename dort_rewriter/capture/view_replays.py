"""Results that are views, which torch would make again from another tensor than they are views of.

AOTAutograd records how a result is made from its base, and does it again after each call. What it
recorded is of the base of the whole family: where the base at hand is a view itself
(``w = (x * 2).t(); return w, w.detach()``), or memory that several arguments share, the steps are
taken twice, and some of them end the process. Without a record it reads sizes and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.schemas import OutputAliasInfo, OutputType
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from dort_rewriter.capture.stages import metadata_of_compilation

__all__ = ["drop_wrong_replays", "share_memory"]

_RECORDS = ("view_meta_sequence", "functional_tensor")
"""The name in torch 2.9, and the one before."""


def drop_wrong_replays(*, shared: bool) -> None:
    """Let the graph under compilation have no record that its bases do not fit.

    ``shared`` says that some of its arguments are of the same memory.
    """
    metadata = metadata_of_compilation()
    if metadata is None:
        return
    merged = shared and any(info.mutates_data for info in metadata.input_info)
    results = metadata.output_info
    for info in results:
        if merged or _is_of_view(info, results):
            for name in _RECORDS:
                if hasattr(info, name):
                    object.__setattr__(info, name, None)  # it is frozen, and not ours to make


def _is_of_view(info: OutputAliasInfo, results: Sequence[OutputAliasInfo]) -> bool:
    """Tell whether the base of a result is a result that is a view itself."""
    if info.output_type is not OutputType.alias_of_intermediate_base_is_user_output:
        return False
    assert info.base_idx is not None
    return results[info.base_idx].output_type is not OutputType.non_alias


def share_memory(args: Sequence[Any]) -> bool:
    """Tell whether some of the arguments are of the same memory."""
    is_subclass: Callable[[Any], bool] = is_traceable_wrapper_subclass
    storages = [
        a.untyped_storage()._cdata
        for a in args
        if isinstance(a, torch.Tensor) and a.layout is torch.strided and not is_subclass(a)
    ]
    return len(set(storages)) < len(storages)
