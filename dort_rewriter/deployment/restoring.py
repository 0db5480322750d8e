"""Calls of a model that leave nothing behind: what they write to is set back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

__all__ = ["left_as_it_was"]


@contextlib.contextmanager
def left_as_it_was(model: Callable[..., Any] | None, inputs: Any) -> Iterator[None]:
    """Set back the arguments and buffers that the block writes to, and the random state.

    What was not written to is not touched: a model that holds a buffer as a constant would notice.
    Sparse tensors and those made of others (subclasses of torch's) are left alone.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    names = [(m, dict(m._buffers)) for m in modules]
    tensors = [*tree_leaves(inputs), *(b for _, buffers in names for b in buffers.values())]
    distinct = {id(t): t for t in tensors if isinstance(t, torch.Tensor) and _has_bytes(t)}
    before = [(t, t.clone()) for t in map(_each_once, distinct.values())]
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for module, buffers in names:
            for name, buffer in buffers.items():
                if module._buffers.get(name) is not buffer:  # another tensor was put there
                    module._buffers[name] = buffer
        with torch.no_grad():
            for tensor, values in before:
                # NOTE: the version of a tensor does not tell: batch norm writes without moving it;
                # neither do equal numbers: NaN is equal to nothing.
                if not torch.equal(_bytes(tensor), _bytes(values)):
                    tensor.copy_(values)


def _has_bytes(tensor: torch.Tensor) -> bool:
    made_of_others = bool(is_traceable_wrapper_subclass(tensor))
    if made_of_others or is_lazy(tensor):
        return False
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    return plain and tensor.device.type != "meta"


def _each_once(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of an expanded tensor, each once: more of it cannot be written to."""
    view = tensor.detach()
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            view = view.narrow(dim, 0, 1)
    return view


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)
