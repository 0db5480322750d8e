"""The table of converters by operator name.

A converter is registered where it is written::

    @converter("aten::leaky_relu_backward")
    def leaky_relu_backward(op, grad_output, x, negative_slope, self_is_result):
        \"\"\"leaky_relu_backward(Tensor grad_output, Tensor self, ...) -> Tensor\"\"\"

It gets the recorder, then the arguments of the ATen schema in order (``self`` is called ``x``); it
returns a result or a tuple of them. Arguments that mean nothing in ONNX (see ``IGNORED``) are left
out of its signature. One of many arguments takes them as a record instead (see ``by_name``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

F = TypeVar("F", bound=Callable[..., Any])

Predicate = Callable[[torch.fx.Node], bool]

IGNORED = frozenset(
    {"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"}
)
"""Arguments a converter may leave out of its parameters: they do not change a value."""


class Refused(Exception):
    """Raised by a converter for a case it does not take; the text says which."""


@dataclass(frozen=True)
class Converter:
    """A function that records the nodes of one operator."""

    name: str
    function: Callable[..., Any]
    when: Predicate | None = None
    """Takes the FX node; False refuses it, for the reason in the first line of its docstring."""
    parameters: frozenset[str] | None = None
    """The keyword arguments it knows; None when it takes any."""

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Why this node is not taken, or None when it is."""
        if self.when is None or self.when(node):
            return None
        return (inspect.getdoc(self.when) or "refused by its converter").splitlines()[0]

    def takes(self, key: str) -> bool:
        """Whether a keyword argument is to be given; one that means nothing is left out."""
        if self.parameters is None or python_name(key) in self.parameters:
            return True
        if key in IGNORED:
            return False
        raise Refused(f"its converter has no parameter {key!r}")


_CONVERTERS: dict[str, Converter] = {}
_NEWER: dict[str, tuple[int, Converter]] = {}


def make_converter(
    name: str, function: Callable[..., Any], when: Predicate | None = None
) -> Converter:
    """Describe a function as a converter."""
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    names = None if takes_any else frozenset(p.name for p in parameters)
    return Converter(name, function, when, names)


def converter(
    *names: str, when: Predicate | None = None, since: int | None = None
) -> Callable[[F], F]:
    """Register the decorated function for the named operators; a name is registered once.

    With ``since`` it converts for files of this opset and later ones alone. Models that are
    compiled are older.
    """

    def register(function: F) -> F:
        for name in names:
            if name in _CONVERTERS or name in _NEWER:
                raise ValueError(f"{name} has a converter already.")
            made = make_converter(name, function, when)
            if since is None:
                _CONVERTERS[name] = made
            else:
                _NEWER[name] = since, made
        return function

    return register


class Arguments(SimpleNamespace):
    """The arguments of a call under their names in the schema of its operator."""


def arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call of an ATen operator, those that are not given included."""
    names, defaults = _formals(target)
    given = {python_name(key): value for key, value in kwargs.items()}
    return Arguments(**{**defaults, **dict(zip(names, args, strict=False)), **given})


@functools.cache
def _formals(target: Any) -> tuple[Sequence[str], Mapping[str, Any]]:
    """The names of the arguments of an operator in order, and the defaults of some."""
    schema = target._schema.arguments
    defaults = {python_name(a.name): a.default_value for a in schema if a.has_default_value()}
    return [python_name(a.name) for a in schema], defaults


def by_name(function: Callable[[Any, Arguments], Any]) -> Callable[..., Any]:
    """A converter of a function that takes the arguments of its operator as a record."""

    def convert(op: Any, *args: Any, **kwargs: Any) -> Any:
        return function(op, arguments(op.fx_node.target, args, kwargs))

    return convert


@functools.cache
def builtin_converters() -> dict[str, Converter]:
    """The converters of this package, importing their modules."""
    package = importlib.import_module("dort_rewriter.export.converters")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _CONVERTERS


def newer_converter(node: torch.fx.Node, opset: int) -> Converter | str | None:
    """What converts an operator that nothing else does in files of new opsets; why not; None where
    it has no such converter."""
    builtin_converters()
    since, found = _NEWER.get(op_name(node.target), (0, None))
    if found is None:
        return None
    if opset < since:
        return f"no converter before opset {since}"
    return found.refusal(node) or found


def op_name(target: Any) -> str:
    """The name of what an FX node calls: ``aten::add.Tensor``, ``_operator::add``."""
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target.name()}"
    return f"{getattr(target, '__module__', '?')}::{getattr(target, '__name__', target)}"


def python_name(key: str) -> str:
    """The name of a converter's parameter for an argument of the schema."""
    return "x" if key == "self" else key
