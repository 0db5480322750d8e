"""Files that are there complete or not at all: written aside, then moved to their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, mkstemp

__all__ = ["UNFINISHED", "staged", "write_whole"]

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
    """Write a file that nobody ever sees in part; its mode is 0600.

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
