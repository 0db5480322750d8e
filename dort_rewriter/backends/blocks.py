"""What a block is, exported and built: a part of a graph that ONNX Runtime runs as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import onnx_ir as ir
import torch

from dort_rewriter.capture.outputs import ModelOutput
from dort_rewriter.export.interpreter import ExportedGraph
from dort_rewriter.runtime.session import Session
from dort_rewriter.signature import GraphSignature

if TYPE_CHECKING:
    import onnx

__all__ = ["BuiltBlock", "ExportedBlock", "Providers", "RunBoxed", "Runner"]

Providers = Sequence[tuple[str, Mapping[str, Any]]]
"""Execution providers with their options, best first."""

RunBoxed = Callable[[list[Any]], Any]
"""Takes the list of arguments, and empties it."""


class Runner(Protocol):
    """What runs a block: an :class:`Executor`, or what a recipe puts in its place."""

    @property
    def boxed(self) -> RunBoxed:
        """Runs the block on a list of arguments."""
        ...


@dataclass(frozen=True, kw_only=True)
class ExportedBlock:
    """A block whose model is ready for a session."""

    graph_module: torch.fx.GraphModule
    exported: ExportedGraph
    proto: onnx.ModelProto | None
    """The model as the session gets it, when a transform asked for it."""
    computed: Mapping[str, ModelOutput]
    """What each output of the model is, by name."""

    @property
    def signature(self) -> GraphSignature:
        """How the block is called."""
        return self.exported.signature

    @property
    def model(self) -> onnx.ModelProto | ir.Model:
        """The model to run."""
        return self.proto or self.exported.model


@dataclass(frozen=True, kw_only=True)
class BuiltBlock(ExportedBlock):
    """A block that is ready to run."""

    session: Session | None
    """None when everything the graph returns is made of its arguments, or no session runs it."""
    runner: Runner
