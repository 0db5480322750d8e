"""onnx_custom_backend: every way it is called, and every argument, against eager."""

from __future__ import annotations

import copy
import functools
import io
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from functorch.compile import make_boxed_compiler, make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from dort_rewriter import (
    Dispatcher,
    OptimizationOptions,
    OptionError,
    UnsupportedOpError,
    get_decomposition_table,
    onnx_custom_backend,
    pprint_storage,
)
from tests.entry_points import environment_with_entry_points

STATIC_OR_DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])

Backend = Callable[..., Any]


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def make_mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))


def check_training(backend: Backend, *, dynamic: bool = False) -> None:
    """Train a copy in eager and the model compiled: every loss and gradient is the same."""
    model = make_mlp()
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, twin)]
    for batch in (4, 4, 3):
        x, y = torch.randn(batch, 10), torch.randn(batch, 1)
        losses = []
        for module, optimizer in zip((compiled, twin), optimizers, strict=True):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(module(x), y)
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        for optimizer in optimizers:
            optimizer.step()


def stored(storage: dict[str, Any], **options: Any) -> Backend:
    return lambda graph, args: onnx_custom_backend(graph, args, storage=storage, **options)


# -- every way in ----------------------------------------------------------------------------


@STATIC_OR_DYNAMIC
def test_given_to_torch_compile_as_it_is(dynamic: bool) -> None:
    check_training(onnx_custom_backend, dynamic=dynamic)


@pytest.mark.parametrize(("dynamic", "models"), [(False, 4), (True, 2)])
def test_in_a_lambda_with_options(dynamic: bool, models: int) -> None:
    storage: dict[str, Any] = {}
    check_training(stored(storage, target_opset=20), dynamic=dynamic)
    assert len(storage["instance"]) == models


@pytest.mark.parametrize("boxed", [False, True], ids=["plain", "boxed"])
@pytest.mark.parametrize("decomposed", [False, True], ids=["", "decomposed"])
def test_as_the_compiler_of_aot_autograd(boxed: bool, decomposed: bool) -> None:
    storage: dict[str, Any] = {}
    compiler = stored(storage)
    options: dict[str, Any] = {"decompositions": get_decomposition_table()} if decomposed else {}
    backend = aot_autograd(
        fw_compiler=make_boxed_compiler(compiler) if boxed else compiler, **options
    )
    check_training(backend)
    assert len(storage["instance"]) == 4


def test_boxed_by_hand_in_aot_autograd() -> None:
    check_training(
        aot_autograd(fw_compiler=lambda g, a: make_boxed_func(onnx_custom_backend(g, a)))
    )


def test_a_partial_and_the_options_of_torch_compile() -> None:
    storage: dict[str, Any] = {}
    backend = functools.partial(onnx_custom_backend, target_opset=20)
    compiled = torch.compile(
        make_mlp(), backend=backend, options={"storage": storage, "patterns": None}
    )
    compiled(torch.randn(2, 10)).sum().backward()
    assert [i["onnx"].opset_import[0].version for i in storage["instance"]] == [20, 20]


def test_an_unknown_option_is_refused_with_the_closest() -> None:
    graph = torch.fx.symbolic_trace(make_mlp())
    with pytest.raises(OptionError, match="did you mean 'target_opset'"):
        onnx_custom_backend(graph, (torch.randn(2, 10),), options={"target_opsets": 20})


BY_NAME = """
import torch

model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
x, storage = torch.randn(2, 4), {}
compiled = torch.compile(model, backend="onnx_custom", options={"storage": storage})
compiled(x).sum().backward()
got = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
model(x).sum().backward()
for a, p in zip(got, model.parameters()):
    torch.testing.assert_close(a, p.grad)
print("models", len(storage["instance"]))
"""


@pytest.mark.load_sensitive
def test_by_name(tmp_path: Path) -> None:
    """The entry point of pyproject.toml, in a distribution of its own, is what torch finds."""
    done = subprocess.run(
        [sys.executable, "-c", BY_NAME],
        capture_output=True,
        text=True,
        check=False,
        env=environment_with_entry_points(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    assert "models 2" in done.stdout


# -- every kind of graph ---------------------------------------------------------------------


class Dict(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"double": x * 2, "sum": x.sum()}


def test_a_graph_with_modules_and_a_single_result() -> None:
    model = make_mlp()
    x = torch.randn(3, 10)
    run = onnx_custom_backend(torch.fx.symbolic_trace(model), (x,))
    run(x).sum().backward()
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    expected = model(x)
    expected.sum().backward()
    torch.testing.assert_close(run(x), expected)
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_a_graph_that_returns_a_dictionary() -> None:
    x = torch.randn(3)
    run = onnx_custom_backend(torch.fx.symbolic_trace(Dict()), (x,))
    torch.testing.assert_close(run(x), Dict()(x))


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_graph_of_aten_operators(mode: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) + 1

    x = torch.randn(3)
    run = onnx_custom_backend(make_fx(function, tracing_mode=mode)(x), (x,))
    torch.testing.assert_close(run(x), function(x))
    torch.testing.assert_close(run([x]), function(x))


@pytest.mark.parametrize("decomposed", [False, True], ids=["as traced", "decomposed"])
def test_a_graph_of_torch_export_trains(decomposed: bool) -> None:
    class Nested(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, pair: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"y": torch.relu(self.linear(pair["a"])), "b": pair["b"] * 2}

    model = Nested()
    inputs = {"a": torch.randn(2, 4), "b": torch.randn(3)}
    program = torch.export.export(model, (inputs,))
    exported = program.run_decompositions() if decomposed else program
    storage: dict[str, Any] = {}
    module: Any = exported.module()
    run = onnx_custom_backend(module, (inputs,), storage=storage)
    got, expected = run(inputs), model(inputs)
    torch.testing.assert_close(got, expected)
    gradients = torch.autograd.grad(got["y"].sum(), list(module.parameters()))
    wanted = torch.autograd.grad(expected["y"].sum(), list(model.parameters()))
    torch.testing.assert_close(gradients, wanted)
    assert len(storage["instance"]) == 2


def test_a_graph_of_aten_operators_trains_when_its_arguments_do() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 3

    x = torch.randn(4, requires_grad=True)
    run = onnx_custom_backend(make_fx(function, tracing_mode="fake")(x.detach()), (x,))
    (got,) = torch.autograd.grad(run(x).sum(), x)
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(got, expected)
    with torch.no_grad():
        torch.testing.assert_close(run(x), function(x))


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_graph_that_writes_to_its_argument(mode: Any) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    x = torch.ones(3)
    run = onnx_custom_backend(make_fx(function, tracing_mode=mode)(torch.ones(3)), (x,))
    a, b = torch.ones(3), torch.ones(3)
    torch.testing.assert_close(run(a), function(b))
    torch.testing.assert_close(a, b)


def test_graph_breaks_give_several_graphs() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x / (x.abs() + 1)
        if y.sum() < 0:
            y = -y
        return z * y

    storage: dict[str, Any] = {}
    compiled = torch.compile(function, backend=stored(storage))
    for sign in (1, -1):
        x, y = torch.randn(4), sign * torch.ones(4)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert len(storage["instance"]) == 3


# -- what stays in torch ---------------------------------------------------------------------


def invert(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x.exp() + torch.eye(3)).relu() * 2


def test_what_cannot_be_converted_raises() -> None:
    compiled = torch.compile(invert, backend=onnx_custom_backend)
    with pytest.raises(Exception, match="linalg_inv") as info:
        compiled(torch.randn(3, 3))
    error: BaseException | None = info.value
    while error is not None and not isinstance(error, UnsupportedOpError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    assert isinstance(error, UnsupportedOpError)


def test_or_runs_in_torch_when_asked() -> None:
    storage: dict[str, Any] = {}
    compiled = torch.compile(invert, backend=stored(storage, raise_exc=False))
    x = torch.randn(3, 3)
    torch.testing.assert_close(compiled(x), invert(x))
    assert storage["instance"], "the rest of the graph is a model"


def test_a_single_result_left_to_torch_is_not_unpacked() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(3, 3)
    graph = make_fx(lambda a: torch.linalg.inv_ex(a)[0], tracing_mode="fake")(x)
    run = onnx_custom_backend(graph, (x,), raise_exc=False)
    torch.testing.assert_close(run(x), torch.linalg.inv(x))


def test_a_session_that_cannot_be_built_leaves_the_graph_to_torch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def spoil(model: onnx.ModelProto) -> None:
        model.graph.node[0].input[0] = "nowhere"

    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(2, 3)
    graph = make_fx(torch.relu, tracing_mode="fake")(x)
    run = onnx_custom_backend(graph, (x,), raise_exc=False, pre_ort_model_transforms=spoil)
    torch.testing.assert_close(run(x), torch.relu(x))
    assert "runs in torch from now on" in caplog.text


def test_an_operator_that_no_runtime_knows_goes_back_to_torch() -> None:
    def spoil(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            node.op_type = node.op_type.replace("Relu", "NoSuchOperator")

    backend = stored({}, raise_exc=False, pre_ort_model_transforms=spoil)
    x = torch.randn(2, 3)
    compiled = torch.compile(lambda x: torch.relu(x + 1) * 2, backend=backend)
    torch.testing.assert_close(compiled(x), torch.relu(x + 1) * 2)


# -- its arguments ---------------------------------------------------------------------------


def test_the_storage_holds_what_is_promised() -> None:
    storage: dict[str, Any] = {}
    compiled = torch.compile(make_mlp(), backend=stored(storage), dynamic=True)
    x = torch.randn(4, 10)
    result = compiled(x)
    forward, backward = storage["instance"]
    assert set(forward) == {
        "graph_module",
        "onnx",
        "builder",
        "sess",
        "providers",
        "placement",
        "is_dimension_in",
        "is_dimension_out",
        "inputs",
        "outputs",
    }
    assert isinstance(forward["graph_module"], torch.fx.GraphModule)
    onnx.checker.check_model(forward["onnx"])
    assert forward["providers"] == ["CPUExecutionProvider"]
    assert forward["placement"] is None, "there is no choice"
    assert sum(forward["is_dimension_in"]) == 1
    assert len(forward["is_dimension_in"]) == len(forward["inputs"][0])
    assert len(forward["is_dimension_out"]) == len(forward["outputs"][0])
    torch.testing.assert_close(forward["outputs"][0][0], result.detach())
    assert backward["inputs"] == []
    result.sum().backward()
    assert len(backward["inputs"]) == len(backward["outputs"]) == 1
    kept = copy.deepcopy([forward["outputs"], backward["outputs"]])
    compiled(x).sum().backward()  # adds to the gradients that the first step gave
    result.detach().add_(1)
    torch.testing.assert_close([forward["outputs"], backward["outputs"]], kept, rtol=0, atol=0)


def test_a_stored_session_gives_the_stored_outputs_again() -> None:
    storage: dict[str, Any] = {}
    model = make_mlp()
    compiled = torch.compile(model, backend=stored(storage))
    compiled(torch.randn(4, 10)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()  # the stored arguments are copies
    forward = storage["instance"][0]
    slots = forward["builder"].signature.inputs
    feeds = {
        slot.name: value.numpy()
        for slot, value in zip(slots, forward["inputs"][0], strict=True)
        if slot.name
    }
    got = forward["sess"].run(None, feeds)[0]
    torch.testing.assert_close(torch.from_numpy(got), forward["outputs"][0][0])


def test_the_storage_is_printed() -> None:
    storage: dict[str, Any] = {}
    compiled = torch.compile(make_mlp(), backend=stored(storage), dynamic=True)
    stream = io.StringIO()
    pprint_storage(storage, file=stream)
    assert stream.getvalue() == "0 compiled graph(s)\n"
    compiled(torch.randn(4, 10))
    stream = io.StringIO()
    pprint_storage(storage, file=stream)
    text = pprint_storage(storage)
    assert stream.getvalue() == f"{text}\n"
    assert text.startswith("2 compiled graph(s)\n[0] ")
    assert "CPUExecutionProvider" in text
    assert "Relu" in text
    assert "float32[s" in text
    assert text.count("did not run yet") == 1
    storage["instance"][0]["placement"] = {"CPUExecutionProvider": {"Relu": 2, "Gemm": 1}}
    assert "on CPUExecutionProvider (3 nodes)\n" in pprint_storage(storage)
    assert pprint_storage({"j": 3, "hh": 5}) == "{'hh': 5, 'j': 3}"


def test_names_of_the_graph_are_kept_when_asked() -> None:
    for rename, expected in ((True, "input0"), (False, "primals_1")):
        storage: dict[str, Any] = {}
        torch._dynamo.reset()
        compiled = torch.compile(make_mlp(), backend=stored(storage, rename_inputs=rename))
        compiled(torch.randn(4, 10))
        assert storage["instance"][0]["onnx"].graph.input[0].name == expected


def test_models_are_written(tmp_path: Path) -> None:
    prefix = str(tmp_path / "model_")
    check_training(lambda g, a: onnx_custom_backend(g, a, dump_prefix=prefix))
    names = sorted(p.name for p in tmp_path.glob("*.onnx"))
    assert names == [f"model_{i}.onnx" for i in range(4)]


@pytest.mark.parametrize("several", [False, True])
def test_a_transform_changes_the_model(several: bool) -> None:
    def negate(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "Neg"

    backend = stored({}, pre_ort_model_transforms=(negate,) if several else negate)
    x = torch.randn(3)
    torch.testing.assert_close(torch.compile(torch.relu, backend=backend)(x), -x)


def test_a_dispatcher_is_asked_first() -> None:
    dispatcher = Dispatcher({"aten::relu": lambda op, x: op.Neg(x)})
    x = torch.randn(3)
    compiled = torch.compile(torch.relu, backend=stored({}, dispatcher=dispatcher))
    torch.testing.assert_close(compiled(x), -x)


def test_the_decomposition_table_is_that_of_the_export_options() -> None:
    def count(table: str | None) -> int:
        storage: dict[str, Any] = {}
        torch._dynamo.reset()
        backend = stored(storage, export_options={"decomposition_table": table})
        compiled = torch.compile(torch.nn.functional.gelu, backend=backend)
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), torch.nn.functional.gelu(x))
        return len(storage["instance"][0]["graph_module"].graph.nodes)

    assert count("all") > count("none") == 3


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "all"])
def test_levels_are_known_by_both_names(level: str) -> None:
    check_training(lambda g, a: onnx_custom_backend(g, a, ort_optimization_level=level))


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(OptionError, match="ORT_DISABLE_ALL"):
        onnx_custom_backend(
            torch.fx.symbolic_trace(make_mlp()),
            (torch.randn(2, 10),),
            ort_optimization_level="most",
        )


def test_options_go_to_the_models() -> None:
    from dort_rewriter.backends.arguments import CustomBackendOptions
    from dort_rewriter.backends.custom import make_recipe, merge_options

    settings = CustomBackendOptions(
        enable_pattern="default+onnxruntime",
        disable_pattern=["CastCast"],
        processor="CUDA",
        order_algorithm="memory",
        dump_patterns="folder",
        providers="CPUExecutionProvider",
    )
    made = make_recipe(*merge_options(settings, None)).options
    assert made.optimization == OptimizationOptions(
        patterns="default+onnxruntime-CastCast",
        processor="CUDA",
        order="memory",
        dump_applied_patterns="folder",
    )
    assert made.preferred_execution_providers == ["CPUExecutionProvider"]
    given = OptimizationOptions(max_iter=2)
    assert make_recipe(*merge_options(settings, given)).options.optimization is given
    plain = merge_options(CustomBackendOptions(optimize=False), None)[1]
    assert (plain.patterns, plain.remove_unused) == (None, False)


def test_rules_change_the_models_and_are_written_where_asked(tmp_path: Path) -> None:
    def count(**options: Any) -> int:
        storage: dict[str, Any] = {}
        torch._dynamo.reset()
        compiled = torch.compile(make_mlp(), backend=stored(storage, **options))
        with torch.no_grad():
            compiled(torch.randn(4, 10))
        return len(storage["instance"][0]["onnx"].graph.node)

    optimized = count(dump_patterns=str(tmp_path))
    assert count(enable_pattern=None) == count(optimize=False) > optimized
    assert count(options={"patterns": None}) > optimized
    assert list(tmp_path.glob("*.onnx"))
    applied = {p.stem.split("_")[1] for p in tmp_path.glob("*.onnx")}
    assert count(disable_pattern=sorted(applied)) > optimized
    with pytest.raises(Exception, match="Unknown pattern 'no_such_rule'"):
        count(enable_pattern="no_such_rule")


def test_a_summary_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("dort_rewriter")
    level = logger.level
    try:
        check_training(lambda g, a: onnx_custom_backend(g, a, verbose=1))
    finally:
        logger.setLevel(level)
    assert "is a model of" in caplog.text
