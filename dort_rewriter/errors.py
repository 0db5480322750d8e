"""The exceptions a user meets: each says what failed, where, and what to do next.

NOTE: ``assert`` is for invariants of this package; whatever a user's model, option or environment
can cause is one of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass


class DortError(RuntimeError):
    """The base of every error raised on purpose by this package."""


class OptionError(DortError, ValueError):
    """An option is unknown or has a value that cannot be honoured."""


class HookError(DortError):
    """torch could not be hooked, or a hook could not be taken back."""


class CaptureError(DortError):
    """A graph could not be obtained from the model."""


class ExportError(DortError):
    """A graph could not be turned into an ONNX model."""


class OptimizeError(DortError):
    """An ONNX graph could not be rewritten."""


class ExecutionError(DortError):
    """A session could not be built or run."""

    def __init__(self, message: str, *, unfinished: bool = False) -> None:
        super().__init__(message)
        self.unfinished = unfinished
        """Whether arguments may have been written to: the graph must not run again on them."""


class NoKernelError(ExecutionError):
    """A session could not be built for the types of a model: an operator has no kernel for them,
    or does not allow them."""


class CallMismatchError(ExecutionError):
    """A call does not fit the saved model: its arguments, or the settings it is made under, are
    others than it was saved for."""


class DivergenceError(DortError):
    """A result of a model is not what torch computes (``onnx_debug_backend(compare=True)``)."""

    def __init__(self, message: str, *, name: str, node: str = "", where: str = "") -> None:
        super().__init__(message)
        self.name = name
        """The result in the model."""
        self.node = node
        """The FX node that computes it."""
        self.where = where
        """The Python line that produced the node."""


class NotFiniteError(DortError):
    """A result of a graph is infinite or no number (``options={"verify": "finite"}``)."""

    def __init__(self, message: str, *, node: str, where: str) -> None:
        super().__init__(message)
        self.node = node
        """The FX node that made the value, or the argument that had it."""
        self.where = where
        """The Python line that produced the node."""


class ResultReachedError(DortError):
    """A run stopped at a result it was asked to stop at (``raise_list``)."""

    def __init__(self, message: str, *, name: str, value: object) -> None:
        super().__init__(message)
        self.name = name
        self.value = value
        """The result, a numpy array."""


@dataclass(frozen=True)
class UnsupportedOp:
    """One graph node that no converter takes."""

    op: str
    """The operator with its overload: ``aten::sort.stable``."""
    reason: str
    """Why it was refused: no converter, or the words of the one that refused."""
    where: str = ""
    """The Python line that produced the node, if known: ``model.py:12 in forward: x.sort()``."""
    node: str = ""
    """The name of the node in its FX graph."""


class UnsupportedOpError(ExportError):
    """Some operators of a graph cannot be converted; all of them are listed at once."""

    def __init__(self, unsupported: Iterable[UnsupportedOp]) -> None:
        self.unsupported = tuple(unsupported)
        super().__init__(
            f"{self.listing()}\nRegister a converter (Dispatcher({{'aten::...': function}})), "
            "leave these operators to torch (backend option fallback=True), or decompose them "
            "(decomposition_table=...)."
        )

    def listing(self) -> str:
        """The operators, without advice."""
        counts = Counter((u.op, u.reason) for u in self.unsupported)
        lines = [f"{len(counts)} operator(s) cannot be converted to ONNX:"]
        for (op, reason), count in counts.most_common():
            lines.append(f"  {count} x {op}: {reason}")
            places = dict.fromkeys(
                u.where for u in self.unsupported if (u.op, u.reason) == (op, reason) and u.where
            )
            lines.extend(f"      at {place}" for place in places)
        return "\n".join(lines)


class _Remembering:
    """A block of code: what it raises remembers a text, the first that it is given.

    NOTE: a class, since a generator would cost more, at each node of a graph.
    """

    def __init__(self, attribute: str, text: Callable[[], str]) -> None:
        self._attribute = attribute
        self._text = text
        """Asked only when something is raised."""

    def __enter__(self) -> None:
        """Nothing is done."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Write the text to an exception, which goes on its way."""
        if error is not None and not getattr(error, self._attribute, ""):
            setattr(error, self._attribute, self._text())


_PLACE, _GIVEN = "dort_place", "dort_given_function"


def working_on(place: Callable[[], str]) -> _Remembering:
    """A block of code at work for a place in the user's program: what it raises remembers it."""
    return _Remembering(_PLACE, place)


def calling(name: str, function: object) -> _Remembering:
    """A call of a function that the program gave: what it raises remembers whose it is."""

    def whose() -> str:
        code = getattr(function, "__code__", None)
        return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"

    return _Remembering(_GIVEN, whose)


def place_of(error: BaseException) -> str:
    """The place that an exception remembers, ``model.py:12 in forward: x.sort()``."""
    return str(getattr(error, _PLACE, ""))


def given_function_of(error: BaseException) -> str:
    """The function of the program that raised, as :func:`calling` knows it."""
    return str(getattr(error, _GIVEN, ""))
