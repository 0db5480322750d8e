"""The file of our own kernels that is loaded: the installed one, else one compiled at first use.

The installed one stands beside this file, with the package: who can change it can change the
package. One that was compiled stands in a private folder, with its digest beside it, and is made
again when it is not what was written. Nothing else is ever loaded.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dort_rewriter import env
from dort_rewriter.errors import ExecutionError
from dort_rewriter.files import cache_folder, private_folder, spare_folder, staged
from dort_rewriter.kernels import build as kernel_build
from dort_rewriter.kernels.build import Level
from dort_rewriter.progress import shown

if sys.platform != "win32":  # where none of this is compiled
    import fcntl

logger = logging.getLogger(__name__)

_BUILDING = "building-"
"""How the folders begin in which a compiler is at work."""
_PAUSE = 0.05
"""Seconds between two looks at a lock."""


@functools.cache
def kernel_library() -> Path:
    """The library for this processor.

    Raises :class:`ExecutionError` when none is installed and none can be compiled.
    """
    if (found := installed_library()) is not None:
        return found
    return _compiled_library(kernel_build.supported_levels()[0])


def installed_library() -> Path | None:
    """The best library of the installation that runs here and was made from these sources."""
    for level in kernel_build.supported_levels():
        path = kernel_build.find_installed(kernel_build.BUILT, level)
        if path is None:
            continue
        try:
            ctypes.CDLL(str(path))
        except OSError as error:  # made for another system
            logger.info("The installed kernels cannot be loaded: %s", error)
            continue
        return path
    if kernel_build.BUILT.exists():
        logger.info("The kernels in %s are not of these sources, or damaged.", kernel_build.BUILT)
    return None


def _compiled_library(level: Level) -> Path:
    """The library that a compiler made here, now or earlier."""
    if why := kernel_build.excuse():
        raise ExecutionError(f"{why}: everything else works without them.")
    named = env.read("CXX")
    if (compiler := kernel_build.find_compiler(named)) is None:
        raise ExecutionError(
            f"there is no C++ compiler {named!r}: install one, or name it in the variable CXX."
        )
    name = f"kernels-{level.name}-{_key(compiler, level)}.so"
    reasons: list[str] = []
    for folder in _private_folders(reasons):
        library = folder / name
        made = _is_whole(library)
        if not made and not os.access(folder, os.W_OK | os.X_OK):
            reasons.append(f"{folder} cannot be written")
            continue
        if reasons:
            logger.warning("Kernels are kept in %s: %s.", folder, "; ".join(reasons))
        if not made:
            _compile_once(compiler, level, library)
        return library
    raise ExecutionError(
        f"there is no private folder to compile to ({'; '.join(reasons)}): DORT_CACHE_DIR names "
        "another one."
    )


def _private_folders(reasons: list[str]) -> Iterator[Path]:
    """Yield where compiled libraries may be, best first; add why not elsewhere to the reasons.

    NOTE: the folder above is asked first. In one of mode 1777 a folder of ours would be safe, but
    no user expects code to be loaded from there.
    """
    for choose in (cache_folder, spare_folder):
        try:
            folder = private_folder(private_folder(choose()) / "kernels")
        except OSError as error:
            reasons.append(str(error))
            continue
        yield folder


def _compile_once(compiler: Sequence[str], level: Level, library: Path) -> None:
    """Compile while no other process does, unless one has just done it."""
    try:
        with _locked(library.parent / "lock") as alone:
            if _is_whole(library):
                return
            if alone:
                _sweep(library.parent)
            with shown("Compiling the kernels of this package, once for this machine"):
                _compile(compiler, level, library)
    except OSError as error:
        raise ExecutionError(
            f"{library.parent} cannot be written ({error}): DORT_CACHE_DIR names another folder."
        ) from error


def _key(compiler: Sequence[str], level: Level) -> str:
    """What identifies the library: what it is made from, and by whom.

    NOTE: the version of a compiler names the system it belongs to. Machines that share a home
    folder may not be able to load each other's libraries.
    """
    parts = [kernel_build.recipe(level), *compiler]
    version = _run([*compiler, "--version"]).stdout
    return hashlib.sha256("\0".join(parts).encode(errors="replace") + version).hexdigest()[:20]


def _digest_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _is_whole(library: Path) -> bool:
    """Whether a library is what was written when it was compiled."""
    try:
        expected = _digest_file(library).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return False
    return kernel_build.digest(library) == expected


def _compile(compiler: Sequence[str], level: Level, library: Path) -> None:
    """Compile aside, and let the library have its name when it is on the disk."""
    noted = _digest_file(library)
    # A library without its digest is made again; a digest without its library is not found.
    with (
        tempfile.TemporaryDirectory(prefix=_BUILDING, dir=library.parent) as name,
        staged(library.parent, prefix=_BUILDING, last=noted.name) as aside,
    ):
        made = aside / library.name
        done = _run(kernel_build.command(compiler, level, made), Path(name))
        if done.returncode != 0 or not made.exists():
            said = done.stderr.decode(errors="replace")[-2000:]
            raise ExecutionError(f"{compiler[0]} cannot compile the kernels: {said}")
        (aside / noted.name).write_text(f"{kernel_build.digest(made)}\n", encoding="ascii")
        for path in aside.iterdir():
            path.chmod(0o600)
            _to_disk(path)
    _to_disk(library.parent)
    logger.info("Kernels compiled by %s to %s.", compiler[0], library)


def _to_disk(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, would survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _run(command: Sequence[str], folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a compiler; what it writes on the side goes to a folder."""
    try:
        return subprocess.run(
            command,
            env=None if folder is None else env.extended(TMPDIR=str(folder)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=kernel_build.TIME_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutionError(f"{command[0]} cannot be run: {error}.") from error


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Wait for a lock, which ends with the process that holds it; tell whether it was got.

    Without it, where a file system has none or its holder is stopped, one compiles all the same.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    got = False
    try:
        got = _wait_for(handle)
        yield got
    finally:
        if got:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile has the handle too
        os.close(handle)


def _wait_for(handle: int) -> bool:
    end = time.monotonic() + kernel_build.TIME_LIMIT
    while (taken := _try_lock(handle)) is None and time.monotonic() < end:
        time.sleep(_PAUSE)
    return bool(taken)


def _try_lock(handle: int) -> bool | None:
    """Take a lock; None when another process has it, False when there are no locks here."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        logger.debug("No lock: %s", error)
        return False
    return True


def _sweep(folder: Path) -> None:
    """Remove what compilers left whose process was ended; who holds the lock is alone."""
    for path in folder.glob(f"{_BUILDING}*"):
        shutil.rmtree(path, ignore_errors=True)
