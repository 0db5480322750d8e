"""torch's minifier (``TORCHDYNAMO_REPRO_AFTER="aot"``): a small script for a graph that fails.

What torch watches behind AOTAutograd is one compiler, Inductor's ``compile_fx_inner``: by its
name, and in the scripts that it writes. Here the compilers of a backend are watched under that
name, and the scripts begin with lines that have the backend stand in its place
(``tools/minified.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter import env
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.partition import copy_graph

logger = logging.getLogger(__name__)

Compiler = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]

_ACCURACY = 4
"""The level at which torch compares numbers; below, it waits for exceptions."""


def watched(compiler: Compiler, options: OrtBackendOptions) -> Compiler:
    """A compiler whose graphs torch minifies when they fail, where the environment asks for it."""
    if torch._dynamo.config.repro_after != "aot":
        return compiler
    from torch._dynamo.repro import after_aot

    wrap: Any = after_aot.wrap_compiler_debug
    strict = env.is_on("DORT_STRICT") or not options.fallback
    if torch._dynamo.config.repro_level != _ACCURACY and not strict:
        logger.warning(
            "TORCHDYNAMO_REPRO_AFTER finds no failure while graphs that fail run in torch: set "
            "DORT_STRICT=1, or fallback=False, where operators without a converter fail too."
        )
    text = beginning(options)

    def compile_copy(
        graph_module: torch.fx.GraphModule, given: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        # torch runs the graph, and writes it down, after it was compiled.
        return compiler(copy_graph(graph_module), given)

    watching = wrap(compile_copy, "inductor")

    def compile_watched(
        graph_module: torch.fx.GraphModule, given: Sequence[Any]
    ) -> Callable[..., Any]:
        with _beginning_with(text):
            run = watching(graph_module, given)

        def call(args: list[Any]) -> Any:
            with _beginning_with(text):
                return run(args)

        call._boxed_call = True  # type: ignore[attr-defined]  # read by torch
        return call

    return compile_watched


def begin_with(text: str) -> str:
    """Have the scripts that torch writes begin with some lines; return those of before."""
    names = vars(importlib.import_module("torch._dynamo.repro.after_aot"))
    before: str = names["extra_imports"]
    names["extra_imports"] = text
    return before


@contextlib.contextmanager
def _beginning_with(text: str) -> Iterator[None]:
    before = begin_with(text)
    try:
        yield
    finally:
        begin_with(before)


def beginning(options: OrtBackendOptions) -> str:
    """Lines of Python that have the backend with these options compile what a script has."""
    said = OptionWriter()
    given = said.changed(options)
    if said.left_out:
        logger.warning(
            "A script of torch's minifier cannot have %s: it goes without.",
            ", ".join(said.left_out),
        )
    lines = [
        "import os",
        "os.environ['DORT_STRICT'] = '1'",  # what fails must not run in torch instead
        *(f"import {name}" for name in sorted(said.modules)),
        "from dort_rewriter.tools.minified import stand_in",
        f"stand_in({given})",
    ]
    return "\n".join(lines)


class OptionWriter:
    """Options as Python says them, functions by their names in modules, or not at all."""

    def __init__(self, *, functions: bool = True) -> None:
        self.functions = functions
        self.modules: set[str] = set()
        self.left_out: list[str] = []

    def changed(self, options: Any) -> str:
        """The fields that are not as they come, as a dictionary."""
        as_it_comes: Any = OrtBackendOptions()
        if not isinstance(options, OrtBackendOptions):
            as_it_comes = as_it_comes.optimization
        found = []
        for field in dataclasses.fields(options):
            value = getattr(options, field.name)
            if value == getattr(as_it_comes, field.name):
                continue
            text = self.text(value)
            if text is None:
                self.left_out.append(field.name)
            else:
                found.append(f"{field.name!r}: {text}")
        return f"{{{', '.join(found)}}}"

    def text(self, value: Any) -> str | None:
        """A value, or None for one that Python has no words for."""
        if value is None or isinstance(value, str | int | float):
            return repr(value)
        if dataclasses.is_dataclass(value):
            return self.changed(value)
        if isinstance(value, Mapping):
            texts = [self.text(v) for v in value.values()]
            pairs = zip(value, texts, strict=True)
            return None if None in texts else f"{{{', '.join(f'{k!r}: {t}' for k, t in pairs)}}}"
        if isinstance(value, list | tuple):
            texts = [self.text(v) for v in value]
            return None if None in texts else f"({' '.join(f'{t},' for t in texts)})"
        return self._name(value)

    def _name(self, value: Any) -> str | None:
        """Where a function or a class is found by whoever imports its module."""
        module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", "")
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if not self.functions or module == "__main__" or found is not value:
            return None
        self.modules.add(module)
        return f"{module}.{name}"
