"""Which nodes of a graph torch's own kernels compute inside a session."""

from __future__ import annotations

import functools

import torch

from dort_rewriter.backends.mkl import differentiates_by_mkl
from dort_rewriter.backends.own_kernels import uses_own_kernels
from dort_rewriter.capture.placement import KERNEL, Place, choose_place
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.registry import op_name
from dort_rewriter.export.torch_calls import TorchCalls
from dort_rewriter.export.torch_kernels import TorchKernels
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.torch_calls import register_call
from dort_rewriter.runtime.torch_library import has_function

__all__ = ["place_of", "with_torch_kernels"]


def place_of(node: torch.fx.Node, options: OrtBackendOptions) -> Place:
    """Where a backend with these options runs a node of an ATen graph."""
    return choose_place(
        node,
        op_name(node.target),
        options.placement,
        by_mkl=functools.partial(differentiates_by_mkl, options),
        frozen=options.freeze,
    )


def with_torch_kernels(dispatcher: Dispatcher, options: OrtBackendOptions) -> Dispatcher:
    """The dispatcher of a backend whose models run here: torch's kernels are at hand.

    NOTE: our kernels are asked for last, since that may compile them.
    """

    def wants(node: torch.fx.Node) -> bool:
        return place_of(node, options) == KERNEL and uses_own_kernels(options.optimization)

    placed = sorted((options.placement or {}).items())
    described = f"{placed}, frozen: {options.freeze}"
    return TorchCalls(TorchKernels(dispatcher, wants, has_function, described), register_call)
