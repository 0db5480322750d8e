"""Files that are there complete or not at all, and folders in which no other user can change one.

A file is written aside, then moved to its name.

Only from private folders is anything read back. A folder is private when it and all the folders
above it belong to this user or to root, and no other user can write to them. Above it, a folder
with the sticky bit (``/tmp``) is as good: what is ours there cannot be renamed or removed by
others.
Where the system has no users of this kind (Windows), nothing is asked.

Everything that goes wrong here is an :class:`OSError`, whose text is a sentence for the user.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp

from dort_rewriter import env

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """The folder of everything kept between processes, absolute; it may not exist yet."""
    if chosen := env.read("DORT_CACHE_DIR"):
        return Path(chosen).absolute()
    return _default_folder()


def spare_folder() -> Path:
    """Where to go when :func:`cache_folder` is not private: a folder for this user alone."""
    number = os.geteuid() if hasattr(os, "geteuid") else "user"
    return Path(tempfile.gettempdir()).absolute() / f"dort_rewriter-{number}"


def private_folder(folder: Path) -> Path:
    """The real path of a private folder, made with mode 0700 if it is missing."""
    _make(folder)
    _close_default(folder)
    real = folder.resolve(strict=True)
    if reason := why_not_private(real):
        raise PermissionError(reason)
    return real


def why_not_private(folder: Path) -> str:
    """Who else can change what is in a folder (a real path); empty when no other user can."""
    if not hasattr(os, "geteuid"):
        return ""
    for place in (folder, *folder.parents):
        status = place.stat()
        if status.st_uid not in (os.geteuid(), 0):
            return f"{place} belongs to another user (uid {status.st_uid})"
        sticky = place != folder and status.st_mode & stat.S_ISVTX
        if status.st_mode & _OTHERS and not sticky:
            return f"{place} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _default_folder() -> Path:
    of_programs = Path(env.read("XDG_CACHE_HOME"))
    if of_programs.is_absolute():
        return of_programs / "dort_rewriter"
    try:
        return Path.home() / ".cache" / "dort_rewriter"
    except RuntimeError as error:
        raise FileNotFoundError("there is no home folder: HOME is not set") from error


def _close_default(folder: Path) -> None:
    """Take the right to write from others where the folder is this package's alone.

    One that was made with a umask of 002 was open to a group; other folders are their owner's.
    """
    try:
        default = _default_folder()
        is_open = default in (folder, *folder.parents) and default.stat().st_mode & _OTHERS
    except FileNotFoundError:
        return
    if is_open and hasattr(os, "geteuid"):
        default.chmod(0o700)


def _make(folder: Path) -> None:
    """Make a folder and what is missing above it.

    NOTE: the mode is that of every new folder, whatever the umask: a cache below ``~/.cache`` that
    a umask of 002 left open to a group would not be private.
    """
    if folder.is_dir():
        return
    if not folder.parent.exists():
        _make(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


UNFINISHED = ".dort-new"
"""How the name of a file ends that is being written: ``.NAME-xxxxxxxx.dort-new``."""


@contextmanager
def staged(folder: Path, *, prefix: str = ".dort-", last: str = "") -> Iterator[Path]:
    """A folder to write to; at the end of the block what is in it moves to ``folder``.

    What has the same name there is replaced. The file named ``last``, which makes the others
    found, moves after them. Nothing is left of a block that raises, or of a move that fails.
    """
    with TemporaryDirectory(prefix=prefix, dir=folder) as name:
        yield Path(name)
        moved: list[Path] = []
        try:
            for path in sorted(Path(name).iterdir(), key=lambda p: (p.name == last, p.name)):
                os.replace(path, target := folder / path.name)
                moved.append(target)
        except OSError:
            for path in moved:
                path.unlink(missing_ok=True)
            raise


def write_whole(
    path: Path, content: bytes, *, finish: Callable[[Path], None] | None = None
) -> None:
    """Write a file that is never seen in part; its mode is 0600.

    ``finish`` is called with the file on the disk, before it gets its name.
    """
    # NOTE: the file itself is never written to, nor a link followed: others may share its content.
    handle, name = mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=UNFINISHED)
    aside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if finish is not None:
                file.flush()
                os.fsync(file.fileno())
        if finish is not None:
            finish(aside)
        os.replace(aside, path)
    except BaseException:  # an interruption as well
        aside.unlink(missing_ok=True)
        raise
