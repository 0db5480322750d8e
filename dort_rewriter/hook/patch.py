"""Changes to modules of torch: one as a record, a module it no longer has, all that was done.

A change says how it is made, and how it is taken back.
"""

from __future__ import annotations

import copy
import importlib
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from dort_rewriter.errors import HookError
from dort_rewriter.forks import SafeLock

Series = tuple[int, int]
"""A series of torch: ``(2, 8)``."""

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""What wrapt calls: ``wrapper(wrapped, instance, args, kwargs)``."""


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A function of torch that is called through a wrapper of ours."""

    module: str
    """The module it stands in."""
    attribute: str
    """The path inside that module: ``OrtBackend.compile``."""
    replacement: Wrapper
    """Called in its place, with the original as first argument."""
    reason: str
    """Why it is needed."""
    since: Series
    """The first series of torch that has it."""
    before: Series | None = None
    """The first series that has it no more; None when none is known."""
    absent: Callable[..., Any] | None = None
    """Wrapped where torch has no such attribute; None: its absence is an error."""

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}"

    def fits(self, torch: Series) -> bool:
        """Whether this series of torch is to be patched."""
        return self.since <= torch and (self.before is None or torch < self.before)

    def locate(self, module: object) -> tuple[object, str]:
        """The module or class that holds the attribute, and its name there."""
        *path, name = self.attribute.split(".")
        owner = module
        for step in path:
            if not hasattr(owner, step):
                raise HookError(f"Cannot hook {self}: there is no {step!r} in {self.module}.")
            owner = getattr(owner, step)
        return owner, name

    def apply(self, module: object) -> Applied:
        """Put the wrapper in place."""
        owner, name = self.locate(module)
        original = vars(owner).get(name, MISSING)
        wrapped = self.absent if original is MISSING else original
        if wrapped is None:
            raise HookError(f"Cannot hook {self}: torch has no such attribute.")
        ours = _wrap(wrapped, self.replacement)
        setattr(owner, name, ours)
        return Applied(patch=self, owner=owner, name=name, original=original, ours=ours)


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A patch in place, with what is needed to take it back."""

    patch: Patch
    owner: object
    name: str
    original: object
    """As it stood in the dictionary of the owner, or ``MISSING``."""
    ours: object

    def __str__(self) -> str:
        return str(self.patch)

    def obstacle(self) -> str | None:
        """Say what prevents the patch from being taken back, None if nothing does."""
        now = vars(self.owner).get(self.name, MISSING)
        return None if now is self.ours else f"{self.patch} is now {describe(now)}"

    def restore(self) -> None:
        """Put the original back; there must be no obstacle."""
        if self.original is MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)


def _wrap(function: object, wrapper: Wrapper) -> Any:
    import wrapt

    class Bound(wrapt.BoundFunctionWrapper):  # type: ignore[misc]
        """A bound method of a patched class, as easily copied as one of Python's.

        torch keeps such methods in graph modules, which are copied and pickled.
        """

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            if self._self_instance is None:  # of a class
                return self
            return getattr(copy.deepcopy(self._self_instance, memo), self.__name__)

        def __reduce_ex__(self, protocol: Any) -> Any:
            if self._self_instance is None:
                return _function_of, (self.__module__, self.__qualname__)
            return getattr, (self._self_instance, self.__name__)

    class Function(wrapt.FunctionWrapper):  # type: ignore[misc]
        """A function of torch, as easily copied as one of Python's: compiled modules hold one."""

        __bound_function_wrapper__ = Bound

        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self

        def __reduce_ex__(self, protocol: Any) -> Any:
            # What has the name, not this object: the hook may have been installed again.
            return _function_of, (self.__module__, self.__qualname__)

    return Function(function, wrapper)


def _function_of(module: str, qualname: str) -> Any:
    """The function of a name, wrapped or not."""
    return operator.attrgetter(qualname)(importlib.import_module(module))


def describe(value: object) -> str:
    """Name a function and where it comes from, so that its owner can be found."""
    # A wrapper of wrapt shows the name of what it wraps.
    value = getattr(value, "_self_wrapper", value)
    name = getattr(value, "__qualname__", None)
    module = getattr(value, "__module__", None)
    if name is None or module is None:
        return repr(value)
    code = getattr(value, "__code__", None)
    place = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{module}.{name}{place}"


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


@dataclass(kw_only=True)
class State:
    """Installed or not, and each change made to torch, in the order it was made."""

    lock: SafeLock = field(default_factory=SafeLock)
    installed: bool = False
    changes: list[Applied | RestoredModule] = field(default_factory=list)
    failure: str = ""
    """Why the hook took itself back after torch was imported; empty if it did not."""


STATE = State()
