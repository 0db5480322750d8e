"""Backends for people who write backends: to see a graph, to try several compilers in turn."""

from __future__ import annotations

import logging
import pprint
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import torch

from dort_rewriter.compiler.safety_net import raises_at_call
from dort_rewriter.errors import CaptureError, OptionError
from dort_rewriter.graph.schemas import qualified
from dort_rewriter.runtime.providers import with_nodes
from dort_rewriter.signature import InputSlot, OutputSlot
from dort_rewriter.tools.command import in_a_line
from dort_rewriter.tools.graph_table import graph_table

logger = logging.getLogger(__name__)

Compiled = Callable[..., Any]
Backend = Callable[..., Compiled]


def print_graph_backend(
    graph_module: torch.fx.GraphModule, args: Sequence[Any], *, file: TextIO | None = None
) -> Compiled:
    """Print the graph that Dynamo captured as a table, and run it in eager mode.

    ``torch.compile(model, backend=print_graph_backend)``.

    Args:
        graph_module: the graph of Dynamo.
        args: the arguments it is compiled for.
        file: where the table goes; None is the standard output.

    Returns:
        A function that runs the graph in eager mode.
    """
    stream = sys.stdout if file is None else file
    print(graph_table(graph_module), file=stream)
    return graph_module.forward


def optimize_for_inference_backend(
    graph_module: torch.fx.GraphModule, args: Sequence[Any]
) -> Compiled:
    """Run a graph as TorchScript, after ``torch.jit.optimize_for_inference``.

    It shows how another compiler is plugged in. Weights are arguments of the graph, so that a
    change of them is seen; gradients are not computed, and a graph that needs some, or that
    TorchScript refuses, runs in eager mode, with a warning by ``logging``.

    Args:
        graph_module: the graph of Dynamo.
        args: the arguments it is compiled for.

    Returns:
        A function that runs the graph.
    """
    needs_gradient = torch.is_grad_enabled() and any(
        isinstance(a, torch.Tensor) and a.requires_grad for a in args
    )
    if needs_gradient:
        logger.warning("A graph that needs gradients runs in eager mode: use torch.no_grad().")
        return graph_module.forward
    # NOTE: Dynamo's class writes its code when it is first needed, which TorchScript cannot read.
    plain = torch.fx.GraphModule(graph_module, graph_module.graph).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is announced to go: that is known here
        try:
            scripted = torch.jit.script(plain)
            optimized = torch.jit.optimize_for_inference(scripted)
        # The compiler raises its own errors, which are RuntimeError, and those of Python.
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            reason = in_a_line(error)
            logger.warning("A graph that TorchScript refuses runs in eager mode: %s", reason)
            return graph_module.forward
    return lambda *given: optimized(*given)  # a module of TorchScript is no module to Dynamo


@dataclass(frozen=True)
class Attempt:
    """What became of one backend on one graph."""

    backend: str
    error: str | None = None
    """Why it failed; None when it compiled the graph."""

    def __str__(self) -> str:
        return f"{self.backend}: {self.error or 'compiled the graph'}"


class ComposedBackend:
    """Gives each graph to the first backend that compiles it."""

    def __init__(self, backends: Sequence[str | Backend], fallback: str | Backend | None) -> None:
        self.backends = tuple(backends)
        self.fallback = fallback
        self.attempts: list[tuple[Attempt, ...]] = []
        """For each graph, the backends that were tried; the last one compiled it."""
        self.__name__ = "compose_backends"

    @raises_at_call
    def __call__(
        self, graph_module: torch.fx.GraphModule, args: Sequence[Any], **kwargs: Any
    ) -> Compiled:
        """Compile a graph."""
        tried: list[Attempt] = []
        candidates = self.backends if self.fallback is None else (*self.backends, self.fallback)
        for backend in candidates:
            name = _name(backend)
            try:
                given = kwargs if backend in self.backends else {}
                compiled = _lookup(backend)(graph_module, args, **given)
            except Exception as error:  # a compiler raises anything: the next one is to be tried
                tried.append(Attempt(name, in_a_line(error)))
                continue
            tried.append(Attempt(name))
            self._keep(tuple(tried))
            return compiled
        self._keep(tuple(tried))
        raise CaptureError("No backend compiled the graph:\n" + "\n".join(f"  {a}" for a in tried))

    def _keep(self, tried: tuple[Attempt, ...]) -> None:
        """Keep what became of a graph, and say it: aloud the first time that something failed."""
        level = logging.WARNING if len(tried) > 1 and tried not in self.attempts else logging.INFO
        logger.log(level, "Graph %d: %s", len(self.attempts), "; ".join(map(str, tried)))
        self.attempts.append(tried)

    @property
    def chosen(self) -> tuple[str | None, ...]:
        """The backend of each graph; None where all failed."""
        return tuple(a[-1].backend if a[-1].error is None else None for a in self.attempts)

    def report(self) -> str:
        """What became of each graph, as text; graphs that fared alike share a line."""
        groups: dict[tuple[Attempt, ...], list[str]] = {}
        for i, tried in enumerate(self.attempts):
            groups.setdefault(tried, []).append(str(i))
        return "\n".join(
            f"graph {', '.join(graphs)}: {'; '.join(str(a) for a in tried)}"
            for tried, graphs in groups.items()
        )


def compose_backends(
    *backends: str | Backend, fallback: str | Backend | None = "eager"
) -> ComposedBackend:
    """A backend that gives each graph to the first of several that compiles it.

    ``torch.compile(model, backend=compose_backends("tensorrt", "inductor"))``. A backend is a name
    that torch knows or a function; what one raises is kept, and logged, and the next is tried,
    ``fallback`` at last (None raises instead, with all the reasons). ``attempts``, ``chosen`` and
    ``report()`` of the result say what became of each graph.

    A backend that compiles at the first call has not failed yet: what it raises then is raised.

    Args:
        backends: what to try, in order.
        fallback: what to try last; None raises.

    Raises:
        OptionError: there is no backend to try.
        CaptureError: no backend compiled a graph, when it is compiled, and ``fallback`` is None.
    """
    if not backends:
        raise OptionError("compose_backends needs a backend to try, such as 'inductor'.")
    return ComposedBackend(backends, fallback)


def _name(backend: str | Backend) -> str:
    return backend if isinstance(backend, str) else getattr(backend, "__name__", repr(backend))


def _lookup(backend: str | Backend) -> Backend:
    if not isinstance(backend, str):
        return backend
    found: Backend = torch._dynamo.lookup_backend(backend)
    return found


def pprint_storage(storage: Any, file: TextIO | None = None) -> str:
    """Describe what ``onnx_custom_backend(..., storage=storage)`` put into ``storage``, as text.

    Each graph is described by its nodes by type, its inputs and outputs, its providers, and
    whether it ran; anything else than such a storage as ``pprint`` does. ``file`` gets the text
    too.
    """
    instances = storage.get("instance") if isinstance(storage, Mapping) else None
    if instances is None and storage != {}:
        text = pprint.pformat(storage)
    else:
        lines = [f"[{i}] {_summary(instance)}" for i, instance in enumerate(instances or [])]
        text = "\n".join([f"{len(lines)} compiled graph(s)", *lines])
    if file is not None:
        print(text, file=file)
    return text


def _summary(instance: Mapping[str, Any]) -> str:
    model, signature = instance["onnx"], instance["builder"].signature
    opsets = ", ".join(f"{o.domain or 'ai.onnx'}:{o.version}" for o in model.opset_import)
    types = Counter(qualified(n.domain, n.op_type) for n in model.graph.node)
    counts = ", ".join(f"{count} {name}" for name, count in types.most_common())
    session = with_nodes(instance["providers"], instance["placement"]) or "no session"
    return "\n    ".join(
        [
            f"{len(instance['graph_module'].graph.nodes)} FX nodes, {len(model.graph.node)} ONNX "
            f"nodes, opset {opsets}, on {session}",
            f"nodes:   {counts or 'none'}",
            f"inputs:  {', '.join(_describe(s) for s in signature.inputs) or 'none'}",
            f"outputs: {', '.join(_describe(s) for s in signature.outputs) or 'none'}",
            "ran" if instance["inputs"] else "did not run yet",
        ]
    )


def _describe(slot: InputSlot | OutputSlot) -> str:
    if slot.dtype is None:
        return "None"
    name = slot.name or "(not read)"
    if slot.kind != "tensor":
        return f"{name} {slot.kind}"
    return f"{name} {str(slot.dtype).removeprefix('torch.')}{list(slot.shape)}".replace("'", "")
