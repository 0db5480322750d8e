"""The hook written into torch's own file, for people who patch sources: check, apply, revert.

A file is known by its SHA-256 or left alone. It is replaced as a whole, so that it is never half
patched. The diffs only add lines, and show none of the file they are for.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dort_rewriter.errors import HookError
from dort_rewriter.files import write_whole
from dort_rewriter.hook.versions import BACKEND_FILE, OLDEST, PRISTINE, REMOVED_IN

State = Literal["pristine", "patched", "unknown"]

Additions = list[tuple[int, list[str]]]
"""Lines that are added, after which line of the original."""

_ADDITION = re.compile(r"@@ -(\d+),0 \+\d+(?:,\d+)? @@")


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """What is known of a file of torch."""

    path: Path
    state: State
    """``pristine``: as torch ships it; ``patched``: that, with our lines, and nothing else."""
    series: tuple[str, ...] = ()
    """The series of torch that ship it."""
    pristine: bytes = b""
    """Its content without our lines."""


def find_torch_file() -> Path:
    """The file of the installed torch that is to be patched; torch is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise HookError("torch is not installed here: name its file with --torch-file.")
    path = Path(spec.origin).parent / BACKEND_FILE
    if not path.exists():
        first, removed = (".".join(map(str, series)) for series in (OLDEST, REMOVED_IN))
        raise HookError(
            f"{path} does not exist: torch has it from {first} until before {removed}. From "
            f"{removed} on, backend='onnxrt' comes with dort_rewriter; there is nothing to patch."
        )
    return path


def diff_of(series: str) -> Path:
    """The diff for a series of torch: inside an installed package, beside it in a clone."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "patches"
    folder = inside if inside.is_dir() else package.parent / "patches"
    return folder / f"torch-{series}" / f"{Path(BACKEND_FILE).stem}.diff"


def check(path: Path) -> SourceFile:
    """Tell a file as torch ships it from one with our lines, and these from any other."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HookError(f"Cannot read {path}: {error.strerror}.") from error
    if series := _series_of(content):
        return SourceFile(path=path, state="pristine", series=series, pristine=content)
    for name in PRISTINE:
        without = _revert(content, name)
        if without is not None and (series := _series_of(without)):
            return SourceFile(path=path, state="patched", series=series, pristine=without)
    return SourceFile(path=path, state="unknown")


def apply(path: Path) -> SourceFile:
    """Add our lines to a file as torch ships it; one that has them stays as it is."""
    found = _known(path)
    if found.state == "patched":
        return found
    lines = found.pristine.decode().splitlines(keepends=True)
    for after, added in reversed(_additions(found.series[0])):
        lines[after:after] = added
    patched = "".join(lines)
    compile(patched, str(path), "exec")  # a file that Python cannot read must never be written
    _replace(path, patched.encode())
    return check(path)


def revert(path: Path) -> SourceFile:
    """Take our lines out: the file is what torch ships, to the byte."""
    found = _known(path)
    if found.state == "patched":
        _replace(path, found.pristine)
    return check(path)


def _known(path: Path) -> SourceFile:
    found = check(path)
    if found.state == "unknown":
        raise HookError(
            f"{path} is not a file that torch {', '.join(PRISTINE)} ships, nor one with our lines "
            "in it: it is left alone. Someone else changed it, or it belongs to another version."
        )
    return found


def _series_of(content: bytes) -> tuple[str, ...]:
    digest = hashlib.sha256(content).hexdigest()
    return tuple(series for series, known in PRISTINE.items() if known == digest)


def _additions(series: str) -> Additions:
    """What the diff for a series of torch adds."""
    found: Additions = []
    for line in diff_of(series).read_text(encoding="utf-8").splitlines(keepends=True)[2:]:
        if header := _ADDITION.match(line):
            found.append((int(header[1]), []))
        else:
            found[-1][1].append(line.removeprefix("+"))
    return found


def _revert(content: bytes, series: str) -> bytes | None:
    """A file without our lines; None if they are not all where they should be."""
    try:
        lines = content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None
    for after, added in _additions(series):
        # What stood before these is out already: their place is that of the original.
        if lines[after : after + len(added)] != added:
            return None
        del lines[after : after + len(added)]
    return "".join(lines).encode()


def _replace(path: Path, content: bytes) -> None:
    # NOTE: never into the file itself, nor through a link: installers link it from their cache,
    # and the content would change in every other environment.
    try:
        write_whole(path, content, finish=functools.partial(_copy_rights, path))
    except OSError as error:
        raise HookError(f"Cannot replace {path}: {error}.") from error


def _copy_rights(path: Path, aside: Path) -> None:
    """Give a file the owner, the group and the mode of another; OSError when they cannot be kept.

    NOTE: a change of the owner takes bits of the mode away, so it comes first.
    """
    if hasattr(os, "chown"):
        wanted, made = path.stat(), aside.stat()
        if (made.st_uid, made.st_gid) != (wanted.st_uid, wanted.st_gid):
            os.chown(aside, wanted.st_uid, wanted.st_gid)
    shutil.copymode(path, aside)
