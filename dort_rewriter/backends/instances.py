"""Instances of a backend, reused for equal options: of our class, and of torch's under the hook.

The ones used last are kept, as many as :data:`CAPACITY`; a compiled function holds its own.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from dort_rewriter.errors import OptionError
from dort_rewriter.forks import SafeLock
from dort_rewriter.options import OrtBackendOptions, from_mapping

__all__ = [
    "CAPACITY",
    "InstanceCache",
    "as_own",
    "clear_instances",
    "count_runs",
    "instance_for",
    "instance_of_torch",
    "instances_of",
    "own_options",
]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class InstanceCache(Generic[K, V]):
    """Keeps the ``capacity`` values used last; safe to use from several threads."""

    def __init__(self, capacity: int = 64) -> None:
        if capacity < 1:
            raise OptionError(f"A cache holds at least one instance, not {capacity}.")
        self.capacity = capacity
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = SafeLock()

    def get(self, key: K) -> V | None:
        """The value, now the one used last, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        """Store a value unless the key has one; return what is kept. Drops the oldest if full."""
        dropped: list[V] = []
        with self._lock:
            kept = self._values.setdefault(key, value)
            self._values.move_to_end(key)
            while len(self._values) > self.capacity:
                dropped.append(self._values.popitem(last=False)[1])
        dropped.clear()  # destroyed outside the lock: sessions take a while
        return kept

    def get_or_build(self, key: K, build: Callable[[], V]) -> V:
        """The stored value, or one that is built now and stored.

        Two threads may build the same one at the same time: both get the first that is done.
        """
        found = self.get(key)
        return self.put(key, build()) if found is None else found

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            forgotten, self._values = self._values, OrderedDict()
        forgotten.clear()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter(list(self._values))


CAPACITY = 64
"""How many instances of a class are kept."""

B = TypeVar("B")

_instances: dict[type, InstanceCache[Any, Any]] = {}


def instance_for(cls: type[B], options: OrtBackendOptions, build: Callable[[], B]) -> B:
    """The instance of a class made before for equal options, or one built now.

    Options with ``ort_session_options`` are never shared: nothing tells whether two are equal.
    """
    if options.ort_session_options is not None:
        return build()
    return _cache_of(cls).get_or_build(_key(options), build)


def instances_of(cls: type[B]) -> tuple[B, ...]:
    """The instances kept for reuse."""
    cache = _cache_of(cls)
    found = (cache.get(key) for key in cache)
    return tuple(backend for backend in found if backend is not None)


def clear_instances(cls: type) -> None:
    """Forget the instances kept for reuse."""
    _cache_of(cls).clear()


def count_runs() -> int:
    """How often sessions were run, of all instances that are kept."""
    kept: list[Any] = []
    for cls in list(_instances):
        kept.extend(instances_of(cls))
    return sum(backend.execution_count for backend in kept)


def instance_of_torch(cls: Any, options: Any = None) -> Any:
    """An instance of torch's class for any options of its or of ours, reused when equal."""
    if (own := own_options(cls, options)) is not None:
        return instance_for(cls, own, functools.partial(_build_with, cls, own))
    of_torch = _options_of_torch(cls)
    given = options if isinstance(options, of_torch) else of_torch(**(options or {}))
    if getattr(given, "export_options", None) is not None:
        return cls(given)  # nothing tells whether two of them are equal
    return instance_for(cls, as_own(given), functools.partial(cls, given))


def own_options(cls: Any, options: Any = None) -> OrtBackendOptions | None:
    """Options that the constructor of torch's class does not take, as ours.

    Those with what ours lack (``export_options`` before torch 2.5) are torch's own, as its
    dataclass is: None.
    """
    if not isinstance(options, OrtBackendOptions | Mapping):
        return None
    of_torch = {f.name for f in dataclasses.fields(_options_of_torch(cls))}
    if isinstance(options, Mapping) and set(options) <= of_torch and not set(options) <= _OWN:
        return None
    return from_mapping(OrtBackendOptions, options)


def as_own(options: Any) -> OrtBackendOptions:
    """Options of torch's dataclass as ours; it has some of our fields."""
    if isinstance(options, OrtBackendOptions):
        return options
    return OrtBackendOptions(**{k: v for k, v in vars(options).items() if k in _OWN})


_OWN = {f.name for f in dataclasses.fields(OrtBackendOptions)}


def _build_with(cls: Any, options: OrtBackendOptions) -> Any:
    backend: Any = cls()
    backend._options = options
    return backend


def _options_of_torch(cls: Any) -> Any:
    # NOTE: the class itself says that it comes from torch.onnx.
    return sys.modules[cls.compile.__module__].OrtBackendOptions


def _cache_of(cls: type) -> InstanceCache[Any, Any]:
    return _instances.setdefault(cls, InstanceCache(CAPACITY))


def _key(options: OrtBackendOptions) -> Any:
    """A hashable that is equal for equal options."""
    return _freeze(options)


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _freeze({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    return value
