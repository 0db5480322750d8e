"""Instances of a backend, reused for equal options: of our class, and of torch's under the hook.

The ones used last are kept, as many as :data:`CAPACITY`; a compiled function holds its own.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dort_rewriter.forks import SafeLock
from dort_rewriter.options import OrtBackendOptions, from_mapping

CAPACITY = 64
"""How many instances of a class are kept."""

B = TypeVar("B")

_instances: dict[type, OrderedDict[Any, Any]] = {}
"""By class and options, those used last at the end."""
_lock = SafeLock()


def _kept(cls: type) -> OrderedDict[Any, Any]:
    return _instances.setdefault(cls, OrderedDict())


def instance_for(cls: type[B], options: OrtBackendOptions, build: Callable[[], B]) -> B:
    """The instance of a class made before for equal options, or one built now.

    Two threads may build the same one at the same time: both get the first that is done. Options
    with ``ort_session_options`` are never shared: two of them cannot be compared.
    """
    if options.ort_session_options is not None:
        return build()
    key = _freeze(options)
    made: B | None = _kept(cls).get(key)
    if made is None:
        made = build()
    dropped: list[B] = []
    with _lock:
        kept = _kept(cls)
        found: B = kept.setdefault(key, made)
        kept.move_to_end(key)
        while len(kept) > CAPACITY:
            dropped.append(kept.popitem(last=False)[1])
    dropped.clear()  # destroyed outside the lock: sessions take a while
    return found


def instances_of(cls: type[B]) -> tuple[B, ...]:
    """The instances kept for reuse."""
    with _lock:
        return tuple(_kept(cls).values())


def clear_instances(cls: type) -> None:
    """Forget the instances kept for reuse."""
    with _lock:
        forgotten = _instances.pop(cls, None)
    del forgotten  # outside the lock, too


def count_runs() -> int:
    """How often sessions were run, of all instances that are kept."""
    with _lock:
        return sum(b.execution_count for kept in _instances.values() for b in kept.values())


def instance_of_torch(cls: Any, options: Any = None) -> Any:
    """An instance of torch's class for any options of its or of ours, reused when equal."""
    if (own := own_options(cls, options)) is not None:
        return instance_for(cls, own, functools.partial(_build_with, cls, own))
    of_torch = _options_of_torch(cls)
    given = options if isinstance(options, of_torch) else of_torch(**(options or {}))
    if getattr(given, "export_options", None) is not None:
        return cls(given)  # two of them cannot be compared
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


def fields_of_torch(cls: Any, options: Any = None) -> dict[str, Any]:
    """What the constructor of torch's class sets, as far as functions of ours read it."""
    module = _module_of(cls)
    if (own := own_options(cls, options)) is None:
        own = module.OrtBackendOptions() if options is None else options
    return {
        "_options": own,
        "_all_ort_execution_info": module.OrtExecutionInfoForAllGraphModules(),
        "_assert_allclose_to_baseline": False,
        "execution_count": 0,
    }


def built_by_torch(cls: Any, build: Callable[..., None], options: Any) -> dict[str, Any]:
    """All that ``build``, torch's own constructor, sets for these options."""
    backend = cls.__new__(cls)
    build(backend, options if isinstance(options, _options_of_torch(cls)) else None)
    return vars(backend)


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
    return _module_of(cls).OrtBackendOptions


def _module_of(cls: Any) -> Any:
    # NOTE: the class itself says that it comes from torch.onnx.
    return sys.modules[cls.compile.__module__]


def _freeze(value: Any) -> Any:
    """What is equal, and hashed alike, for equal options: lists are as tuples."""
    if isinstance(value, Mapping):
        return tuple(sorted((k, _freeze(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return tuple(_freeze(v) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _freeze({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    return value
