"""One line at INFO for what Dynamo finds no graph in, or does not read, for ``backend="onnxrt"``.

A backend is not called then, and such a model (``nn.LSTM``) looks like one that runs in ONNX
Runtime. Dynamo calls back before and after it reads a frame; what it reads, and for which backend,
stands in the frame of its own function: where that has other names, nothing is said.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

logger = logging.getLogger(__name__)

BACKEND = "onnxrt"

Place = tuple[str, int, str]
"""Where code stands: Dynamo gives what it has read other code objects."""

_before: list[int] = []
"""How many graphs there were when Dynamo began to read: one number, or none."""

_told: set[Place] = set()

_NEAR = 8
"""``Module.compile`` is fewer callers away from where a backend is looked up."""


def watch() -> None:
    """Be called back from now on; ``torch._dynamo.reset()`` ends it."""
    handler = _handler()
    if handler is not None and _on_end not in handler.end_callbacks:
        _told.clear()
        handler.register_start_callback(_on_start)
        handler.register_end_callback(_on_end)


def tell_of_torchs_module() -> None:
    """Say which module of torch ``Module.compile`` was called on, if that is where this is.

    Dynamo looks at each of its calls, reads none of them, and calls nothing back.
    """
    if not logger.isEnabledFor(logging.INFO):
        return
    for frame in itertools.islice(_callers(), _NEAR):
        module = frame.f_locals.get("self") if frame.f_code.co_name == "compile" else None
        if not isinstance(module, sys.modules["torch.nn"].Module):
            continue
        if str(getattr(module.forward, "__module__", "")).startswith("torch.nn."):
            logger.info(
                "Dynamo does not read %s, a module whose forward is torch's, compiled in place: "
                "of it, only modules of other classes run in ONNX Runtime. torch.compile(module) "
                "reads all of it.",
                type(module).__qualname__,
            )


def unwatch() -> None:
    """Be called back no more."""
    handler = _handler()
    if handler is not None and _on_end in handler.end_callbacks:
        handler.remove_start_callback(_on_start)
        handler.remove_end_callback(_on_end)


def _handler() -> Any:
    return getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)


def _on_start(*_: Any) -> None:
    _before[:] = [_count_graphs()]


def _on_end(*_: Any) -> None:
    try:
        if isinstance(sys.exc_info()[1], sys.modules["torch"]._dynamo.exc.BackendCompilerFailed):
            return  # there was a graph, which counts only when it is compiled
        if logger.isEnabledFor(logging.INFO) and _before == [_count_graphs()]:
            _tell()
    except Exception as error:  # inside of Dynamo: no compilation is worth a line of log
        logger.debug("cannot tell what Dynamo read: %r", error)


def _tell() -> None:
    reading = next((f for f in _callers() if _reads(f)), None)
    if reading is None or not _is_for_us(reading):
        return
    code = reading.f_locals["code"]
    # What is called by a function of which it was told runs in Python as that one does.
    if _place(code) not in _told and not any(_place(f.f_code) in _told for f in _callers()):
        logger.info(
            "Dynamo found no graph in %s: it runs in Python and torch, not in ONNX Runtime. "
            "dort_rewriter.explain says more.",
            _describe(code, reading),
        )
    _told.add(_place(code))


def _count_graphs() -> int:
    utils = sys.modules["torch._dynamo.utils"]
    return int(utils.counters["stats"]["unique_graphs"])


def _callers() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _reads(frame: FrameType) -> bool:
    """Whether a frame is that of Dynamo's function which reads one."""
    return frame.f_code.co_name == "_compile" and isinstance(frame.f_locals.get("code"), CodeType)


def _is_for_us(reading: FrameType) -> bool:
    return getattr(reading.f_locals.get("compiler_fn"), "compiler_name", None) == BACKEND


def _place(code: CodeType) -> Place:
    return code.co_filename, code.co_firstlineno, code.co_name


def _describe(code: CodeType, reading: FrameType) -> str:
    name = getattr(code, "co_qualname", code.co_name)  # since Python 3.11
    # What is torch's own is called from a frame around it, in whose closure it stands alone.
    if code.co_filename.endswith("external_utils.py"):
        if closure := reading.f_locals.get("closure"):
            called = closure[0].cell_contents
        else:  # torch 2.5 shows it among the frame's variables
            called = reading.f_locals["locals"]["fn"]
        name = getattr(called, "__qualname__", type(called).__qualname__)
        inside = inspect.unwrap(getattr(called, "forward", called))
        code = getattr(inside, "__code__", code)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"
