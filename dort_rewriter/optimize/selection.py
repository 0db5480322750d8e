"""Which rules and passes a selection names: ``"default+onnxruntime-CastCast"``, or a list."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dort_rewriter.errors import OptionError
from dort_rewriter.optimize.patterns import kernels, onnxruntime, standard
from dort_rewriter.optimize.patterns.base import GraphPass, Rule

__all__ = ["SETS", "Selected", "asks_for_kernels", "get_pattern_list", "select"]

Kind = type[Rule] | type[GraphPass]
Selected = Rule | GraphPass
Selection = str | Selected | Kind | Sequence[str | Selected | Kind] | None

SETS: Mapping[str, Sequence[Kind]] = {
    "default": standard.RULES,
    "onnxruntime": onnxruntime.RULES,
    "kernels": kernels.RULES,
    "experimental": kernels.RULES,
}
"""Every rule and pass, in the order they are tried. ``experimental`` is ``kernels`` as it was
called first: nothing else is in it, and nothing that is not measured."""


@functools.cache
def _known() -> Mapping[str, Kind]:
    return {kind.__name__: kind for kinds in SETS.values() for kind in kinds}


def get_pattern_list(
    positive: Selection = "default", negative: Selection = None
) -> list[Selected]:
    """The rules and passes that ``positive`` names, less those that ``negative`` does.

    Args:
        positive: a string such as ``"default+onnxruntime-CastCast"``, or a list of names, classes
            and instances.
        negative: the same, of what is left out.

    Raises:
        OptionError: a name is unknown.
    """
    chosen: dict[str, Selected] = {}
    for sign, item in _items(positive):
        for rule in _resolve(item):
            if sign == "+":
                chosen.setdefault(rule.name, rule)
            else:
                chosen.pop(rule.name, None)
    for sign, item in _items(negative):
        for rule in _resolve(item) if sign == "+" else ():
            chosen.pop(rule.name, None)
    return list(chosen.values())


def select(patterns: Selection) -> list[Selected]:
    """The rules and passes of ``OptimizationOptions.patterns``."""
    return get_pattern_list(patterns)


def asks_for_kernels(patterns: Selection) -> bool:
    """Whether a selection names the set ``kernels``, and does not take it away again: the
    exporter then writes operators of our own, which no rule could find in a model."""
    wanted = False
    for sign, item in _items(patterns):
        if item in ("kernels", "experimental"):
            wanted = sign == "+"
    return wanted


def _items(selection: Selection) -> Iterable[tuple[str, str | Selected | Kind]]:
    if selection is None:
        return
    if isinstance(selection, type | Rule | GraphPass):
        yield "+", selection
        return
    if not isinstance(selection, str):
        if not isinstance(selection, Iterable):
            raise OptionError(f"{selection!r} is neither the name of a pattern nor a pattern.")
        for item in selection:
            yield from _items(item)
        return
    text = selection.strip()
    parts = re.findall(r"([+\-]?)\s*([A-Za-z0-9_]+)\s*,?", text)
    if "".join(sign + name for sign, name in parts) != re.sub(r"[\s,]", "", text):
        raise OptionError(
            f"{selection!r} is no selection of patterns: 'default+onnxruntime-Name'."
        )
    for sign, name in parts:
        yield sign or "+", name


def _resolve(item: Any) -> list[Selected]:
    if isinstance(item, Rule | GraphPass):
        return [item]
    if isinstance(item, type) and issubclass(item, Rule | GraphPass):
        return [item()]
    if not isinstance(item, str):
        raise OptionError(f"{item!r} is neither the name of a pattern nor a pattern.")
    if item in SETS:
        return [kind() for kind in SETS[item]]
    if (kind := _known().get(item)) is not None:
        return [kind()]
    names = [*SETS, *_known()]
    close = difflib.get_close_matches(item, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"sets: {', '.join(SETS)}."
    raise OptionError(f"Unknown pattern {item!r}: {hint}")
