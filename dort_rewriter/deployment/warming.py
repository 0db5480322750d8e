"""Compile a model for the sizes it is going to be called with, before it is."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from dort_rewriter.backends.instances import count_runs
from dort_rewriter.backends.seen_calls import latest_call
from dort_rewriter.deployment.compiled import WHAT_IS_SKIPPED, Compiled, take_apart
from dort_rewriter.deployment.examples import calls_of
from dort_rewriter.deployment.restoring import left_as_it_was
from dort_rewriter.errors import OptionError
from dort_rewriter.forks import SafeLock

logger = logging.getLogger(__name__)

_warming = SafeLock()
"""One at a time: each puts back what the calls of a model change."""


def warm_up(
    compiled: Callable[..., Any],
    shapes: Sequence[Sequence[Any] | Mapping[str, Any]],
) -> None:
    """Compile a model for calls in inference, and build its sessions, before they come.

    Each entry of ``shapes`` is one call: its arguments in order, or by name. A tuple of whole
    numbers stands for a tensor of that shape, of the type that this argument had when the model
    was compiled last, or of torch's default type; anything else is passed as it is. Sizes that
    differ between the entries are compiled for any number: further ones compile nothing.

    ``warm_up(compiled, [((1, 16),), ((8, 16),)])``, ``warm_up(compiled, [{"x": tensor}])``.

    It runs under what it is called under, as do the calls to come: ``torch.inference_mode()``,
    autocast; without gradients unless they are off already. Under another mode Dynamo compiles
    again.

    Several threads may warm a model up, and call it meanwhile. The calls see what those before
    them wrote. Then what they wrote to is as it was: tensors, lists, dictionaries and attributes
    of objects, in any depth of the arguments and of the model, and random numbers. So a model
    that writes to buffers or attributes is warmed up before it serves. Not set back are
    parameters, what functions reach by globals and closures, and objects of torch (optimizers)
    and of Python's library (iterators, files).

    A warning says when nothing was compiled, as of a model that Dynamo skips.
    """
    found = take_apart(compiled)
    if not isinstance(shapes, list | tuple) or not shapes:
        raise OptionError("shapes is a list of calls: [(tensor,), ...] or [((1, 16),), ...].")
    calls = calls_of(found, shapes)
    start, graphs, runs = time.perf_counter(), _count_graphs(), _count_runs(found)
    with _warming, contextlib.ExitStack() as stack:
        if torch.is_grad_enabled():
            stack.enter_context(torch.no_grad())
        stack.enter_context(left_as_it_was(found.target, shapes))
        for args, kwargs in calls:
            compiled(*args, **kwargs)
    key = found.target if found.module is None else found.module
    if (_count_graphs(), _count_runs(found)) != (graphs, runs):
        _warmed[key] = True
    elif key not in _warmed and latest_call(found.target) is None:
        logger.warning(
            "Nothing was compiled for %s calls, and nothing ran in ONNX Runtime: all of the model "
            "runs in eager mode. %s",
            len(calls),
            WHAT_IS_SKIPPED,
        )
        return
    logger.info("Warmed up for %s calls in %.1f s.", len(calls), time.perf_counter() - start)


# NOTE: by identity, as modules may compare as they like.
_warmed: Any = WeakIdKeyDictionary()
"""Models of which something was compiled: a graph without a session leaves no other trace."""


def _count_graphs() -> int:
    """How many graphs Dynamo has given to backends, in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _count_runs(found: Compiled) -> int:
    """How often sessions were run that may be those of a model."""
    own = 0 if found.backend is None else int(found.backend.execution_count)
    return own + count_runs()
