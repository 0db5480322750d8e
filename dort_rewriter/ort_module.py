"""Which onnxruntime is installed, and what it can load.

NOTE: the flavours (onnxruntime, onnxruntime-gpu, onnxruntime-training ...) install the same module
and overwrite each other: only what the imported module can do is certain.
NOTE: onnx is imported where it is needed, here and beside: saved models are loaded without it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from dort_rewriter import env
from dort_rewriter.errors import ExecutionError

if TYPE_CHECKING:
    import onnx
    import onnxruntime

_INSTALL = (
    "Install one flavour: `pip install dort-rewriter[cpu]`, `dort-rewriter[gpu]`, or (Python "
    "<= 3.11) `dort-rewriter[training]`."
)
_PLUG_INS = re.compile(r"onnxruntime-(ep-.+|qnn|ggml)")
"""The names of packages that bring a provider as a plug-in: their module says its name, and where
its library is. NOTE: some were builds of all of onnxruntime before, and bring its module then."""

_BATCH_API = (("OrtValueVector", "push_back_batch"), ("OrtValueVector", "to_dlpacks"))


def plug_ins(*others: str) -> dict[str, importlib.metadata.Distribution]:
    """The installed packages with plug-ins by name, and ``others`` where they are installed."""
    every = {
        str(d.metadata["Name"] or "").lower().replace("_", "-"): d
        for d in importlib.metadata.distributions()
    }
    return {n: every[n] for n in sorted(every) if _PLUG_INS.fullmatch(n) or n in others}


@functools.cache
def load_onnxruntime() -> ModuleType:
    """Import onnxruntime and check that it exchanges tensors without a copy.

    Raises :class:`ExecutionError` that says what to install otherwise.

    NOTE: nothing is to be sent by a program that only compiles a model: who imports onnxruntime
    first, or sets the variable, decides for the process.
    """
    if "onnxruntime" not in sys.modules:
        env.set_default("ORT_DISABLE_TELEMETRY")
    try:
        with _quiet_import():
            ort = importlib.import_module("onnxruntime")
            state = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    except ImportError as error:
        raise ExecutionError(f"onnxruntime cannot be imported ({error}). {_INSTALL}") from error
    for owner, method in _BATCH_API:
        if not hasattr(getattr(state, owner, None), method):
            raise ExecutionError(
                f"onnxruntime {getattr(ort, '__version__', '(unknown version)')} has no "
                f"{owner}.{method}: onnxruntime >= 1.21 or onnxruntime-training >= 1.19 is "
                f"needed. {_INSTALL}"
            )
    return ort


def bindings() -> ModuleType:
    """Onnxruntime's compiled module, where OrtValueVector and OrtDevice are."""
    load_onnxruntime()
    return importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")


@contextmanager
def _quiet_import() -> Iterator[None]:
    # onnxruntime-training warns about a missing CUDA runtime, by `warnings` and through torch's
    # logger, on every machine without a GPU.
    log = logging.getLogger("torch.utils.cpp_extension")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


@functools.cache
def describe() -> str:
    """The installed distributions that provide onnxruntime: ``onnxruntime-gpu 1.21.0``."""
    ort = load_onnxruntime()
    # NOTE: importlib.metadata.packages_distributions() reads all there is about every
    # distribution, which takes longer than to export a small model.
    found = {
        f"{d.metadata['Name']} {d.version}"
        for d in importlib.metadata.distributions()
        if "onnxruntime" in (d.read_text("top_level.txt") or "").split()
    }
    return ", ".join(sorted(found)) or f"onnxruntime {ort.__version__}"


@functools.cache
def max_ir_version() -> int:
    """The newest ONNX IR version that the installed onnxruntime loads."""
    import onnx

    return _newest(onnx.IR_VERSION, lowest=3, ir_version=None)


@functools.cache
def max_opset() -> int:
    """The newest opset of the default domain that the installed onnxruntime loads."""
    import onnx

    return _newest(onnx.defs.onnx_opset_version(), lowest=7, ir_version=max_ir_version())


def _newest(start: int, *, lowest: int, ir_version: int | None) -> int:
    for candidate in range(start, lowest, -1):
        model = (
            _identity(ir_version=candidate, opset=lowest + 10)
            if ir_version is None
            else _identity(ir_version=ir_version, opset=candidate)
        )
        if _loads(model):
            return candidate
    raise ExecutionError(f"{describe()} loads no ONNX model at all. {_INSTALL}")


def _identity(*, ir_version: int, opset: int) -> onnx.ModelProto:
    import onnx

    versions = f'ir_version: {ir_version}, opset_import: ["" : {opset}]'
    text = f"<{versions}> probe (float[n] x) => (float[n] y) {{ y = Identity(x) }}"
    return onnx.parser.parse_model(text)


def quiet_options() -> onnxruntime.SessionOptions:
    """Options of a session that tries something, in this thread and without a word."""
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def _loads(model: onnx.ModelProto) -> bool:
    try:
        load_onnxruntime().InferenceSession(
            model.SerializeToString(), quiet_options(), providers=["CPUExecutionProvider"]
        )
    except (bindings().Fail, bindings().InvalidArgument, bindings().InvalidGraph):
        return False
    return True
