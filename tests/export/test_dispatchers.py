"""Who converts an operator: users first, and what becomes of what nobody converts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from dort_rewriter import Dispatcher, ForceDispatcher, OxsDispatcher, to_onnx
from dort_rewriter.errors import UnsupportedOpError
from dort_rewriter.export import oxs_dispatcher

X = torch.arange(6.0).reshape(2, 3) + torch.eye(2, 3)


class Call(torch.nn.Module):
    """A module of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def export(
    function: Callable[..., Any], dispatcher: Dispatcher, *args: Any, table: str | None = None
) -> onnx.ModelProto:
    options = {"decomposition_table": table}
    return to_onnx(Call(function), args or (X,), dispatcher=dispatcher, export_options=options)


def foreign(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.domain]


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


@torch.library.custom_op(
    "test_dispatchers::scaled", mutates_args=(), schema="(Tensor x, float factor) -> Tensor"
)
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    """An operator that nobody is going to convert."""
    return x * factor


@scaled.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


class aten_linalg_qr(OpRun):
    op_domain = "torch"

    def _run(self, x: Any, arg1: str = "reduced") -> Any:
        return tuple(np.linalg.qr(x, mode=arg1))


def test_an_unknown_operator_becomes_a_node_that_can_be_implemented() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        q, r = torch.linalg.qr(x.relu())
        return q @ r

    # The table of files writes it in elementary operators.
    with pytest.raises(UnsupportedOpError):
        export(function, OxsDispatcher(), table="default")
    model = export(function, ForceDispatcher(), table="default")
    onnx.checker.check_model(model)
    (node,) = foreign(model)
    assert (node.op_type, node.domain, len(node.output)) == ("aten_linalg_qr", "torch", 2)
    assert {o.domain for o in model.opset_import} == {"", "torch"}
    assert "Relu" in {n.op_type for n in model.graph.node}
    evaluator = ReferenceEvaluator(model, new_ops=[aten_linalg_qr])
    (got,) = evaluator.run(None, {model.graph.input[0].name: X.numpy()})
    np.testing.assert_allclose(got, X, atol=1e-5)


def test_arguments_become_inputs_and_attributes() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.aten.linalg_multi_dot([x, y.mT, x])
        return result + scaled(x, 1.5).sum()

    dispatcher = ForceDispatcher({}, domain="mine", own_converters=True)
    nodes = {n.op_type: n for n in foreign(export(function, dispatcher, X, X + 1))}
    assert {n.domain for n in nodes.values()} == {"mine"}
    node = nodes["test_dispatchers_scaled"]
    assert (len(node.input), attributes(node)) == (1, {"arg1": 1.5})


def test_a_list_of_tensors_keeps_all_of_them() -> None:
    dispatcher = ForceDispatcher(own_converters=False)
    (node,) = foreign(export(lambda x: torch.cat([x, x, x], dim=1), dispatcher, table="none"))
    assert node.op_type == "aten_cat"
    assert (len(node.input), attributes(node)) == (3, {"arg0_count": 3, "arg1": 1})


def test_lists_and_names_become_attributes() -> None:
    dispatcher = ForceDispatcher(own_converters=False)
    (node,) = foreign(export(lambda x: x.permute(1, 0), dispatcher, table="none"))
    assert attributes(node) == {"arg1": [1, 0]}
    (node,) = foreign(export(lambda x: x.var([1], correction=2), dispatcher, table="none"))
    assert attributes(node) == {"arg1": [1], "correction": 2}


def test_random_and_refused_operators_become_nodes_too() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + x.to(torch.float64).erfinv()

    model = export(function, ForceDispatcher())
    assert {n.op_type for n in foreign(model)} == {"aten_rand_like", "aten_erfinv"}


def test_shapes_and_types_of_its_results_are_those_of_torch() -> None:
    model = export(lambda x: torch.linalg.qr(x), ForceDispatcher())
    result = model.graph.output[1].type.tensor_type
    assert [d.dim_value for d in result.shape.dim] == [2, 3]
    assert result.elem_type == onnx.TensorProto.FLOAT


def test_a_users_function_is_found_by_name_overload_or_object() -> None:
    for key in ("aten::add", "aten::add.Tensor", torch.ops.aten.add.Tensor):
        model = export(lambda x: x + x, Dispatcher({key: lambda op, a, b: op.Mul(a, b)}))
        assert [n.op_type for n in model.graph.node] == ["Mul"]
    with pytest.raises(UnsupportedOpError, match=r"aten::add\.Tensor: no converter"):
        export(lambda x: x + x, Dispatcher(own_converters=False), table="none")


def test_what_a_user_converts_is_not_decomposed() -> None:
    mine = Dispatcher({"aten::erfc": lambda op, x: op.Sub(1.0, op.Erf(x))})
    nodes = [n.op_type for n in export(torch.erfc, mine).graph.node]
    assert sorted(nodes) == ["Erf", "Sub"]


def test_an_operator_that_torchlib_has_not_does_not_import_it() -> None:
    program = (
        "import sys\n"
        "from dort_rewriter.export.oxs_dispatcher import OxsDispatcher\n"
        "for name in '_linalg_det _linalg_eigh _linalg_slogdet _linalg_svd linalg_inv_ex "
        "linalg_qr fake_quantize_per_tensor_affine_cachemask fractional_max_pool2d'.split():\n"
        "    assert not OxsDispatcher().converts(f'aten::{name}'), name\n"
        "print('onnxscript' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().endswith("False"), done.stderr


def test_all_that_torchlib_has_is_mentioned_in_its_sources() -> None:
    functions = oxs_dispatcher._torchlib_functions()
    assert len(functions) > 400
    assert set(functions) <= oxs_dispatcher._mentioned_names()
