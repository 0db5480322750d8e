"""Kernels of our own: a C++ library of operators of the domain ``dort_rewriter``, built on demand.

It is compiled once per machine by the compiler that torch's extensions use, and kept in a folder
of the user. NOTE: it is compiled for the processor at hand, so its name depends on what that
processor can do: folders may be shared between machines.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from dort_rewriter import env
from dort_rewriter.errors import ExecutionError
from dort_rewriter.graph.schemas import OWN_DOMAIN
from dort_rewriter.runtime.installed import bindings, describe, load_onnxruntime
from dort_rewriter.runtime.private_folder import cache_folder

if TYPE_CHECKING:
    import onnxruntime

    from dort_rewriter.runtime.model_files import Model

__all__ = ["DOMAIN", "custom_ops_library", "is_available", "register", "uses_custom_kernels"]

logger = logging.getLogger(__name__)

DOMAIN = OWN_DOMAIN
"""The domain of the operators."""

_SOURCES = Path(__file__).parent / "kernels_cpp"
_LIMIT = 300.0
"""Seconds that a compiler gets."""

_registered: weakref.WeakSet[onnxruntime.SessionOptions] = weakref.WeakSet()
"""Options that know the library: registering it twice makes them useless."""


def custom_ops_library() -> str:
    """Return the path of the library, for ``SessionOptions.register_custom_ops_library``.

    It is compiled if need be. Raises :class:`ExecutionError` when there is no compiler.
    """
    return str(_build())


@functools.cache
def is_available() -> bool:
    """Tell whether the library can be made and loaded; why not is said once."""
    try:
        register(load_onnxruntime().SessionOptions())
    except ExecutionError as error:
        logger.warning("No rule that needs a kernel of our own is applied: %s", error)
        return False
    return True


def uses_custom_kernels(model: Model) -> bool:
    """Tell whether a model imports the domain."""
    if isinstance(model, bytes):
        return DOMAIN.encode() in model  # at worst a library is loaded for nothing
    if isinstance(model, onnx.ModelProto):
        return any(opset.domain == DOMAIN for opset in model.opset_import)
    return isinstance(model, ir.Model) and DOMAIN in model.graph.opset_imports


def register(options: onnxruntime.SessionOptions) -> None:
    """Make the operators known to the sessions built with these options."""
    if options in _registered:
        return
    path, state = custom_ops_library(), bindings()
    try:
        options.register_custom_ops_library(path)
    except (state.Fail, state.InvalidArgument, state.RuntimeException, RuntimeError) as error:
        raise ExecutionError(f"{describe()} cannot load {path}: {error}") from error
    _registered.add(options)


@functools.cache
def _build() -> Path:
    compiler, flags = _compiler(), _flags()
    target = cache_folder() / f"kernels-{_key(compiler, flags)}.so"
    if not target.exists():
        _compile(compiler, flags, target)
    return target


def _compiler() -> str:
    name = env.read("CXX")
    if (found := shutil.which(name)) is None:
        raise ExecutionError(
            f"there is no C++ compiler {name!r}: install one, or name it in the variable CXX."
        )
    return found


def _flags() -> list[str]:
    """Return the flags: vectors, and results that are those of single operators bit for bit."""
    flags = ["-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"]
    flags += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    return [*flags, "-march=native"] if _processor() else flags


@functools.cache
def _processor() -> str:
    """Return what the processor can do, where it is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    wanted = ("flags", "features", "model name", "cpu part")
    found = [line for line in lines if line.lower().startswith(wanted)]
    return "\n".join(sorted(set(found)))


def _key(compiler: str, flags: list[str]) -> str:
    """Return what identifies the library: sources, compiler, flags, processor."""
    version = _run([compiler, "--version"]).stdout
    digest = hashlib.sha256()
    for part in (compiler, version, *flags, platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:20]


def _compile(compiler: str, flags: list[str], target: Path) -> None:
    """Compile to a name of its own first: another process may be doing the same."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(suffix=".so", dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise ExecutionError(
            f"{target.parent} cannot be written ({error}): DORT_CACHE_DIR names another folder."
        ) from error
    try:
        done = _run([compiler, *flags, str(_SOURCES / "library.cpp"), "-o", temporary])
        if done.returncode != 0:
            raise ExecutionError(f"{compiler} cannot compile the kernels: {done.stderr[-2000:]}")
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    logger.info("Kernels compiled by %s to %s.", compiler, target)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutionError(f"{command[0]} cannot be run: {error}.") from error
