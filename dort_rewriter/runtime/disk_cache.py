"""Bytes kept between processes, by key: files in a private folder, bounded, checked when read.

Every file holds the digest of its key and its content first: what is damaged, or stands under
another name, is ignored.

NOTE: the folder may be one that a user chose, with files of the user's in it: nothing is counted
or removed but regular files with names that this module gives.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from dort_rewriter import env
from dort_rewriter.files import UNFINISHED, cache_folder, private_folder, write_whole

logger = logging.getLogger(__name__)

FOLDER = "dort_rewriter_models"
"""The name of the folder, in the folder of everything kept between processes."""
LIMIT = 512 * 2**20
"""Bytes a cache keeps; the entries used least recently go first."""

_DIGEST = hashlib.sha256().digest_size
_ENTRY = re.compile(r"[0-9a-f]{64}\.dort-model")
_UNFINISHED = re.compile(rf"\.[0-9a-f]{{64}}-[a-z0-9_]{{8}}{re.escape(UNFINISHED)}")
_ABANDONED = 3600.0
"""Seconds after which no process is writing a file any more."""


class DiskCache:
    """One folder of entries. What goes wrong is logged once and treated as an empty cache."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self._usable: bool | None = None
        self._complained = False

    def get(self, key: str) -> bytes | None:
        """The bytes stored under a key (a SHA-256 digest in hexadecimal); None when there are
        none, or damaged ones."""
        if not self._is_usable():
            return None
        path = self._path(key)
        try:
            if not stat.S_ISREG(path.lstat().st_mode):
                raise OSError("it is no regular file")
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(f"{path} cannot be read: {error}")
            return None
        digest, data = content[:_DIGEST], content[_DIGEST:]
        if _digest_of(key, data) != digest:
            self.reject(key)
            return None
        self._touch(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key; others that write the same key at the same time do no harm."""
        if not self._is_usable() or len(data) > self.limit // 4:
            return
        try:
            write_whole(self._path(key), _digest_of(key, data) + data)
            self._shrink()
        except OSError as error:
            self._complain(f"{self.folder} cannot be written: {error}")

    def reject(self, key: str) -> None:
        """Remove an entry that is of no use."""
        path = self._path(key)
        removed = _remove(path)
        self._complain(f"{path} is damaged and was {'removed' if removed else 'not used'}")

    def clear(self) -> None:
        """Remove every entry."""
        for path, _ in self._files(_ENTRY) if self._is_usable() else ():
            _remove(path)

    def _path(self, key: str) -> Path:
        path = self.folder / f"{key}.dort-model"
        assert _ENTRY.fullmatch(path.name), "an entry of this name would never be removed"
        return path

    def _files(self, name: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files of this module that have such a name."""
        with os.scandir(self.folder) as found:
            entries = [entry for entry in found if name.fullmatch(entry.name)]
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # another process removed it
            if stat.S_ISREG(status.st_mode):
                yield Path(entry.path), status

    def _shrink(self) -> None:
        """Remove the entries used least recently when there are too many bytes, and what
        processes that died left behind."""
        for path, status in self._files(_UNFINISHED):
            if status.st_mtime < time.time() - _ABANDONED:
                _remove(path)
        found = [(s.st_mtime, s.st_size, path) for path, s in self._files(_ENTRY)]
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                return
            _remove(path)
            total -= size

    @staticmethod
    def _touch(path: Path) -> None:
        try:
            os.utime(path)
        except OSError:
            logger.debug("%s was removed meanwhile, or cannot be written", path)

    def _is_usable(self) -> bool:
        if self._usable is None:
            try:
                self.folder = private_folder(self.folder)
                self._usable = True
            except OSError as error:
                self._complain(str(error))
                self._usable = False
        return self._usable

    def _complain(self, what: str) -> None:
        if not self._complained:
            logger.warning("Cache of models: %s. DORT_CACHE_DIR names another folder.", what)
        self._complained = True


def _digest_of(key: str, data: bytes) -> bytes:
    digest = hashlib.sha256(key.encode())
    digest.update(data)
    return digest.digest()


def _remove(path: Path) -> bool:
    """Remove a file if it can be removed: in a folder that is read only it stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.debug("%s cannot be removed: %s", path, error)
        return False
    return True


@functools.cache
def _cache_of(folder: str) -> DiskCache:
    return DiskCache(Path(folder))


@functools.cache
def _say_once(what: str) -> None:
    logger.warning("Cache of models: %s. DORT_CACHE_DIR names a folder.", what)


def disk_cache() -> DiskCache | None:
    """The cache of models, or None when it is switched off or has no place."""
    if env.read("DORT_CACHE") == "0":
        return None
    try:
        folder = cache_folder() / FOLDER
    except OSError as error:
        _say_once(str(error))
        return None
    return _cache_of(str(folder))
