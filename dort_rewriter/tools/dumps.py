"""dump_onnx: collect the models that are exported while a block of code runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from dort_rewriter import env
from dort_rewriter.errors import OptionError
from dort_rewriter.runtime.model_files import restart_numbers

Stamp: TypeAlias = tuple[int, int, int]
"""What changes when a file is written again: its inode, its size, its time."""


@contextmanager
def dump_onnx(
    prefix: str, folder: str | Path | None = None, clean: bool = False
) -> Iterator[list[Path]]:
    """Write each graph exported within the block to ``<folder>/<prefix>_<N>.onnx`` and ``.txt``.

    Yields a list that holds the files written once the block has ended, also when it ended with
    an error. Blocks nest: the inner one takes the files. A graph is exported when it runs for the
    first time; what was compiled and run before the block writes nothing.

    Args:
        prefix: the beginning of each file name.
        folder: where the files go, created if needed; None is the current folder.
        clean: remove the files that earlier blocks wrote under this prefix, and count from 0.

    Raises:
        OptionError: the prefix is no file name, or the folder cannot be created.

    """
    if not prefix or Path(prefix).name != prefix:
        raise OptionError(
            f"dump_onnx: prefix is the beginning of a file name, not {prefix!r}; the folder is "
            "another argument: dump_onnx('model', folder='dumps')."
        )
    place = Path() if folder is None else Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"dump_onnx: the folder {str(place)!r} cannot be created: {error}."
        raise OptionError(text) from error
    # The path is absolute in the environment: the block may change the current folder.
    target = place.resolve()
    path_prefix = str(target / f"{prefix}_")
    if clean:
        for path in _dumped(target, prefix):
            path.unlink()
        restart_numbers(path_prefix)
    before = _stamps(target, prefix)
    written: list[Path] = []
    try:
        with env.temporarily("ONNXRT_DUMP_PATH", path_prefix):
            yield written
    finally:
        after = _stamps(target, prefix)
        written.extend(place / p.name for p, stamp in after.items() if before.get(p) != stamp)


def _dumped(folder: Path, prefix: str) -> list[Path]:
    """The files of this prefix by number; a longer prefix is another one."""
    name = re.compile(rf"{re.escape(prefix)}_(\d+)\.(?:onnx|onnx\.data|txt)")
    found = [(match, path) for path in folder.iterdir() if (match := name.fullmatch(path.name))]
    return [
        path
        for _, path in sorted(found, key=lambda f: (int(f[0][1]), f[1].name))
        if path.is_file()
    ]


def _stamps(folder: Path, prefix: str) -> dict[Path, Stamp]:
    if not folder.is_dir():  # removed within the block
        return {}
    stats = {path: path.stat() for path in _dumped(folder, prefix)}
    return {path: (s.st_ino, s.st_size, s.st_mtime_ns) for path, s in stats.items()}
