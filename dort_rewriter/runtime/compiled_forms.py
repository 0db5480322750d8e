"""What a provider has compiled of a model, kept between processes.

onnxruntime writes it as another model, whose nodes ``EPContext`` hold what the provider made. It
is loaded again by the same releases of onnxruntime and of the provider, on the same device, with
the same options; what is damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dort_rewriter.ort_module import describe
from dort_rewriter.runtime.disk_cache import DiskCache, disk_cache
from dort_rewriter.runtime.providers import Provider, devices_of

if TYPE_CHECKING:
    import onnxruntime

logger = logging.getLogger(__name__)

_MOST = 2**26
"""Bytes of a model above which nothing is kept: reading it takes as long as compiling."""

Placement = Mapping[str, Mapping[str, int]]


class CompiledForm:
    """The place on disk of what plug-ins compile of one model."""

    def __init__(
        self,
        source: bytes | str,
        providers: Sequence[Provider],
        options: onnxruntime.SessionOptions,
    ) -> None:
        self.placement: Placement | None = None
        """Whose nodes the model has that was found: it has lost them."""
        self._made: bytes | None = None
        self._cache: DiskCache | None = None
        self._key = ""
        if isinstance(source, bytes) and len(source) <= _MOST:
            self._cache = disk_cache()
            if self._cache is not None:
                self._key = _key(source, providers, options)

    def load(self, build: Callable[[bytes], Any], errors: tuple[type[Exception], ...]) -> Any:
        """A session of what is kept; None where nothing is, or what is of no use."""
        if self._cache is None or (data := self._cache.get(self._key)) is None:
            return None
        head, _, model = data.partition(b"\n")
        try:
            session = build(model)
        except errors as error:
            logger.info("A compiled model is made again, it does not load: %s", error)
            self._cache.reject(self._key)
            return None
        self.placement = json.loads(head)
        logger.debug("A compiled model was found on disk.")
        return session

    def make(
        self,
        build: Callable[[onnxruntime.SessionOptions], Any],
        options: Callable[[], onnxruntime.SessionOptions],
        errors: tuple[type[Exception], ...],
    ) -> Any:
        """A session, whose compiled form is kept; None where there is no place for it, or the
        provider makes none. ``options`` makes some that no other session has."""
        if self._cache is None:
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
        if self._cache is not None and self._made is not None:
            self._cache.put(self._key, json.dumps(placement).encode() + b"\n" + self._made)


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
            sorted(dict(d.ep_metadata).items()),
        )
        for d in devices_of(provider)
    ]
