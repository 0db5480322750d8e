"""Gates on the converters: a row in a table each, parameters as in the ATen schema."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
import torch

import tests.export.converters
from dort_rewriter.export.registry import IGNORED, Converter, builtin_converters
from tests.export.cases import overload

CONVERTERS = sorted(builtin_converters().values(), key=lambda c: c.name)
ATEN = [c for c in CONVERTERS if c.name.startswith("aten::")]


def _rows() -> set[str]:
    package = tests.export.converters
    modules = [
        importlib.import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    ]
    rows = {
        case.op
        for module in modules
        for name in ("CASES", "SYMBOLIC")
        for case in getattr(module, name, [])
    }
    return rows.union(*(getattr(module, "OTHERS", ()) for module in modules))


def test_every_aten_converter_has_a_row() -> None:
    rows = _rows()
    missing = [c.name for c in ATEN if c.name not in rows and _exists(c)]
    assert missing == [], "each needs a Case in the table of its family, tests/export/converters/"


@pytest.mark.parametrize("converter", ATEN, ids=lambda c: c.name)
def test_parameters_follow_the_schema(converter: Converter) -> None:
    if not _exists(converter):
        return  # an operator of another torch
    schema: torch._C.FunctionSchema = overload(converter.name)._schema
    parameters = list(inspect.signature(converter.function).parameters.values())[1:]
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return  # one ONNX operator with the same inputs
    names = ["x" if a.name == "self" else a.name for a in schema.arguments]
    if converter.name == "aten::_cdist_backward":  # torch 2.15 calls it otherwise
        names = ["grad" if name == "grad_output" else name for name in names]
    wanted = [n for n in names if n not in IGNORED]
    # Of several overloads the converter has the parameters of the longest, the others' defaults.
    own = [p for p in parameters if p.name not in IGNORED]
    needed = [p for p in own if p.name in wanted or p.default is inspect.Parameter.empty]
    assert [p.name for p in needed] == wanted


def _exists(converter: Converter) -> bool:
    try:
        overload(converter.name)
    except AttributeError:
        return False
    return True
