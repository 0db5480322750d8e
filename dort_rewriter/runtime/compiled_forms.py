"""What a provider has compiled of a model, kept between processes.

onnxruntime writes it as another model, whose nodes ``EPContext`` hold what the provider made. It
is loaded again by the same releases of onnxruntime and of the provider, on the same device, with
the same options; what is damaged is made again. It is stored in the cache of models, and
beside a model that is saved.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dort_rewriter.ort_module import describe
from dort_rewriter.runtime.disk_cache import disk_cache
from dort_rewriter.runtime.model_files import check_message
from dort_rewriter.runtime.providers import Provider, devices_of

if TYPE_CHECKING:
    import onnxruntime

logger = logging.getLogger(__name__)

_MOST = 2**26
"""Bytes of a model above which nothing is kept: reading it takes as long as compiling."""

Placement = Mapping[str, Mapping[str, int]]


class Store(Protocol):
    """Keeps bytes by a key (a SHA-256 digest in hexadecimal): a :class:`DiskCache`, for one."""

    def get(self, key: str) -> bytes | None:
        """The bytes; None when there are none, or damaged ones."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes, or do not."""
        ...

    def reject(self, key: str) -> None:
        """Forget bytes that are of no use."""
        ...


class CompiledForm:
    """The places of what plug-ins compile of one model: one beside it, if it has some, then the
    cache of models."""

    def __init__(
        self,
        source: bytes | str,
        providers: Sequence[Provider],
        options: onnxruntime.SessionOptions,
        beside: Store | None = None,
    ) -> None:
        self.placement: Placement | None = None
        """Whose nodes the model has that was found: it has lost them."""
        self._made: bytes | None = None
        self._stores: list[Store] = []
        self._key = ""
        if isinstance(source, bytes) and len(source) <= _MOST:
            self._stores = [store for store in (beside, disk_cache()) if store is not None]
            if self._stores:
                self._key = _key(source, providers, options)

    def load(self, build: Callable[[bytes], Any], errors: tuple[type[Exception], ...]) -> Any:
        """A session of what is kept; None where nothing is, or what is of no use."""
        useless: tuple[type[Exception], ...] = (ValueError, *errors)
        for store in self._stores:
            if (data := store.get(self._key)) is None:
                continue
            head, _, model = data.partition(b"\n")
            try:
                placement = json.loads(head)
                _check_closed(model)
                session = build(model)
            except useless as error:
                logger.info("A compiled model is made again, it does not load: %s", error)
                store.reject(self._key)
                continue
            self.placement = placement
            logger.debug("A compiled model was found.")
            return session
        return None

    def make(
        self,
        build: Callable[[onnxruntime.SessionOptions], Any],
        options: Callable[[], onnxruntime.SessionOptions],
        errors: tuple[type[Exception], ...],
    ) -> Any:
        """A session, whose compiled form is kept; None where there is no place for it, or the
        provider makes none. ``options`` makes some that no other session has."""
        if not self._stores:
            return None
        with tempfile.TemporaryDirectory(prefix="dort-compiled-") as folder:
            path, own = Path(folder, "model.onnx"), options()
            own.add_session_config_entry("ep.context_enable", "1")
            own.add_session_config_entry("ep.context_embed_mode", "1")
            own.add_session_config_entry("ep.context_file_path", str(path))
            try:
                session = build(own)
                self._made = path.read_bytes() if path.exists() else None
            except errors as error:
                logger.debug("Nothing compiled is kept: %s", error)
                return None
        return session

    def keep(self, placement: Placement | None) -> None:
        """Store what was made, with whose nodes the model has."""
        if self._made is not None:
            for store in self._stores:
                store.put(self._key, json.dumps(placement).encode() + b"\n" + self._made)
            self._made = None


_NAMED = b"embed_mode"
_INSIDE = b"*\x11\n\nembed_mode\x18\x01\xa0\x01\x02"
"""The attribute of a node that says that what was compiled is inside, as protobuf writes it."""


def _check_closed(model: bytes) -> None:
    """Raise :class:`ValueError` for a model that names other files."""
    if model.count(_NAMED) != model.count(_INSIDE):
        raise ValueError("what was compiled is in another file")
    if b"location" in model:  # of weights in another file, or by chance
        check_message(model)


def _key(source: bytes, providers: Sequence[Provider], options: onnxruntime.SessionOptions) -> str:
    parts = [
        describe(),
        platform.machine(),
        *(f"{p.name} {sorted(p.options.items())} {_devices(p)}" for p in providers),
        str(options.graph_optimization_level),
        str((options.intra_op_num_threads, options.execution_mode)),
    ]
    digest = hashlib.sha256(repr(parts).encode())
    digest.update(source)
    return digest.hexdigest()


def _devices(provider: Provider) -> list[Any]:
    """The devices of a plug-in, with the release of the plug-in and the name of each."""
    return [
        (
            str(d.device.type),
            d.device.vendor,
            d.device.device_id,
            sorted((k, v) for k, v in dict(d.ep_metadata).items() if k != "library_path"),
        )
        for d in devices_of(provider)
    ]
