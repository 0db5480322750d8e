"""The lines of a model that its operators come from, while it is traced."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx import traceback as fx_traceback
from torch.utils._python_dispatch import TorchDispatchMode

from dort_rewriter.aten import last_frame

LAYERS = str(Path(torch.nn.__file__).parent)
_OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


def is_users(file: str) -> bool:
    """Whether a source file is neither torch's nor this package's."""
    return not file.startswith(_OTHERS)


class Lines(TorchDispatchMode):
    """Gives each operator the line of the model that it comes from, while a model runs inside of
    one of some functions.

    NOTE: nodes take it where torch preserves their metadata (`preserve_node_meta`).
    """

    def __init__(self, *calls: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = [call.__code__ for call in calls]
        self._of: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stack = _stack_here(self._calls)
        self._of.setdefault(func.name().partition("::")[2].partition(".")[0], stack)
        meta = fx_traceback.get_current_meta()
        before = meta.pop("stack_trace", None)
        meta["stack_trace"] = stack
        try:
            return func(*args, **(kwargs or {}))
        finally:
            del meta["stack_trace"]
            if before is not None:
                meta["stack_trace"] = before

    def of(self, text: str) -> str:
        """The line of the first operator that a text names, or an empty text."""
        for word in re.findall(r"\w+", text):
            for name in (word, f"special_{word}", f"linalg_{word}"):
                if name in self._of:
                    return last_frame(self._of[name])
        return ""

    def give_gradients(self, graph: torch.fx.GraphModule) -> None:
        """Give the nodes of gradients the lines of the operators that they belong to."""
        found: dict[Any, str] = {}
        for node in graph.graph.nodes:
            number = node.meta.get("seq_nr")
            if node.meta.get("stack_trace"):
                found.setdefault(number, node.meta["stack_trace"])
            elif number in found:
                node.meta["stack_trace"] = found[number]


def _stack_here(calls: Collection[CodeType]) -> str:
    """The innermost frame of the model, else of a layer of torch, as a traceback shows it."""
    frame: FrameType | None = sys._getframe(2)
    of_layers = ""
    while frame is not None and frame.f_code not in calls:
        file = frame.f_code.co_filename
        if is_users(file):
            return _frame_text(frame)
        if not of_layers and file.startswith(LAYERS):
            of_layers = _frame_text(frame)
        frame = frame.f_back
    return of_layers


def _frame_text(frame: FrameType) -> str:
    file, number = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(file, number).strip()
    return f'  File "{file}", line {number}, in {frame.f_code.co_name}\n    {code}\n'
