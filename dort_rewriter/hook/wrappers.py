"""What is called in place of functions of torch: each decides between torch and this package.

The variable is read at each call. Off means torch's own code, untouched; a graph that already has
a session of ours keeps it.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from dort_rewriter import env
from dort_rewriter.forks import SafeLock
from dort_rewriter.hook import empty_frames
from dort_rewriter.hook.patch import STATE, Wrapper

logger = logging.getLogger(__name__)

SOURCE = "dort_rewriter.backends.onnxrt"
"""Where the work is done: imported when it is first needed."""

RESTORED_NAMES = {
    "_OrtBackend": "OrtBackend",
    "_OrtBackendOptions": "OrtBackendOptions",
    "_OrtExecutionProvider": "OrtExecutionProvider",
    "is_onnxrt_backend_supported": "is_onnxrt_backend_supported",
}
"""The names that torch.onnx had until torch 2.8."""

_incomplete: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The instances of torch's class that lack some of what its constructor sets, by their ids."""

_registering = SafeLock()
_registered: dict[str, object] = {}
"""What Dynamo was given from our entry points, by name."""

Function = Callable[..., Any]
Arguments = tuple[Any, ...]
Keywords = Mapping[str, Any]


def build_backend(wrapped: Function, backend: Any, args: Arguments, kwargs: Keywords) -> None:
    """Stand in for ``OrtBackend.__init__``: while the variable is on, only what ours reads is set.

    torch's reads onnxscript's whole library, for each instance: two seconds for the first one. See
    ``complete_backend`` and ``complete_all``.
    """
    if not _is_on():
        return wrapped(*args, **kwargs)
    vars(backend).update(_ours().fields_of_torch(type(backend), *args, **kwargs))
    _incomplete[id(backend)] = backend
    return None


def complete_backend(wrapped: Function, backend: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for ``OrtBackend.__getattr__``, not in torch: make what ``build_backend`` left."""
    fields = vars(backend)
    (name,) = args
    build = _class_of_torch().__init__.__wrapped__
    if "_options" not in fields or name not in build.__code__.co_names:
        return wrapped(name)
    _complete(backend, build)
    return fields[name] if name in fields else wrapped(name)


def complete_all() -> None:
    """Make what ``build_backend`` left of all instances that are alive: torch is to be as it was.

    What torch's constructor cannot make here, it could not have made before, and stays away.
    """
    for backend in tuple(_incomplete.values()):
        build = getattr(_class_of_torch().__init__, "__wrapped__", None)
        if build is None:  # another one took the place of ours
            return
        try:
            _complete(backend, build)
        except Exception as error:  # whatever its exporter raises
            logger.info("an OrtBackend stays without what its constructor sets: %s", error)


def _complete(backend: Any, build: Function) -> None:
    fields = vars(backend)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"torch\.onnx\.dynamo_export")
        made = _ours().built_by_torch(_class_of_torch(), build, fields["_options"])
    for field, value in made.items():
        fields.setdefault(field, value)
    _incomplete.pop(id(backend), None)


def no_attribute_of_backend(backend: Any, name: str) -> Any:
    """The ``__getattr__`` of a class that has none."""
    text = f"{type(backend).__name__!r} object has no attribute {name!r}"
    raise AttributeError(text, name=name, obj=backend)


def while_on(name: str, first: Callable[[Function, Any], Any]) -> Wrapper:
    """Calls a function of ours while the variable is on: with what ``first`` gives, then the
    arguments of torch's."""

    def call(wrapped: Function, instance: Any, args: Arguments, kwargs: Keywords) -> Any:
        if _is_on():
            return getattr(_ours(), name)(first(wrapped, instance), *args, **kwargs)
        return wrapped(*args, **kwargs)

    return call


compile_by_name = while_on("compile_by_name", lambda wrapped, _: wrapped)
call_backend = while_on("call_backend", lambda _, backend: backend)
compile_graph = while_on("compile_graph", lambda _, backend: backend)
instance_for_options = while_on("instance_of_torch", lambda *_: _class_of_torch())


def accelerated_call(wrapped: Function, backend: Any, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for ``OrtBackend._ort_acclerated_call``."""
    if _is_on() or _serves(backend, args[0]):
        return _ours().accelerated_call(backend, *args, **kwargs)
    return wrapped(*args, **kwargs)


def cached_instances(wrapped: Function, instance: None, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for ``OrtBackend.get_cached_instances``."""
    kept = wrapped(*args, **kwargs)
    ours = sys.modules.get(SOURCE)
    if ours is None:
        return kept
    # A file with our lines in it (``dort-rewriter patch``) mentions them already.
    return tuple(dict.fromkeys((*kept, *ours.instances_of(_class_of_torch()))))


def clear_instances(wrapped: Function, instance: None, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for ``OrtBackend.clear_cached_instances``."""
    wrapped(*args, **kwargs)
    if (ours := sys.modules.get(SOURCE)) is not None:
        ours.clear_instances(_class_of_torch())


def restore_names(wrapped: Function, instance: None, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for ``torch.onnx.__getattr__``."""
    if (name := RESTORED_NAMES.get(args[0])) is not None:
        return getattr(_ours(), name)
    return wrapped(*args, **kwargs)


def restore_submodule(wrapped: Function, instance: None, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for ``torch.onnx._internal.__getattr__``."""
    if args[0] == "onnxruntime":
        return importlib.import_module("torch.onnx._internal.onnxruntime")
    return wrapped(*args, **kwargs)


def register_once(wrapped: Function, instance: None, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for Dynamo's ``register_backend``: threads may load an entry point of ours at once.

    NOTE: two backends of one name are still for torch to refuse, and so is all of others.
    """
    function, name = kwargs.get("compiler_fn"), kwargs.get("name")
    if name is None or not _is_of_this_package(function):
        return wrapped(*args, **kwargs)
    with _registering:
        try:
            wrapped(*args, **kwargs)
        except AssertionError:
            if _registered.get(name) is not function:
                raise
        _registered[name] = function
    return function


def find_by_name(wrapped: Function, instance: None, args: Arguments, kwargs: Keywords) -> Any:
    """Stand in for Dynamo's ``lookup_backend``."""
    if empty_frames.BACKEND in (*args, *kwargs.values()) and STATE.installed:
        empty_frames.watch()
    return wrapped(*args, **kwargs)


def find_by_name_and_look(
    wrapped: Function, instance: None, args: Arguments, kwargs: Keywords
) -> Any:
    """Stand in for the ``lookup_backend`` of a Dynamo that does not read all modules of torch."""
    if empty_frames.BACKEND in (*args, *kwargs.values()) and STATE.installed:
        empty_frames.tell_of_torchs_module()
    return find_by_name(wrapped, instance, args, kwargs)


def no_attribute(module: str) -> Function:
    """The ``__getattr__`` of a module that has none."""

    def __getattr__(name: str) -> Any:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__


def _is_on() -> bool:
    # Compiled graphs keep the methods they were given: uninstalled, these are torch's again.
    return env.is_on("ONNXRT_CHANGE_REWRITER") and STATE.installed


def _is_of_this_package(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith(f"{__name__.partition('.')[0]}.")


def _serves(backend: Any, graph_module: Any) -> bool:
    # A session of ours exists only where the module that makes them was imported.
    ours = sys.modules.get(SOURCE)
    return ours is not None and ours.serves(backend, graph_module)


def _class_of_torch() -> Any:
    return sys.modules["torch.onnx._internal.onnxruntime"].OrtBackend


def _ours() -> Any:
    return importlib.import_module(SOURCE)
