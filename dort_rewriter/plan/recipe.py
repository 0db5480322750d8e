"""What a backend wants of a graph, what becomes of its blocks, and how what runs it is called.

Inside, what runs a graph is called with the list of its arguments, and empties it: what nothing
else holds is freed early. It results in a tuple.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import onnx_ir as ir
import torch

from dort_rewriter.errors import OptionError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import ExportedGraph
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.other_numbers import OF_FLOATS, others_of
from dort_rewriter.plan.outputs import ModelOutput
from dort_rewriter.runtime.providers import CPU, parse
from dort_rewriter.runtime.session import Session
from dort_rewriter.signature import GraphSignature
from dort_rewriter.trace import CompileTrace

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

OTHER_NUMBERS_FOR = "has other numbers than torch for"
"""How it is said of a provider that a graph is not for it."""

_passed_on: set[tuple[str, str]] = set()
"""Providers that are not for a graph, and why: what a warning has said."""

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


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to do with a graph."""

    dispatcher: Dispatcher
    options: OrtBackendOptions
    select_providers: Callable[
        [torch.fx.GraphModule, Sequence[Any]], Sequence[tuple[str, Mapping[str, Any]]]
    ]
    on_built: Callable[[BuiltBlock], None] | None = None
    """Called once for each block, when its session exists."""
    around: Callable[[torch.fx.GraphModule, RunBoxed], RunBoxed] | None = None
    """Put around what runs a block."""
    weights: frozenset[str] = frozenset()
    """Names of placeholders to put into the model."""
    trace: CompileTrace = dataclasses.field(default_factory=CompileTrace)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """FX nodes, by name, that turned out not to be convertible, and why."""
    hidden_copies: bool = True
    """Whether the program may copy to a memory format what was traced as if it had it."""
    owns_views: bool = False
    """Whether views of what it computes leave the graph as it makes them: AOTAutograd makes them
    anew where there are gradients."""
    build_now: bool = False
    """Build the blocks when the graph is compiled, not at their first call."""
    rename_inputs: bool = True
    """Call the inputs ``input0``, ``input1``, ...; False keeps the names of the graph."""
    runs_here: bool = False
    """Whether models run in the process that makes them: their sessions may call what has no
    converter, where the graph would be cut, and multiply by MKL."""
    torch_kernels: bool = False
    """Whether torch's own kernels may compute in models, which then need torch beside them."""
    compared: bool = False
    """Whether results are compared with torch's at each call."""
    as_stored: bool = False
    """Let the model read arguments in the order of their memory: less is copied at each call."""
    in_a_file: bool = False
    """Whether a graph has to be one model, that is stored."""
    make_runner: Callable[[ExportedBlock], Runner] | None = None
    """Makes what runs a model in place of a session, for debugging."""
    dump_prefix: str | None = None
    """Prefix of the files written for each model; None reads it from the environment."""

    def __post_init__(self) -> None:
        """Show the work on the graph where the options ask for it."""
        self.trace.verbose = self.options.optimization.verbose > 0

    def provider_of(self, graph_module: torch.fx.GraphModule) -> str:
        """The first provider of a graph, by what is known of its arguments, that has the numbers
        of eager mode for half of it, and for all of a file, without torch.

        Raises :class:`OptionError` where it is another one than a user insists on.
        """
        placeholders = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
        chosen = self.select_providers(graph_module, [n.meta.get("val") for n in placeholders])
        for place, (name, options) in enumerate(chosen, 1):
            if name == CPU:
                break
            others, count = others_of(graph_module.graph, name)
            if others.total() <= (0 if self.in_a_file else count / 2):
                return name
            behind = chosen[place][0] if place < len(chosen) else CPU
            self._pass_on(name, behind, options, others, count)
        return CPU

    def _pass_on(
        self, name: str, to: str, options: Mapping[str, Any], others: Counter[str], count: int
    ) -> None:
        """Say once that graphs are not for a provider that was named, and why.

        Raises :class:`OptionError` where it is required, or there is to be no fallback; but not
        for what is counted in integers, beside models that it runs.
        """
        (reason, _), *_ = others.most_common(1)
        alone = ", since a file has no torch beside it" if self.in_a_file else ""
        text = f"{OTHER_NUMBERS_FOR} {others.total()} of {count} operators of a graph ({reason})"
        insists = parse((name, options)).required or not self.options.fallback
        if insists and (self.in_a_file or reason in OF_FLOATS):
            raise OptionError(
                f"{name} {text}{alone}: it is required, or fallback=False was given."
            )
        level = logging.INFO if (name, reason) in _passed_on else logging.WARNING
        _passed_on.add((name, reason))
        logger.log(level, "A graph runs on %s%s: %s %s.", to, alone, name, text)

    def may_call_torch(self, provider: str) -> bool:
        """Whether sessions of a provider may call torch, or MKL: they run here, on the CPU."""
        return self.runs_here and provider == CPU


def boxed(function: RunBoxed) -> RunBoxed:
    """A function of torch's convention for lists of arguments."""

    def call(args: list[Any]) -> Any:
        return function(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return call


def boxed_module(graph_module: torch.fx.GraphModule) -> RunBoxed:
    """What runs a graph in torch, and gives a tuple as sessions do."""
    forward = graph_module.forward
    is_tuple = returns_tuple(graph_module)

    def call(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        results = forward(*given)
        return results if is_tuple else (results,)

    return boxed(call)


def unboxed(run: RunBoxed, graph_module: torch.fx.GraphModule) -> Callable[..., Any]:
    """A callable that takes the arguments, or the list of them, and gives what the graph does.

    No argument of a graph is a list: there is no doubt about which was meant.
    """
    is_tuple = returns_tuple(graph_module)

    def call(*args: Any) -> Any:
        is_list = len(args) == 1 and isinstance(args[0], list)
        results = run(args[0] if is_list else list(args))
        return results if is_tuple else results[0]

    call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return call


def returns_tuple(graph_module: torch.fx.GraphModule) -> bool:
    """Whether a graph gives a tuple, rather than a result alone."""
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    return isinstance(output.args[0], list | tuple)
