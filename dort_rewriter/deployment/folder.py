"""The folder of a saved model: a description in JSON, ONNX models, tensors as in memory.

The description (``saved.json``) names the other files by what is in them, with sizes and digests:
it is written last, so that a folder always has one complete model, the old or the new.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import math
import os
import stat
import weakref
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from dort_rewriter.deployment.plain import expect
from dort_rewriter.deployment.serialization import MOST_DIMENSIONS
from dort_rewriter.deployment.shared_parts import Insertion, Part, join
from dort_rewriter.errors import ExecutionError
from dort_rewriter.files import staged
from dort_rewriter.ort_module import describe
from dort_rewriter.runtime.model_files import (
    Model,
    StoredModel,
    check_message,
    from_message,
    map_weights,
)
from dort_rewriter.signature import inverse_order

logger = logging.getLogger(__name__)

DESCRIPTION = "saved.json"
FORMAT = 6
"""Raised when a description means something else."""

_ALIGNMENT = 64
_CHUNK = 2**22


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in the file of tensors, or in a module."""

    name: str
    """Its name in the module; of a constant, a name in no module."""
    kind: Literal["parameter", "buffer", "constant"]
    dtype: torch.dtype
    shape: tuple[int, ...]
    device: torch.device
    written: bool
    """Whether calls write to it."""
    order: tuple[int, ...] = ()
    """Its dimensions, from the slowest to the fastest in memory."""
    offset: int | None = None
    """Where it begins in the file; None when it is not there."""

    @property
    def bytes(self) -> int:
        """How much memory it takes."""
        return self.dtype.itemsize * math.prod(self.shape)

    def __post_init__(self) -> None:
        """Refuse what no tensor is."""
        expect(len(self.shape) <= MOST_DIMENSIONS, "shape", self.shape)
        ranks = list(range(len(self.shape)))
        expect(sorted(self.order) == ranks, f"order of {self.shape}", self.order)
        expect(self.device.type in ("cpu", "cuda"), "device of a tensor", str(self.device))


def made_by() -> dict[str, str]:
    """The versions that a saved model belongs to."""
    own = importlib.import_module(__name__.partition(".")[0])
    return {
        "torch": str(torch.__version__),
        "onnxruntime": describe(),
        "dort_rewriter": str(own.__version__),
    }


def spell_versions(versions: Mapping[str, str]) -> str:
    """Versions in words."""
    return ", ".join(v if k in v else f"{k} {v}" for k, v in versions.items()) or "no version"


# -- the description ----------------------------------------------------------------------------


def write_description(content: Mapping[str, Any], folder: Path, aside: Path) -> None:
    """Move files to a folder, then the description that names them; older ones go.

    The files lie in a folder of their own (`aside`), and have names that no others have.
    """
    text = json.dumps({"format": FORMAT, **content}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    before = files_of(folder)
    new = {entry["file"] for entry in content["files"].values()}
    whole = f'{{"sha256": "{digest}",\n"content": {text}}}\n'
    with staged(folder, prefix=aside.name, last=DESCRIPTION) as last:
        for name in new:
            os.replace(aside / name, last / name)
        (last / DESCRIPTION).write_text(whole, encoding="utf-8")
    for name in before - new:
        (folder / name).unlink(missing_ok=True)


def files_of(folder: Path) -> set[str]:
    """The files that the description in a folder names; none when it cannot be read."""
    try:
        content = read_description(folder)
        return {file_name(f["file"]) for f in content["files"].values()}
    except (ExecutionError, LookupError, TypeError, ValueError, AttributeError):
        return set()


def read_description(folder: Path) -> dict[str, Any]:
    """The description in a folder; :class:`ExecutionError` when there is none that is whole."""
    path = folder / DESCRIPTION
    if not path.exists():
        raise ExecutionError(
            f"{folder} holds no saved model: {DESCRIPTION} is missing. "
            "dort_rewriter.save(compiled, path) writes one."
        )
    handle = _open_file(path)
    try:
        found = _read_all(handle).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutionError(f"{path} cannot be read: {error}.") from error
    finally:
        os.close(handle)
    try:
        whole = json.loads(found)
        content = whole["content"]
        spelled = json.dumps(content, sort_keys=True)
        is_whole = hashlib.sha256(spelled.encode()).hexdigest() == whole["sha256"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ExecutionError(f"{path} is damaged: save the model again ({error}).") from error
    if not is_whole or not isinstance(content, dict):
        raise _damaged(path)
    if content.get("format") != FORMAT:
        raise ExecutionError(
            f"{path} is of format {content.get('format')!r}, this dort_rewriter reads {FORMAT}: "
            "save the model again."
        )
    return content


def file_name(name: Any) -> str:
    """The name of a file in the folder; :class:`ValueError` for a way out of it."""
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith("."):
        raise ValueError(f"{name!r} names no file of the folder")
    return name


def file_entry(path: Path) -> dict[str, Any]:
    """What a description says of a file."""
    return {"file": path.name, "bytes": path.stat().st_size, "digest": _crc(path)}


def checked_file(folder: Path, entry: Mapping[str, Any], *, whole: bool = True) -> Path:
    """The path of a file that a description names.

    :class:`ExecutionError` when it is missing, of another size, or, read as a whole, another.
    """
    path = folder / file_name(entry["file"])
    try:
        status = path.lstat()
    except OSError as error:
        raise ExecutionError(f"{path} is missing: save the model again ({error}).") from error
    if not stat.S_ISREG(status.st_mode):
        raise _damaged(path, "it is no file")
    if status.st_size != entry["bytes"]:
        raise _damaged(path, f"it has {status.st_size} bytes, not {entry['bytes']}")
    if whole and _crc(path) != entry["digest"]:
        raise _damaged(path)
    return path


def _damaged(path: Path, why: str = "its digest is another") -> ExecutionError:
    return ExecutionError(f"{path} is damaged: {why}; save the model again.")


def _open_file(path: Path) -> int:
    """A handle of a file, to read it; :class:`ExecutionError` when it is none.

    NOTE: to open a pipe waits for who writes to it, unless it is opened so.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise ExecutionError(f"{path} cannot be read: {error}.") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _damaged(path, "it is no file")
    return handle


def _read_all(handle: int) -> bytes:
    """The content of a file, wherever another process that has the handle reads."""
    pieces, position = [], 0
    while piece := _read_at(handle, _CHUNK, position):
        pieces.append(piece)
        position += len(piece)
    return b"".join(pieces)


def _read_at(handle: int, size: int, position: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, size, position)
    os.lseek(handle, position, os.SEEK_SET)
    return os.read(handle, size)


class FormFile:
    """What a provider has compiled of a model of a folder, behind its key: a file that is read
    when it is asked for. While a model is saved, what is compiled of it is kept in `made`."""

    def __init__(self, folder: Path, entry: Mapping[str, Any] | None, *, holds: bool) -> None:
        self._entry, self._holds = entry, holds
        self.made: bytes | None = None
        self.handle: int | None = None
        if entry is not None:
            try:
                self.handle = _open_file(checked_file(folder, entry, whole=False))
            except ExecutionError as error:
                self._complain(str(error))

    def get(self, key: str) -> bytes | None:
        """What was compiled for a key."""
        if self.handle is None or self._entry is None:
            return None
        found = _read_all(self.handle)
        if zlib.crc32(found) != self._entry["digest"]:
            self._complain("What was compiled of it is damaged.")
            return None
        known, _, data = found.partition(b"\n")
        if known != key.encode():
            logger.info("A saved model was compiled for another release or device: it is again.")
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep what was compiled, where a model is saved."""
        if self._holds:
            self.made = key.encode() + b"\n" + data

    def reject(self, key: str) -> None:
        """Say that what was compiled is of no use; a folder that is loaded stays as it is."""
        self._complain(f"What was compiled of it ({key[:8]}) does not load.")

    @staticmethod
    def _complain(what: str) -> None:
        logger.warning("A saved model is compiled again: %s", what)


class ModelFiles:
    """A model of a folder (`kind` is ``model 0`` or ``backward 0``), read when it is asked for.

    Its files stay open where processes fork: a child builds a session of its own, also when the
    folder has another model by then, or is gone.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, Any],
        kind: str,
        *,
        torch_kernels: bool,
        insertions: Sequence[Insertion] = (),
        parts: Sequence[Part] = (),
        holds_forms: bool = False,
    ) -> None:
        self._folder = folder
        self._entry = files[kind]
        self._data = files.get(f"{kind} data")
        self._torch_kernels = torch_kernels
        self._insertions, self._parts = insertions, parts
        self._path = checked_file(folder, self._entry, whole=False)
        self._handle = _open_file(self._path)
        self.form = FormFile(folder, files.get(f"{kind} compiled"), holds=holds_forms)
        self._handles = [self._handle]
        if self.form.handle is not None:
            self._handles.append(self.form.handle)
        self._close = weakref.finalize(self, _close_all, self._handles)
        if insertions:
            expect(insertions[-1].position <= self._entry["bytes"], "position", insertions[-1])
            self._parts_handle = _open_file(checked_file(folder, files["parts"], whole=False))
            self._handles.append(self._parts_handle)
        self._with_data: Model | None = None
        """A model with weights in a file of their own, which it has mapped."""

    def read(self) -> Model:
        """The model: its bytes, where those name no other file.

        Raises :class:`ExecutionError` when it is damaged.

        NOTE: what reads them takes longer to import than all else that is done here.
        """
        if self._with_data is not None:
            return self._with_data
        message = _read_all(self._handle)
        if len(message) != self._entry["bytes"] or zlib.crc32(message) != self._entry["digest"]:
            raise _damaged(self._path)
        try:
            if self._insertions:
                read_part = functools.partial(_read_at, self._parts_handle)
                message = join(message, self._insertions, self._parts, read_part)
            if self._data is not None:
                checked_file(self._folder, self._data)
                model = from_message(message, self._folder)
                map_weights(model)
                self._with_data = model
                return model
            if _PLACE_OF_WEIGHTS in message:  # of weights in another file, or by chance
                return check_message(message)
            return StoredModel(message, self._path, torch_kernels=self._torch_kernels)
        except (OSError, ValueError) as error:
            raise ExecutionError(f"{self._folder} holds a damaged model: {error}.") from error

    def keep(self) -> None:
        """Note that its session is built: where nothing forks the files are closed."""
        if not hasattr(os, "fork"):
            self._close()


def _close_all(handles: Sequence[int]) -> None:
    for handle in handles:
        os.close(handle)


_PLACE_OF_WEIGHTS = b"location"
"""A model does not refer to a file without this word."""


# -- tensors ------------------------------------------------------------------------------------


def write_tensors(
    tensors: Sequence[torch.Tensor], orders: Sequence[tuple[int, ...]], path: Path
) -> list[int]:
    """Write tensors behind each other; return where each begins."""
    places, position = [], 0
    with path.open("wb") as file:
        for tensor, order in zip(tensors, orders, strict=True):
            position += file.write(b"\0" * (-position % _ALIGNMENT))
            places.append(position)
            plain = tensor.detach().cpu().permute(order).contiguous().reshape(-1)
            position += file.write(plain.view(torch.uint8).numpy().data)
    return places


def map_tensors(
    folder: Path, entry: Mapping[str, Any], stored: Sequence[StoredTensor], *, check: bool
) -> list[torch.Tensor]:
    """Tensors in a file, which is read as far as they are, and shared by the processes of a
    machine; what is written to them stays in this one."""
    path, size = checked_file(folder, entry, whole=check), int(entry["bytes"])
    storage: Any = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=size)
    found = []
    for tensor in stored:
        assert tensor.offset is not None
        end = tensor.offset + tensor.bytes
        if end > size or tensor.offset % max(tensor.dtype.itemsize, 1):
            raise ExecutionError(f"{path} is damaged: {tensor.name} is not in it.")
        laid = torch.empty([tensor.shape[i] for i in tensor.order], device="meta")
        whole = torch.empty(0, dtype=tensor.dtype).set_(
            storage, tensor.offset // tensor.dtype.itemsize, laid.shape, laid.stride()
        )
        found.append(whole.permute(inverse_order(tensor.order)).to(tensor.device))
    return found


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc
