"""What saves that were killed have left in a folder: removed by the next one, if no other runs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from dort_rewriter.deployment.folder import DESCRIPTION, files_of

if sys.platform != "win32":
    import fcntl

__all__ = ["ASIDE", "saving_to"]

logger = logging.getLogger(__name__)

ASIDE = ".dort-save-"
"""How the names of folders begin that a save writes to."""

_OURS = re.compile(r"(model|backward|tensors|parts)-[0-9a-f]{12}\.(onnx|onnx\.data|bin)")


@contextlib.contextmanager
def saving_to(folder: Path) -> Iterator[None]:
    """Tell other processes that this one saves to a folder; remove what none is going to name.

    A lock on the folder ends with its process. Where there are no locks nothing is removed.
    """
    if sys.platform == "win32":  # where a folder cannot be opened
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # another process saves, or there are no locks
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(folder)
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process forked meanwhile has the handle too
        os.close(handle)


def _remove_leftovers(folder: Path) -> None:
    named = files_of(folder) if (folder / DESCRIPTION).exists() else None
    for path in list(folder.iterdir()):
        try:
            if path.name.startswith(ASIDE) and path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif named and path.name not in named and _OURS.fullmatch(path.name):
                path.unlink()  # it was moved, and its description was not
        except OSError as error:  # noqa: PERF203 - the others go
            logger.info("%s, which a save has left, stays: %s", path, error)
