"""A module that torch no longer has, under its old name."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from dort_rewriter.hook.patch import MISSING, describe

__all__ = ["RestoredModule"]


@dataclass(frozen=True, kw_only=True)
class RestoredModule:
    """A module of ours that stands in ``sys.modules`` under a name of torch."""

    module: ModuleType

    def __str__(self) -> str:
        return self.module.__name__

    @classmethod
    def fill(cls, module: ModuleType, source: str) -> RestoredModule:
        """Let ``module`` show everything that the module ``source`` of this package has."""
        content = importlib.import_module(source)

        def forward(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(content, name)

        module.__doc__ = content.__doc__
        vars(module).update({name: getattr(content, name) for name in content.__all__})
        vars(module).update(__all__=list(content.__all__), __getattr__=forward)
        return cls(module=module)

    def obstacle(self) -> str | None:
        """Say what prevents the module from being removed, None if nothing does."""
        for place, now in (
            ("sys.modules", sys.modules.get(str(self), MISSING)),
            ("its package", self._in_package()),
        ):
            if now is not MISSING and now is not self.module:
                return f"{self} in {place} is now {describe(now)}"
        return None

    def restore(self) -> None:
        """Remove the module; there must be no obstacle."""
        sys.modules.pop(str(self), None)
        if self._in_package() is self.module:
            parent, _, name = str(self).rpartition(".")
            delattr(sys.modules[parent], name)

    def _in_package(self) -> object:
        parent, _, name = str(self).rpartition(".")
        return vars(sys.modules[parent]).get(name, MISSING) if parent in sys.modules else MISSING
