"""A bounded store of instances of backends, by their options."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from dort_rewriter.errors import OptionError
from dort_rewriter.forks import SafeLock

__all__ = ["InstanceCache"]

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
