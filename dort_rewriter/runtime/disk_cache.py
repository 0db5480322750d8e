"""Bytes kept between processes, by key: files in a private folder, bounded, checked when read.

Every file holds the digest of its content first: what is damaged is ignored. Files are written
under another name and moved, so that a reader sees all of one or nothing; they are private to
the user, and a folder others can write to is not used.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
import tempfile
from pathlib import Path

from dort_rewriter import env
from dort_rewriter.runtime.private_folder import cache_folder

__all__ = ["LIMIT", "DiskCache", "disk_cache"]

logger = logging.getLogger(__name__)

LIMIT = 512 * 2**20
"""Bytes a cache keeps; the entries used least recently go first."""

_DIGEST = hashlib.sha256().digest_size


class DiskCache:
    """One folder of entries. What goes wrong is logged once and treated as an empty cache."""

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self._usable: bool | None = None
        self._complained = False

    def get(self, key: str) -> bytes | None:
        """Return the bytes stored under a key; None when there are none, or damaged ones."""
        if not self._is_usable():
            return None
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._complain(f"{path} cannot be read: {error}")
            return None
        digest, data = content[:_DIGEST], content[_DIGEST:]
        if hashlib.sha256(data).digest() != digest:
            self._complain(f"{path} is damaged and was removed")
            path.unlink(missing_ok=True)
            return None
        self._touch(path)
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key; others that write the same key at the same time do no harm."""
        if not self._is_usable() or len(data) > self.limit // 4:
            return
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(prefix=".new-", dir=self.folder)  # mode 0600
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(temporary, self._path(key))
        except OSError as error:
            self._complain(f"{self.folder} cannot be written: {error}")
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            return
        self._shrink()

    def clear(self) -> None:
        """Remove every entry."""
        for path in self._entries():
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.model"

    def _entries(self) -> list[Path]:
        return list(self.folder.glob("*.model"))

    def _shrink(self) -> None:
        """Remove the entries used least recently when there are too many bytes."""
        found = []
        for path in self._entries():
            try:
                status = path.stat()
            except OSError:
                continue  # another process removed it
            found.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= size

    @staticmethod
    def _touch(path: Path) -> None:
        try:
            os.utime(path)
        except OSError:
            logger.debug("%s was removed meanwhile", path)

    def _is_usable(self) -> bool:
        if self._usable is None:
            self._usable = self._prepare()
        return self._usable

    def _prepare(self) -> bool:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.folder.stat()
        except OSError as error:
            self._complain(f"{self.folder} cannot be made: {error}")
            return False
        if not hasattr(os, "getuid"):
            return True
        others = stat.S_IWGRP | stat.S_IWOTH
        if status.st_uid != os.getuid() or status.st_mode & others:
            self._complain(f"{self.folder} belongs to others, or they can write to it")
            return False
        return True

    def _complain(self, what: str) -> None:
        if not self._complained:
            logger.warning("Cache of models: %s. DORT_CACHE_DIR names another folder.", what)
        self._complained = True


@functools.cache
def _cache_of(folder: str) -> DiskCache:
    return DiskCache(Path(folder))


def disk_cache() -> DiskCache | None:
    """Return the cache of models, or None when it is switched off."""
    if env.read("DORT_CACHE") == "0":
        return None
    return _cache_of(str(cache_folder() / "models"))
