"""Act when a module is imported later on, or be the module that is missing: one reversible finder.

NOTE: wrapt has post-import hooks as well. They cannot be unregistered, and importing wrapt costs
more than everything else that happens when torch is imported (it pulls in asyncio): wrapt is
imported when there is something to wrap.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

TRIGGER = "torch.onnx"
"""Imported before anything there is to change; ``import torch`` does not import it."""

Callback = Callable[[ModuleType], None]


class _NotifyingLoader:
    """The loader of a watched module: steps aside, loads, then calls back."""

    def __init__(self, loader: Any, callback: Callback) -> None:
        self._loader = loader
        self._callback = callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module shows the loader it would have had without us.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._callback(module)


class _ServingLoader:
    """The loader of a module that is found nowhere else."""

    def __init__(self, fill: Callback) -> None:
        self._fill = fill

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave the creation to Python."""

    def exec_module(self, module: ModuleType) -> None:
        self._fill(module)


class _Finder:
    """First on ``sys.meta_path`` while something is watched, absent otherwise."""

    def __init__(self) -> None:
        self.after: dict[str, Callback] = {}
        self.missing: dict[str, Callback] = {}
        self._searching = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self.after and name not in self.missing:
            return None
        if name in vars(self._searching):
            return None  # another finder of this kind asks for what we asked it to find
        vars(self._searching)[name] = True
        try:
            spec = self._find_elsewhere(name, path, target)
        finally:
            del vars(self._searching)[name]
        if spec is None:
            fill = self.missing.get(name)
            return None if fill is None else ModuleSpec(name, _ServingLoader(fill))  # type: ignore[arg-type]
        callback = self.after.get(name)
        if callback is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _NotifyingLoader(spec.loader, callback)  # type: ignore[assignment]
        return spec

    def _find_elsewhere(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            if (spec := finder.find_spec(name, path, target)) is not None:
                return spec
        return None


_FINDER = _Finder()


def _keep_finder_while_needed() -> None:
    needed = bool(_FINDER.after or _FINDER.missing)
    if needed and _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    elif not needed and _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)


def after_import(name: str, callback: Callback) -> None:
    """Call ``callback(module)`` each time ``name`` is executed from now on: imported or reloaded.

    What the callback raises, the import raises.
    """
    _FINDER.after[name] = callback
    _keep_finder_while_needed()


def serve_missing(name: str, fill: Callback) -> None:
    """Let ``name`` be imported although no file has it: ``fill(module)`` gives it its content."""
    _FINDER.missing[name] = fill
    _keep_finder_while_needed()


def forget(*names: str) -> None:
    """Watch and serve these modules no more; what was imported stays."""
    for name in names:
        _FINDER.after.pop(name, None)
        _FINDER.missing.pop(name, None)
    _keep_finder_while_needed()


def is_watched(name: str) -> bool:
    """Whether an import of ``name`` is waited for."""
    return name in _FINDER.after


def wait_for(*names: str) -> None:
    """When no other thread is in the middle of importing one of these modules."""
    for name in names:
        if name in sys.modules:
            # The lock of the module is what is wanted; it is taken only through an import.
            importlib.import_module(name)
