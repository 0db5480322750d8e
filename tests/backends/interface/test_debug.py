"""onnx_debug_backend: the same numbers, each of them visible, and wrong ones found."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from dort_rewriter import (
    DivergenceError,
    ExecutionError,
    OptionError,
    ResultReachedError,
    onnx_debug_backend,
)

ENGINES = pytest.mark.parametrize("engine", ["reference", "onnxruntime"])


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def debugged(function: Callable[..., Any], *, dynamic: bool = False, **options: Any) -> Any:
    return torch.compile(
        function,
        backend=lambda graph, args: onnx_debug_backend(graph, args, **options),
        dynamic=dynamic,
        fullgraph=True,
    )


def scaled(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = torch.relu(y)  # the line that is to be found
    return z * 2


def relu_to_abs(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.op_type = node.op_type.replace("Relu", "Abs")


@ENGINES
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_it_trains_as_eager_does_with_every_result_compared(engine: str, dynamic: bool) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    )
    storage: dict[str, Any] = {}
    compiled = debugged(model, dynamic=dynamic, backend=engine, compare=True, storage=storage)
    x = torch.randn(4, 6)
    result = compiled(x)
    result.square().sum().backward()
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    expected = model(x)
    expected.square().sum().backward()
    torch.testing.assert_close(result, expected)
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, atol=1e-4, rtol=1e-4)
    assert [i["providers"] for i in storage["instance"]] == [[f"{engine}, node by node"]] * 2


@ENGINES
def test_the_first_result_that_differs_is_named_with_its_line(engine: str) -> None:
    compiled = debugged(scaled, compare=True, backend=engine, pre_ort_model_transforms=relu_to_abs)
    compiled(torch.ones(2, 3))  # nothing to see on positive numbers
    with pytest.raises(DivergenceError, match=r"'relu', computed by Abs\(add\)") as info:
        compiled(torch.full((2, 3), -3.0))
    assert "6 of 6 elements differ" in str(info.value)
    assert "test_debug.py:" in info.value.where
    assert "the line that is to be found" in info.value.where
    assert (info.value.name, info.value.node) == ("relu", "relu")


def test_a_wrong_output_is_found_under_its_name() -> None:
    def subtract(model: onnx.ModelProto) -> None:
        model.graph.node[-1].op_type = "Sub"

    compiled = debugged(lambda x: x + 1, compare=True, pre_ort_model_transforms=subtract)
    with pytest.raises(DivergenceError) as info:
        compiled(torch.randn(2, 3))
    assert (info.value.name, info.value.node) == ("output_0", "add")


def test_an_output_in_another_order_is_compared_in_that_order() -> None:
    compiled = debugged(lambda x: torch.relu(x.t()), compare=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(compiled(x), torch.relu(x.t()))


def test_operators_with_several_results_are_compared() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, indices = torch.topk(x, 2)
        return values * 2, indices + 1

    compiled = debugged(function, compare=True)
    x = torch.randn(3, 5)
    for got, want in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(got, want)


@ENGINES
def test_a_run_stops_at_a_named_result(engine: str) -> None:
    compiled = debugged(scaled, raise_list=["relu"], backend=engine)
    with pytest.raises(ResultReachedError, match=r"relu: float32\[2, 3\] = Relu\(add\)") as info:
        compiled(torch.ones(2, 3))
    np.testing.assert_allclose(info.value.value, np.full((2, 3), 2.0))


@pytest.mark.parametrize("verbose", [0, 10])
def test_results_are_printed_from_ten_on(verbose: int, capsys: pytest.CaptureFixture[str]) -> None:
    debugged(scaled, verbose=verbose)(torch.ones(2, 5))
    printed = capsys.readouterr().out
    assert ("relu: float32[2, 5] = Relu(add) -> min=2 max=2 mean=2\n" in printed) == (verbose > 0)
    assert bool(printed) == (verbose > 0)


def test_results_are_printed_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    debugged(scaled, verbose=10, stream=stream)(torch.ones(2, 3))
    assert "relu: float32[2, 3] = Relu(add) -> [2.0, 2.0," in stream.getvalue()
    assert capsys.readouterr().out == ""


def test_types_that_onnxruntime_does_not_take_from_numpy() -> None:
    compiled = debugged(scaled, backend="onnxruntime", compare=True)
    x = torch.randn(2, 3, dtype=torch.bfloat16)
    torch.testing.assert_close(compiled(x), scaled(x))


def test_an_operator_out_of_reach_of_the_reference_says_so() -> None:
    def fuse(model: onnx.ModelProto) -> None:
        model.opset_import.add(domain="com.microsoft", version=1)
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type, node.domain = "QuickGelu", "com.microsoft"

    with pytest.raises(Exception, match="run the model with onnxruntime") as info:
        debugged(scaled, pre_ort_model_transforms=fuse)(torch.ones(2))
    assert isinstance(info.value.__cause__ or info.value, ExecutionError | RuntimeError)
    torch._dynamo.reset()
    compiled = debugged(scaled, pre_ort_model_transforms=fuse, backend="onnxruntime")
    y = torch.full((2,), 2.0)
    torch.testing.assert_close(compiled(torch.ones(2)), y * (1.702 * y).sigmoid() * 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"backend": "numpy"}, "reference"),
        ({"raise_lists": ["relu"]}, "did you mean 'raise_list'"),
        ({"raise_list": "relu"}, "raise_list of DebugBackendOptions is a list"),
        ({"tolerance": -1.0}, "tolerance of DebugBackendOptions is 0 or more"),
        ({"storage": []}, "storage of DebugBackendOptions is a dictionary"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        onnx_debug_backend(torch.fx.symbolic_trace(scaled), (torch.ones(2),), **wrong)
