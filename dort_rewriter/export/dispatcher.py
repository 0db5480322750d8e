"""Dispatchers: who converts an operator: users, then this package, then what a subclass adds."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.aten import is_mutation, is_random
from dort_rewriter.errors import calling
from dort_rewriter.export.annotations import unsupported_value
from dort_rewriter.export.complex_numbers import complex_converters, has_complex
from dort_rewriter.export.onnxscript_functions import (
    is_onnxscript_function,
    onnxscript_converter,
)
from dort_rewriter.export.registry import (
    Converter,
    builtin_converters,
    make_converter,
    op_name,
)

RANDOM = "random: it stays in torch, which owns the generator"
"""Why a random operator is not converted."""


class Dispatcher:
    """Finds the converter of an operator among a user's functions and those of this package."""

    def __init__(
        self,
        registered_functions: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        own_converters: bool = True,
    ) -> None:
        """Keep the functions to try first.

        `registered_functions` maps an operator (``"aten::relu"``, ``"aten::add.Tensor"``, or an
        ``OpOverload``) to ``function(op, *args, **kwargs)``, or to a function of onnxscript, which
        takes no ``op``; a name without an overload serves all of them. `own_converters` set
        to False leaves out the converters of this package.
        """
        self._user = {
            op_name(key): _make_converter(op_name(key), function)
            for key, function in (registered_functions or {}).items()
        }
        self._own_converters = own_converters

    def converts(self, name: str) -> bool:
        """Whether an operator has a converter, whatever its arguments."""
        return self._find(name) is not None

    def prefers(self, name: str) -> bool:
        """Whether an operator is better converted than decomposed by torch.

        NOTE: what only a fallback has is decomposed where torch can, so that the import of the
        fallback's library is not paid for what our converters do.
        """
        return self._find_first(name) is not None

    def standard(self) -> Dispatcher:
        """The dispatcher of models that run without torch."""
        return self

    def description(self) -> str | None:
        """What is the same for dispatchers that convert alike, in any process; None when there is
        no telling, as with functions of a user and classes that are not of this package."""
        if self._user or not self._is_ours():
            return None
        return f"{type(self).__module__}.{type(self).__qualname__} {self._own_converters}"

    def _is_ours(self) -> bool:
        """Whether all that converts is of this package: the class, what it was given since, and
        the converters that are registered.

        NOTE: the source of a function says nothing of what it closes over.
        """
        kinds = type(self).__mro__[:-1]
        methods = [v for place in (self, *kinds) for v in vars(place).values() if callable(v)]
        registered = builtin_converters().values() if self._own_converters else ()
        found = (*kinds, *methods, *(c.function for c in registered))
        return all(map(_is_of_this_package, found))

    def find(self, node: torch.fx.Node) -> Converter | str:
        """The converter of an FX node, or the reason why there is none."""
        if (reason := _unconvertible(node)) is not None:
            return reason
        name = op_name(node.target)
        if has_complex(node):
            return self._find_complex(name) or "no converter for complex numbers"
        found = self._find(name)
        if found is None:
            return "no converter"
        return self._refusal_inside(node) or found.refusal(node) or found

    def _refusal_inside(self, node: torch.fx.Node) -> str | None:
        """Why the bodies of a higher-order operator cannot be converted."""
        if not isinstance(node.target, torch._ops.HigherOrderOperator):
            return None
        for body in _bodies(node):
            for inner in body.graph.nodes:
                if inner.op == "placeholder":
                    reason = unsupported_value(inner.meta.get("val"))
                elif inner.op == "call_function" and inner.target is not operator.getitem:
                    reason = self.refusal(inner)
                else:
                    continue
                if reason is not None:
                    return f"{op_name(inner.target)} inside: {reason}"
        return None

    def find_drawing(self, node: torch.fx.Node) -> Converter | None:
        """The converter of a random operator, for a model that makes its own random numbers."""
        return self._find(op_name(node.target))

    def refusal(self, node: torch.fx.Node) -> str | None:
        """Why an FX node cannot be converted, or None when it can."""
        found = self.find(node)
        return found if isinstance(found, str) else None

    def _find(self, name: str) -> Converter | None:
        return self._find_first(name) or self._fallback(name)

    def _find_complex(self, name: str) -> Converter | None:
        """What takes complex tensors, as pairs of reals: a user's function, or ours."""
        found = self._user.get(name) or self._user.get(name.partition(".")[0])
        return found or (complex_converters().get(name) if self._own_converters else None)

    def _find_first(self, name: str) -> Converter | None:
        found = self._user.get(name) or self._user.get(name.partition(".")[0])
        if found is None and self._own_converters:
            found = builtin_converters().get(name)
        return found

    def _fallback(self, name: str) -> Converter | None:
        """The converter of an operator that neither the user nor this package has."""
        return None


def _make_converter(name: str, function: Callable[..., Any]) -> Converter:
    if is_onnxscript_function(function):
        return onnxscript_converter(name, function)
    made = make_converter(name, function)
    guard = calling(f"the converter of {name}", function)

    def call(*args: Any, **kwargs: Any) -> Any:
        with guard:
            return function(*args, **kwargs)

    return dataclasses.replace(made, function=call)


class ForceDispatcher(Dispatcher):
    """Turns an operator without a converter into a node of a custom domain."""

    def __init__(
        self,
        registered_functions: Mapping[Any, Callable[..., Any]] | None = None,
        *,
        domain: str = "torch",
        own_converters: bool = True,
    ) -> None:
        super().__init__(registered_functions, own_converters=own_converters)
        self.domain = domain

    def description(self) -> str | None:
        """What is the same for dispatchers that convert alike."""
        known = super().description()
        return None if known is None else f"{known} {self.domain}"

    def find(self, node: torch.fx.Node) -> Converter | str:
        """A converter; a refused operator becomes an opaque node too."""
        found = super().find(node)
        return found if isinstance(found, Converter) else self._opaque(op_name(node.target))

    def _fallback(self, name: str) -> Converter | None:
        return self._opaque(name)

    def _opaque(self, name: str) -> Converter:
        def record(op: Any, *args: Any, **kwargs: Any) -> Any:
            given = {**{f"arg{i}": a for i, a in enumerate(args)}, **kwargs}
            inputs, attributes = _split(given)
            results = op.result
            return op.call(
                name.replace("::", "_").replace(".", "_"),
                *inputs,
                domain=self.domain,
                outputs=len(results) if isinstance(results, list | tuple) else 1,
                **attributes,
            )

        return make_converter(name, record)


def _is_of_this_package(made: Any) -> bool:
    return str(getattr(made, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]


def _split(given: Mapping[str, Any]) -> tuple[list[ir.Value], dict[str, Any]]:
    """Separate the tensors among the arguments of a call, which become inputs, from the others.

    A list of tensors leaves how many they are under its name.
    """
    inputs: list[ir.Value] = []
    attributes: dict[str, Any] = {}
    for name, value in given.items():
        items = value if isinstance(value, list | tuple) else [value]
        tensors = [v for v in items if isinstance(v, ir.Value)]
        inputs += tensors
        if tensors and items is value:
            attributes[f"{name}_count"] = len(tensors)
        elif not tensors and value is not None:
            attributes[name] = value if _is_attribute(value) else str(value)
    return inputs, attributes


def _is_attribute(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(value and all(type(v) is t for v in value) for t in (int, float, str))
    return isinstance(value, int | float | str)


def _unconvertible(node: torch.fx.Node) -> str | None:
    """Why no converter could take a node, whoever writes it."""
    if is_random(node, backward=True):
        # NOTE: random numbers of ONNX Runtime do not follow torch.manual_seed.
        return RANDOM
    if is_mutation(node):
        return "it writes to its input"
    known = [n for n in (node, *node.all_input_nodes) if n.op != "get_attr"]
    if (unknown := next((n for n in known if "val" not in n.meta), None)) is not None:
        return f"nothing is known about {unknown.name}"
    return unsupported_value([n.meta["val"] for n in known])


def _bodies(node: torch.fx.Node) -> Iterator[torch.fx.GraphModule]:
    """Yield the graphs that a higher-order operator is given."""
    owner = node.graph.owning_module
    for argument in node.all_input_nodes:
        if argument.op == "get_attr" and owner is not None:
            value: Any = functools.reduce(getattr, str(argument.target).split("."), owner)
            if isinstance(value, torch.fx.GraphModule):
                yield value
