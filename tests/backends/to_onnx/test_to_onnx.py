"""to_onnx: what it takes, what it returns, and what it says when it cannot."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from onnx.reference import ReferenceEvaluator
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import (
    CaptureError,
    Dispatcher,
    ExportError,
    ExportOptions,
    OptimizationOptions,
    OptionError,
    OxsDispatcher,
    create_input_names,
    get_decomposition_table,
    to_onnx,
)
from dort_rewriter.errors import UnsupportedOpError
from dort_rewriter.ort_module import max_ir_version, max_opset
from dort_rewriter.runtime import model_files
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session
from tests.dynamo_graphs import graph_of_dynamo

X = torch.arange(6.0).reshape(2, 3) - 2


class Affine(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([[1.0, -2.0, 0.5]]))
        self.register_buffer("shift", torch.tensor(0.25))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return torch.nn.functional.silu(x * self.weight + self.shift) * scale


class Branch(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


def run(model: onnx.ModelProto, *inputs: torch.Tensor) -> list[torch.Tensor]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    feed = dict(zip(names, (t.numpy() for t in inputs), strict=True))
    return [torch.from_numpy(r) for r in session.run(None, feed)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_the_published_call(dynamic: bool, caplog: pytest.LogCaptureFixture) -> None:
    options = OptimizationOptions(patterns="default")
    dispatcher, target_opset = OxsDispatcher(), 18
    models: list[onnx.ModelProto] = []

    def compile_graph(graph_module: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
        input_names = create_input_names(graph_module, args)
        # As published, word for word.
        onnx_model, builder = to_onnx(graph_module, tuple(args), input_names=input_names, options=options, verbose=1, target_opset=target_opset, return_builder=True, dispatcher=dispatcher)  # noqa: E501  # fmt: skip
        assert [i.name for i in onnx_model.graph.input] == input_names
        models.append(onnx_model)
        return make_boxed_func(Executor(create_session(onnx_model), builder.signature))

    model, reference = Affine(), Affine()
    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        decompositions=get_decomposition_table(dispatcher),
        partition_fn=min_cut_rematerialization_partition,  # torch 2.8's default one asserts
    )
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        for rows in (2, 4):
            x = torch.randn(rows, 3)
            compiled(x).sum().backward()
            reference(x).sum().backward()
    torch.testing.assert_close(model.weight.grad, reference.weight.grad)
    assert len(models) == (2 if dynamic else 4)
    assert "nodes, inputs ['input0'" in caplog.text.replace("('input0'", "['input0'")


def test_a_module_with_keyword_arguments() -> None:
    model = to_onnx(Affine(), (X,), {"scale": 2.0})
    onnx.checker.check_model(model)
    # NOTE: a number is a constant of the graph: an input for it would change nothing.
    assert [i.name for i in model.graph.input] == ["x"]
    torch.testing.assert_close(run(model, X)[0], Affine()(X, scale=2.0))


def test_an_exported_program() -> None:
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Affine(), (X,), dynamic_shapes={"x": {0: rows}})
    model = to_onnx(program)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    wide = torch.randn(7, 3)
    torch.testing.assert_close(run(model, wide)[0], Affine()(wide))


def test_dynamic_shapes_are_those_of_torch_export() -> None:
    shapes = {"x": {0: torch.export.Dim("rows", min=2)}}
    model = to_onnx(torch.nn.ReLU(), (X,), dynamic_shapes={"input": shapes["x"]})
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert run(model, torch.randn(9, 3))[0].shape == (9, 3)


def test_the_graph_of_dynamo() -> None:
    graph = graph_of_dynamo(lambda x: x.relu().sum(dim=1), X)
    torch.testing.assert_close(run(to_onnx(graph, (X,)), X)[0], X.relu().sum(dim=1))


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_resizing_in_the_graph_of_dynamo(mode: str) -> None:
    module, image = torch.nn.Upsample(scale_factor=2, mode=mode), torch.randn(1, 3, 4, 4)
    model = to_onnx(graph_of_dynamo(module, image), (image,))
    assert [n.op_type for n in model.graph.node] == ["Resize"]
    torch.testing.assert_close(run(model, image)[0], module(image))


def test_a_graph_without_metadata() -> None:
    traced = make_fx(lambda x: x.relu() + 1)(X)
    for node in traced.graph.nodes:
        node.meta.clear()
    torch.testing.assert_close(run(to_onnx(traced, (X,)), X)[0], X.relu() + 1)
    for node in traced.graph.nodes:
        node.meta.clear()
    with pytest.raises(CaptureError, match=r"give example arguments \(args=\.\.\.\)"):
        to_onnx(traced)


@pytest.mark.parametrize("table", [None, "default", "core", "all", "none", {}])
@pytest.mark.parametrize("strict", [False, True])
def test_ways_to_capture(table: Any, strict: bool) -> None:
    choice = ExportOptions(decomposition_table=table, strict=strict)
    model = to_onnx(Affine(), (X,), export_options=choice)
    torch.testing.assert_close(run(model, X)[0], Affine()(X))


def test_a_table_of_ones_own() -> None:
    table = {torch.ops.aten.silu.default: lambda x: x.relu()}
    model = to_onnx(Affine(), (X,), export_options={"decomposition_table": table})
    assert "Relu" in {n.op_type for n in model.graph.node}


def test_an_unknown_table_names_the_known() -> None:
    with pytest.raises(OptionError, match=r"'cores'.*'core'"):
        to_onnx(Affine(), (X,), export_options={"decomposition_table": "cores"})


@pytest.mark.parametrize("opset", range(18, 24))
def test_the_ir_version_fits_the_opset_and_onnxruntime(opset: int) -> None:
    model = to_onnx(Affine(), (X,), target_opset=opset)
    onnx.checker.check_model(model, full_check=True)
    assert {o.domain: o.version for o in model.opset_import}[""] == opset
    if opset <= max_opset():
        assert model.ir_version <= max_ir_version()
        torch.testing.assert_close(run(model, X)[0], Affine()(X))
    else:
        with pytest.raises(Exception, match=r"(?i)opset|ir_version|IR version"):
            run(model, X)


@pytest.mark.parametrize("strict", [False, True])
def test_data_dependent_control_flow(strict: bool) -> None:
    with pytest.raises(CaptureError, match=r"(?s)Branch.*torch\.cond.*torch\.compile"):
        to_onnx(Branch(), (X,), export_options={"strict": strict})


def test_an_export_that_fails_leaves_no_hook_on_buffers() -> None:
    class Counted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.shape[0]
            return x * self.seen

    with pytest.raises(CaptureError):
        to_onnx(Branch(), (X,))
    model = Counted()
    compiled = torch.compile(model, backend="onnxrt", fullgraph=True)
    torch.testing.assert_close(compiled(X), X * X.shape[0])
    assert int(model.seen) == X.shape[0]


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(CaptureError, match=r"(?s)Affine.*Check that the model runs on these args"):
        to_onnx(Affine(), (X, X, X))
    traced = make_fx(lambda x, y: x + y, tracing_mode="fake")(X, X)
    with pytest.raises(CaptureError, match=r"takes 2 argument\(s\), 1 were given"):
        to_onnx(traced, (X,))
    with pytest.raises(CaptureError, match="positional arguments only"):
        to_onnx(traced, (X, X), {"x": X})
    with pytest.raises(CaptureError, match="could not capture run: "):
        to_onnx(run, (X,))
    with pytest.raises(CaptureError, match="a GraphModule, got int"):
        to_onnx(3, (X,))  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["x", "y"], r"2 name\(s\) but the graph has 1 input\(s\); create_input_names"),
        ([], r"0 name\(s\) but the graph has 1"),
    ],
)
def test_input_names_that_do_not_fit(names: list[str], text: str) -> None:
    with pytest.raises(ExportError, match=text):
        to_onnx(Affine(), (X,), input_names=names)


def test_input_names_given_twice() -> None:
    traced = make_fx(lambda x, y: x + y, tracing_mode="fake")(X, X)
    with pytest.raises(ExportError, match=r"duplicates: \['x', 'x'\]"):
        to_onnx(traced, (X, X), input_names=["x", "x"])


def test_an_input_may_have_the_name_of_a_size() -> None:
    model = to_onnx(Affine(), (X,), input_names=["input_dim_0"])
    assert [i.name for i in model.graph.input] == ["input_dim_0"]
    torch.testing.assert_close(run(model, X)[0], Affine()(X))


def test_unknown_options_name_the_closest() -> None:
    with pytest.raises(OptionError, match="did you mean 'constant_folding'"):
        to_onnx(Affine(), (X,), options={"constant_fold": True})
    with pytest.raises(OptionError, match="did you mean 'strict'"):
        to_onnx(Affine(), (X,), export_options={"stric": True})


def test_all_unsupported_operators_are_listed_with_their_lines() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(len(x), dtype=torch.int64)
        first = torch.segment_reduce(x, "sum", lengths=ones)
        values = torch.linalg.eigvals(first[:, : len(x)]).real
        return values.sum() + torch.segment_reduce(first, "sum", lengths=ones)

    class Unsupported(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    with pytest.raises(UnsupportedOpError) as raised:
        to_onnx(Unsupported(), (X,))
    text = str(raised.value)
    assert "2 x aten::segment_reduce: no converter" in text
    assert re.search(r"aten::_?linalg_eig\w*: no converter for complex numbers", text)
    assert f"{Path(__file__).name}:" in text
    assert "Register a converter" in text


def test_a_model_in_a_file(tmp_path: Path) -> None:
    target = tmp_path / "model.onnx"
    model = to_onnx(Affine(), (X,), filename=target)
    assert [f.name for f in tmp_path.iterdir()] == ["model.onnx"]
    assert onnx.load(target) == model


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"folder .*missing does not exist; create it"):
        to_onnx(Affine(), (X,), filename=tmp_path / "missing" / "model.onnx")
    with pytest.raises(ExportError, match="it is a folder; add the name of a file"):
        to_onnx(Affine(), (X,), filename=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.load_sensitive
def test_a_folder_that_takes_no_file() -> None:
    # Root may write everywhere but into the file system of the kernel.
    with pytest.raises(ExportError, match=r"Cannot write /proc/model\.onnx: .* is writable"):
        to_onnx(Affine(), (X,), filename="/proc/model.onnx")


@pytest.mark.parametrize("limit", [model_files.INLINE_LIMIT, 4], ids=["one file", "two files"])
def test_a_full_disk_leaves_nothing(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "model.onnx"
    old.write_bytes(b"what was there before")

    def write_half(model: Any, path: str, **_: Any) -> None:
        Path(path).write_bytes(b"half")
        Path(f"{path}.data").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_files, "INLINE_LIMIT", limit)
    monkeypatch.setattr(ir, "save", write_half)
    with pytest.raises(ExportError, match=r"No space left on device.*16 bytes free"):
        to_onnx(Affine(), (X,), filename=old)
    assert [f.name for f in tmp_path.iterdir()] == ["model.onnx"]
    assert old.read_bytes() == b"what was there before"


def test_large_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the message that is returned, and in a file of their own beside the model's."""
    monkeypatch.setattr(model_files, "INLINE_LIMIT", 1000)
    _check_large(torch.nn.Linear(64, 32), tmp_path)


@pytest.mark.skipif(
    "not config.getoption('--run-large')",
    reason="needs 12 GB of memory, 3 GB of disk and a minute: --run-large",
)
def test_weights_of_more_than_2_gb(tmp_path: Path) -> None:
    _check_large(torch.nn.Linear(2**15, 2**14 + 2**10), tmp_path)


def _check_large(linear: torch.nn.Linear, tmp_path: Path) -> None:
    x = torch.randn(1, linear.in_features)
    target = tmp_path / "large.onnx"
    model = to_onnx(linear, (x,), filename=target)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data"]
    assert target.stat().st_size < 10_000
    assert (tmp_path / "large.onnx.data").stat().st_size >= linear.weight.nbytes
    expected = linear(x).detach()
    session = create_session(model)
    del model
    (got,) = Executor(session, to_onnx(linear, (x,), return_builder=True)[1].signature)(x)
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)
    from_file = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    (again,) = from_file.run(None, {from_file.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(again), expected, atol=1e-3, rtol=1e-4)


def test_a_users_converter_comes_first() -> None:
    mine = Dispatcher({"aten::silu": lambda op, x: op.Neg(x)})
    model = to_onnx(torch.nn.SiLU(), (X,), dispatcher=mine)
    torch.testing.assert_close(run(model, X)[0], -X)


@pytest.mark.parametrize("traced", ["by torch.fx", "by torch.export"])
def test_a_graph_module_that_returns_a_structure(traced: str) -> None:
    class Nested(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"y": torch.relu(self.linear(x))}

    model, x = Nested(), torch.randn(2, 4)
    graph: Any = (
        torch.fx.symbolic_trace(model)
        if traced == "by torch.fx"
        else torch.export.export(model, (x,)).module()
    )
    proto = to_onnx(graph, (x,))
    assert len(proto.graph.input) == 1
    (got,) = ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), model(x)["y"].detach())


def test_a_tensor_stands_for_one_argument_and_a_compiled_module_for_its_own() -> None:
    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    expected = model(x).detach()
    compiled = torch.compile(model, backend="eager")
    for given in (model, compiled, torch.nn.Sequential(compiled)):
        torch.testing.assert_close(run(to_onnx(given, x), x)[0], expected)


def test_weights_without_values_are_refused() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(4, 3)
    with pytest.raises(CaptureError, match=r"'weight', 'bias' are on the meta device.*to_empty"):
        to_onnx(model, (torch.randn(2, 4, device="meta"),))


def test_an_argument_that_is_written_to_and_returned() -> None:
    """A file has the results that the model has, each once, in their order."""

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(3))

        def forward(self, x: torch.Tensor, kept: torch.Tensor) -> tuple[torch.Tensor, ...]:
            kept.add_(x)
            self.calls.add_(1)
            return x * 2, kept, self.calls

    inputs = (torch.ones(3), torch.full((3,), 5.0))
    proto = to_onnx(Counting(), inputs, output_names=["double", "new", "calls"])
    assert [o.name for o in proto.graph.output] == ["double", "new", "calls"]
    got = run(proto, torch.ones(3), torch.full((3,), 5.0))
    assert [value.tolist() for value in got] == [[2.0] * 3, [6.0] * 3, [1.0] * 3]


def test_a_check_that_torch_orders_by_a_token_is_no_input() -> None:
    class Solved(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return torch.linalg.solve(a + 3 * torch.eye(3), b)

    inputs = (torch.rand(3, 3), torch.rand(3, 2))
    proto = to_onnx(Solved(), inputs)
    assert [i.name for i in proto.graph.input] == ["a", "b"]
    torch.testing.assert_close(run(proto, *inputs), [Solved()(*inputs)], atol=1e-5, rtol=1e-4)
