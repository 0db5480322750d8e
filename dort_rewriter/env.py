"""The environment variables of the package: one table, and the only reader of ``os.environ``."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

IMPORTED_AT = time.time()
"""When this package was imported: what is changed on the disk later is not what runs."""


@dataclass(frozen=True)
class Variable:
    """An environment variable that changes what the package does."""

    meaning: str
    default: str = ""


VARIABLES: dict[str, Variable] = {
    "ONNXRT_CHANGE_REWRITER": Variable(
        "1: the onnxrt backend exports with this package's converters. On torch <= 2.8 anything "
        "else leaves torch's own exporter in place; on torch >= 2.9 they are the default and 0 "
        "exports with onnxscript's torchlib alone. Read at each compilation."
    ),
    "ONNXRT_DUMP_PATH": Variable(
        "Prefix of the files written for each exported graph: <prefix>0.onnx, <prefix>0.txt, ..."
    ),
    "DORT_CACHE": Variable(
        "0: models are not kept on disk for other processes. Read at each compilation."
    ),
    "DORT_CACHE_DIR": Variable(
        "Where exported models, and kernels that were compiled at first use, are kept between "
        "processes; by default dort_rewriter in XDG_CACHE_HOME. No code is loaded from a folder "
        "that others can write to."
    ),
    "XDG_CACHE_HOME": Variable(
        "Where programs keep what can be made again, by default ~/.cache; a relative path "
        "counts as not set."
    ),
    "DORT_AMX": Variable(
        "0: no product of float32 is computed by parts in bfloat16, as large ones are on "
        "processors with AMX. Read when a graph is built."
    ),
    "DORT_CHECK_RULES": Variable(
        "1: each application of a rewriting rule is checked, as by the option check_rules. Read "
        "at each optimization."
    ),
    "DORT_STRICT": Variable(
        "1: an unforeseen exception is raised, also with fallback=True. For tests of the "
        "package: otherwise the graph runs in torch, and a warning says why."
    ),
    "DORT_VERIFY": Variable(
        "1: the first calls of each graph are compared with torch, as by the option verify; a "
        "larger number: so many calls; finite: what makes infinities and NaN is named. Read "
        "when a graph is built."
    ),
    "DORT_REPORT_DIR": Variable(
        "A folder: each graph that cannot be compiled or run is written to it, with its "
        "arguments and a script that runs it again, as `dort-rewriter report` asks for. Not "
        "those that run in torch because operators have no converter."
    ),
    "DORT_PROGRESS": Variable(
        "1: a first call, or an export, shows what it is doing, as verbose=1 does where it is "
        "taken: a bar for each phase of each graph where a terminal reads it and tqdm is "
        "installed, else lines of log. Without it, a line in the terminal says what a wait of "
        "more than 5 seconds is for, and is gone when it ends; 0: none. INFO lines say what "
        "took so long. Read at each phase."
    ),
    "DORT_DISABLE": Variable(
        "1: the package stays inert: nothing is hooked when torch is imported."
    ),
    "ORT_DISABLE_TELEMETRY": Variable(
        "A variable of onnxruntime, whose builds of 1.29 and newer send events to Microsoft "
        "unless it is 1. Where nothing has set it, and onnxruntime is not imported yet, this "
        "package sets it to 1 before it imports onnxruntime; 0 leaves that to onnxruntime.",
        default="1",
    ),
    "CXX": Variable(
        "The C++ compiler of our own kernels (patterns 'kernels'), as for torch's: when the "
        "package is installed, or at first use where that was not possible. A command with "
        "arguments is one too: 'ccache g++'.",
        default="c++",
    ),
}


def read(name: str) -> str:
    """The value of a variable of the table, or its default."""
    return os.environ.get(name, VARIABLES[name].default)


def is_on(name: str) -> bool:
    """Whether a variable of the table is exactly ``1``."""
    return read(name) == "1"


def is_set(name: str) -> bool:
    """Whether a variable of the table has a value of its own."""
    assert name in VARIABLES
    return name in os.environ


def set_default(name: str) -> None:
    """Give a variable of the table its default, for other libraries, if it has no value."""
    os.environ.setdefault(name, VARIABLES[name].default)


def extended(**variables: str) -> dict[str, str]:
    """The environment for another program: this process's, with these variables."""
    return {**os.environ, **variables}


@contextmanager
def temporarily(name: str, value: str) -> Iterator[None]:
    """Give a variable of the table a value within the block; then it is as it was, also unset."""
    assert name in VARIABLES
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
