"""Every converter writes what each opset from 13 to the newest defines.

One row an operator (the first of its table) is converted at opsets beside the one its own test
uses; the model is checked by ONNX, and run where the opset changed an operator of the model: what
did not change was run at 18 already.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

import onnx
import onnx_ir as ir
import pytest
import torch

import tests.export.converters
from dort_rewriter.ort_module import max_opset
from tests.export.cases import Case, compare, convert, expect, run, trace
from tests.export.converters.test_activations import IMPLICIT

pytestmark = pytest.mark.alternating

NEWEST = onnx.defs.onnx_opset_version()
OPSETS = (13, 15, 17, *range(19, NEWEST + 1))


@functools.cache
def first_rows() -> dict[str, Case]:
    """A row for each operator of the tables."""
    package = tests.export.converters
    rows: dict[str, Case] = {}
    for module in pkgutil.iter_modules(package.__path__):
        cases = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "CASES", [])
        for case in cases:
            if case.static:
                rows.setdefault(case.op, case)
    if torch.torch_version.TorchVersion(torch.__version__) < (2, 9):
        for name in IMPLICIT:  # made of others by torch, when called alone
            del rows[name]
    return rows


@functools.cache
def versions(opset: int) -> dict[str, int]:
    """The version of each operator at an opset."""
    latest: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= opset:
            latest[schema.name] = max(schema.since_version, latest.get(schema.name, 0))
    return latest


@functools.cache
def traced(name: str) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    # An operator about symbolic sizes is in the graph where they are symbolic only.
    return trace(first_rows()[name], dynamic=name.startswith("aten::sym_"))


def difficulty(name: str, opset: int) -> str:
    """What is wrong with an operator at an opset, or nothing."""
    case = first_rows()[name]
    graph_module, tensors = traced(name)
    try:
        model = convert(graph_module, opset).model
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        used = {n.op_type for n in model.graph}
        if opset <= max_opset() and any(_changed(op_type, opset) for op_type in used):
            compare(run(graph_module, tensors, opset), expect(case), case)
    except Exception as e:
        # Whatever breaks is the finding.
        return f"{type(e).__name__}: {e}"
    return ""


def _changed(op_type: str, opset: int) -> bool:
    beside = opset - 1 if opset > 18 else 18
    return versions(opset)[op_type] != versions(beside).get(op_type)


@pytest.mark.parametrize("opset", OPSETS)
def test_each_opset(opset: int) -> None:
    # NOTE: one test an opset, not one a row: collecting 3,000 tests costs more than running them.
    assert len(first_rows()) > 400
    found = {name: difficulty(name, opset) for name in first_rows()}
    assert {name: text for name, text in found.items() if text} == {}
