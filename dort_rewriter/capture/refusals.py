"""Graphs with an operator that torch's kernels refuse for the types of its arguments.

A converter casts or promotes where torch raises an exception, and so does a decomposition. So each
operator that is traced, as the program has it, is looked at; a graph with one that torch refuses
runs in eager mode, which raises what it raises, where it does, with what was written before.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule

from dort_rewriter.capture.taken_types import is_tested, refusal_of

__all__ = ["RefusedByTorch", "TypeCheck", "in_eager_mode_if_refused"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
Decompositions = Mapping[Any, Callable[..., Any]]

_NO_KERNEL = re.compile(r'"(\w+)" not implemented for \'')
"""How torch's kernels begin that look at the type last."""


class RefusedByTorch(Exception):
    """An operator of a graph has types that torch's kernel does not take."""

    def __init__(self, op: str, error: Exception, stack: str = "") -> None:
        first = str(error).strip().partition("\n")[0]
        super().__init__(f"{op}: {type(error).__name__}: {first}")
        self.op = op
        self.stack = stack
        """The lines of Python that call it, as in a traceback; empty where they are not known."""

    @staticmethod
    def in_tracing(error: NotImplementedError) -> RefusedByTorch:
        """What torch raised while it traced: some of its formulas refuse types there already.

        Anything else that was not implemented is raised again.
        """
        found = _NO_KERNEL.match(str(error))
        if found is None:
            raise error
        return RefusedByTorch(found[1], error)


class TypeCheck:
    """Looks at the operators of one compilation while they are traced."""

    def __init__(self, decompositions: Decompositions) -> None:
        self.decompositions = {
            op: functools.partial(self._decompose, op, made) for op, made in decompositions.items()
        }
        """The same, which raise :class:`RefusedByTorch` for what torch refuses."""
        self._decomposed: set[str] = set()
        self._is_inside = False

    def _decompose(
        self, op: Any, decomposition: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._is_inside:  # what an operator is made of is not the program's
            return decomposition(*args, **kwargs)
        if (error := refusal_of(op, args, kwargs)) is not None:
            stack = torch.fx.traceback.get_current_meta().get("stack_trace") or ""
            raise RefusedByTorch(op.name(), error, stack)
        self._decomposed.add(op.name())
        self._is_inside = True
        try:
            return decomposition(*args, **kwargs)
        finally:
            self._is_inside = False

    def check(self, graph_module: torch.fx.GraphModule) -> None:
        """Raise :class:`RefusedByTorch` for an operator that was not decomposed."""
        for module in graph_module.modules():
            if not isinstance(module, torch.fx.GraphModule):
                continue
            for node in module.graph.nodes:
                # NOTE: by names, because torch copies operators with the graphs.
                original = node.meta.get("original_aten")
                if original is not None and original.name() in self._decomposed:
                    continue
                if not is_tested(node.target):  # torch runs it, or nothing is known of it
                    continue
                if (error := refusal_of(node.target, node.args, node.kwargs)) is not None:
                    stack = node.meta.get("stack_trace") or ""
                    raise RefusedByTorch(node.target.name(), error, stack)


def in_eager_mode_if_refused(
    compile_graph: Callable[P, Callable[..., Any]],
) -> Callable[P, Callable[..., Any]]:
    """Have eager mode run a graph of Dynamo, the first argument, if torch refuses some of it."""

    @functools.wraps(compile_graph)
    def compile_or_leave(*args: P.args, **kwargs: P.kwargs) -> Callable[..., Any]:
        try:
            return compile_graph(*args, **kwargs)
        except RefusedByTorch as error:
            refused = error
        except NotImplementedError as error:
            refused = RefusedByTorch.in_tracing(error)
        graph_module: Any = args[0]
        return _in_eager_mode(graph_module, refused)

    return compile_or_leave


def _in_eager_mode(
    graph_module: torch.fx.GraphModule, refused: RefusedByTorch
) -> Callable[..., Any]:
    """What runs Dynamo's graph as eager mode does; what it raises has the Python line."""
    logger.info("A graph runs in eager mode, which refuses %s", refused)
    # Dynamo's graphs get their code when they are called, which would print what they raise.
    _LazyGraphModule.force_recompile(graph_module)
    op, stack = refused.op, refused.stack.rstrip()

    def call(*given: Any) -> Any:
        try:
            return graph_module.forward(*given)
        except Exception as error:  # eager mode's, whatever it is
            if stack and hasattr(error, "add_note"):
                error.add_note(f"raised by {op}, called at\n{stack}")
            raise

    return call
