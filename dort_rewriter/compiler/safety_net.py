"""The safety net: an unexpected error lets a graph fall back to torch, and is logged once.

A failure that belongs to the work has its own error and its own way out, where it happens: an
operator that is not converted, a session that cannot be built. What is left are defects, of this
package or of what it stands on. A program that asked for ``fallback=True`` gets its results all
the same.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from dort_rewriter import env
from dort_rewriter.aten import first_line
from dort_rewriter.compiler.problem_report import report_when_asked
from dort_rewriter.errors import (
    DortError,
    OptionError,
    UnsupportedOp,
    UnsupportedOpError,
    given_function_of,
    place_of,
)
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.graph_plan import belongs_in_torch
from dort_rewriter.plan.other_numbers import OTHER_NUMBERS
from dort_rewriter.trace import CompileTrace

logger = logging.getLogger(__name__)

R = TypeVar("R")
P = ParamSpec("P")

_PASSED = (OptionError, MemoryError, torch._dynamo.exc.TorchDynamoException)
"""What is not caught: a mistake in the options is the user's to see, torch needs memory too, and
Dynamo steers itself by its exceptions (``RestartAnalysis``)."""

GRAPH_BREAKS = (DataDependentOutputException, DynamicOutputShapeException)
"""What a backend raises to have Dynamo break the graph: tracing needs a number that is not known
yet. All but that operator is compiled then."""

_NO_DERIVATIVE = re.compile(r"(the )?derivative for .* is not implemented")


def guarded(
    work: Callable[[], R],
    instead: Callable[[], R],
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any] | None,
    options: OrtBackendOptions,
    *,
    trace: CompileTrace | None = None,
    passed: tuple[type[Exception], ...] = (),
) -> R:
    """What `work` makes of a graph; what `instead` makes when that fails.

    The failure is logged, and written about where ``DORT_REPORT_DIR`` asks for it, with `args` if
    they are known. Exceptions that are `passed` reach the caller. With ``fallback=False``, and
    with ``DORT_STRICT=1``, the failure is raised.
    """
    try:
        return work()
    except _PASSED:
        raise
    except Exception as error:  # NOTE: the one place: a defect may raise anything
        if not options.fallback or isinstance(error, passed) or env.is_on("DORT_STRICT"):
            raise
        text = _describe(error, graph_module)
        logger.warning("A graph runs in torch from now on: %s", text)
        logger.debug("It fell back to torch for this.", exc_info=error)
        if trace is not None:
            trace.failures.append(text)
        if not _torchs_own(error):
            report_when_asked(graph_module, args, options, text)
        return instead()


def _describe(error: Exception, graph_module: torch.fx.GraphModule) -> str:
    """The class, the message and the Python line of what went wrong, and what to do."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    where = place_of(error) or first_line(graph_module)
    said = f"{type(error).__name__}: {first}{f' (at {where})' if where else ''}"
    if given := given_function_of(error):
        return f"{said}. It was raised in {given}; with fallback=False you see it whole."
    if why := _torchs_own(error):
        return f"{said}. {why}"
    return (
        f"{said}. This is a defect "
        "of dort_rewriter, or of what it stands on: `dort-rewriter report PROGRAM` writes what "
        "shows it, and with fallback=False it is raised."
    )


def _torchs_own(error: Exception) -> str:
    """Why no backend compiles a program; nothing where the failure is one of this package."""
    if _NO_DERIVATIVE.match(str(error)):
        return "Eager mode runs it, and raises the same in backward()."
    if isinstance(error, GuardOnDataDependentSymNode):
        return "torch does not trace what hangs on a size that is known at run time only."
    return ""


def raises_at_call(backend: Callable[P, Callable[..., Any]]) -> Callable[P, Any]:
    """Let what a backend raises on purpose reach the user as itself: a mistake in the options, or
    operators that are not converted, where ``fallback=False``.

    Dynamo wraps what a backend raises, so there what the backend returns raises it.
    """

    @functools.wraps(backend)
    def compile_or_refuse(*args: P.args, **kwargs: P.kwargs) -> Callable[..., Any]:
        try:
            return backend(*args, **kwargs)
        except DortError as error:
            if torch._guards.TracingContext.try_get() is None or is_compiled_ahead():
                raise  # nothing is called: the backend is, by hand, or what it returns is written
            return _raising(error)

    return compile_or_refuse


def is_compiled_ahead() -> bool:
    """Whether torch's ``aot_compile`` asks for a graph, to write what the backend returns."""
    config: Any = torch._functorch.config
    return bool(getattr(config, "bypass_autograd_cache_key", False))


def _raising(error: DortError) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error.with_traceback(None)

    call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return call


_ADVICE = (
    "Register a converter (Dispatcher({'aten::...': function})), or decompose them "
    "(decomposition_table=...), to run them in ONNX Runtime."
)

_warned: set[str] = set()
"""Operators for which a graph fell back to torch as a whole, and a warning was logged."""


def forget_warnings() -> None:
    """Log a warning again where a graph falls back for an operator that was named before."""
    _warned.clear()


def log_fallbacks(
    fallbacks: Sequence[UnsupportedOp],
    called: Sequence[UnsupportedOp],
    *,
    in_part: bool,
    fallback: bool,
) -> None:
    """Log what torch computes of a graph, but for what belongs there.

    A graph that falls back to torch as a whole is a warning, unless others fell back for the same
    operators: a model whose fifty layers are graphs of one kind logs one. Raises
    :class:`UnsupportedOpError` where that is not asked for.
    """
    if called:
        logger.info("A session calls these operators in torch: %s", _counted(called))
    if others := [f for f in fallbacks if f.reason in OTHER_NUMBERS]:
        logger.info("Other numbers on the provider, these run in torch: %s", _counted(others))
    missing = [f for f in fallbacks if not belongs_in_torch(f)]
    if missing and fallback and in_part:
        listing = UnsupportedOpError(missing).listing()
        logger.info("These operators run in torch: %s\n%s", listing, _ADVICE)
    elif missing:
        log_whole_fallback(missing, fallback=fallback)


def _counted(operators: Sequence[UnsupportedOp]) -> str:
    counts = Counter(f"{u.op} ({u.reason})" for u in operators)
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def log_whole_fallback(missing: Collection[UnsupportedOp], *, fallback: bool) -> None:
    """Log for which operators a graph runs in torch; raise it where that is not asked for."""
    if not fallback:
        raise UnsupportedOpError(missing)
    listing = UnsupportedOpError(missing).listing()
    names = {f.op for f in missing}
    level = logging.INFO if names <= _warned else logging.WARNING
    _warned.update(names)
    logger.log(level, "A graph runs in torch as a whole: %s\n%s", listing, _ADVICE)
