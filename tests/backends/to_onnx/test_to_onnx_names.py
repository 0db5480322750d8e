"""to_onnx: the names of dimensions, inputs and outputs, and the opsets of a model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import ExportError, ExportOptions, OptionError, to_onnx
from dort_rewriter.errors import CaptureError

X, Y = torch.randn(3, 4), torch.randn(4, 5)


class Product(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([(x @ y).relu(), torch.zeros(2, y.shape[1])])


class Nested(torch.nn.Module):
    def forward(
        self, pair: list[torch.Tensor], *rest: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        return pair[0].sum() + pair[1] + rest[0].sum() + rest[1].sum() + last.sum()


def dims(model: onnx.ModelProto) -> dict[str, list[str | int]]:
    return {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }


def outputs(model: onnx.ModelProto, *inputs: torch.Tensor) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feeds = zip(session.get_inputs(), inputs, strict=True)
    return session.run(None, {i.name: t.numpy() for i, t in feeds})


def test_a_dimension_has_the_name_of_its_dim() -> None:
    shapes = {"x": {0: Dim("batch")}, "y": {1: Dim("wide")}}
    model, builder = to_onnx(Product(), (X, Y), dynamic_shapes=shapes, return_builder=True)
    found = dims(model)
    assert found["x"] == ["batch", 4]
    assert found["y"] == [4, "wide"]
    # What is computed of a dimension is written with its name.
    assert found["output_0"] == ["batch + 2", "wide"]
    assert builder.signature.inputs[0].shape == ("batch", 4)
    assert not [s for s in str(model).split() if s.strip('"').startswith(("s7", "s9"))]
    (got,) = outputs(model, torch.randn(7, 4), Y)
    assert got.shape == (9, 5)


@pytest.mark.parametrize(
    "shapes",
    [
        {"x": {0: "batch"}, "y": {1: "wide"}},
        ({0: "batch"}, {1: "wide"}),
        [("batch", None), (None, "wide")],
    ],
    ids=str,
)
def test_a_text_is_a_dimension(shapes: Any) -> None:
    found = dims(to_onnx(Product(), (X, Y), dynamic_shapes=shapes))
    assert (found["x"], found["y"]) == (["batch", 4], [4, "wide"])


def test_dimensions_count_from_the_last_too() -> None:
    for shapes in (({-2: "batch"}, {-1: Dim("wide")}), {"x": {-2: "batch"}, "y": {-1: "wide"}}):
        found = dims(to_onnx(Product(), (X, Y), dynamic_shapes=shapes))
        assert (found["x"], found["y"]) == (["batch", 4], [4, "wide"])
    args = ([X, torch.randn(2)], torch.randn(6), torch.randn(7))
    shapes = {"pair": [{-2: "rows"}, None], "rest": ({-1: "first"}, None), "last": {-1: "last"}}
    model = to_onnx(Nested(), args, {"last": torch.randn(8)}, dynamic_shapes=shapes)
    assert [d[0] for d in dims(model).values()][:5] == ["rows", 2, "first", 7, "last"]


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (({2: "b"}, None), "dimension 2 of a tensor of 2"),
        (({-3: "b"}, None), "dimension -3 of a tensor of 2"),
        (({0: "b", -2: "c"}, None), "dimension 0 of a tensor twice"),
        (({0: ""}, None), "is a name like 'batch', not ''"),
        (({0: "b+1"}, None), "is a name like 'batch', not 'b\\+1'"),
        ("batch", "of each argument what is dynamic, not 'batch'"),
    ],
    ids=str,
)
def test_dimensions_that_are_none(shapes: Any, reason: str) -> None:
    with pytest.raises(CaptureError, match=reason):
        to_onnx(Product(), (X, Y), dynamic_shapes=shapes)


@pytest.mark.parametrize("rows", ["batch", Dim("batch")], ids=["text", "Dim"])
def test_a_collection_of_torch_has_names(rows: Any) -> None:
    x, y = X.clone(), Y.clone()
    shapes = torch.export.ShapesCollection()
    shapes[x] = {0: rows}
    shapes[y] = {-1: "wide"}
    found = dims(to_onnx(Product(), (x, y), dynamic_shapes=shapes))
    assert (found["x"], found["y"]) == (["batch", 4], [4, "wide"])


def test_a_name_is_no_symbol_of_another_dimension(caplog: pytest.LogCaptureFixture) -> None:
    shapes: Any = ({0: Dim.DYNAMIC}, {1: Dim.DYNAMIC})
    found = dims(to_onnx(Product(), (X, Y), dynamic_shapes=shapes))
    symbol, other = found["x"][0], found["y"][1]
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"):
        found = dims(to_onnx(Product(), (X, Y), dynamic_shapes=(shapes[0], {1: symbol})))
    assert (found["x"][0], found["y"][1]) == (symbol, f"{symbol}_1")
    assert f"the second is named '{symbol}_1'" in caplog.text
    # Symbols that have other names are free.
    found = dims(to_onnx(Product(), (X, Y), dynamic_shapes=({0: other}, {1: symbol})))
    assert (found["x"][0], found["y"][1]) == (other, symbol)


def test_a_graph_is_exported_with_its_dynamic_shapes() -> None:
    shapes = ({0: "batch"}, {-1: "wide"})
    model = to_onnx(torch.fx.symbolic_trace(Scaled()), (X, Y), dynamic_shapes=shapes)
    assert list(dims(model).values()) == [["batch", 4], [4, "wide"], ["batch", "wide"]]
    assert outputs(model, torch.randn(7, 4), Y)[0].shape == (7, 5)


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu() * 2


def test_the_dimensions_of_a_graph_that_is_there() -> None:
    traced = [make_fx(Scaled(), tracing_mode=mode)(X, Y) for mode in ("symbolic", "fake", "real")]
    shapes = ({0: "batch"}, {-1: "wide"})
    found = list(dims(to_onnx(traced[0], (X, Y), dynamic_shapes=shapes)).values())
    assert (found[0][0], found[1][1], found[2]) == ("batch", "wide", ["batch", "wide"])
    for graph in traced[1:]:
        with pytest.raises(CaptureError, match="was made for 3 in dimension 0 of input 0"):
            to_onnx(graph, (X, Y), dynamic_shapes=shapes)
    with pytest.raises(CaptureError, match="was made for 5 in dimension 1 of input 1"):
        to_onnx(torch.export.export(Scaled(), (X, Y)), dynamic_shapes=(None, {1: "wide"}))
    with pytest.raises(CaptureError, match="need example arguments"):
        to_onnx(torch.fx.symbolic_trace(Scaled()), dynamic_shapes=shapes)


def test_an_export_that_fails_leaves_no_marks_on_tensors() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(3, 4)

    x = X.clone()
    with pytest.raises(CaptureError, match="could not capture Fixed"):
        to_onnx(Fixed(), (x,), dynamic_shapes=({0: "b"},))
    assert not vars(x)
    assert dims(to_onnx(Fixed(), (x,)))["x"] == [3, 4]


def test_names_reach_arguments_inside_others() -> None:
    args = ([X, torch.randn(2)], torch.randn(6), torch.randn(7))
    shapes = {
        "pair": [{0: "rows"}, None],
        "rest": ({0: "first"}, {0: Dim.AUTO}),
        "last": {0: "last"},
    }
    model = to_onnx(Nested(), args, {"last": torch.randn(8)}, dynamic_shapes=shapes)
    found = list(dims(model).values())
    assert found[0] == ["rows", 4]
    assert found[2] == ["first"]
    assert str(found[3][0]).startswith("s")  # a hint has no name
    assert found[4] == ["last"]


def test_an_exported_program_takes_names() -> None:
    program = torch.export.export(Product(), (X, Y), dynamic_shapes=({0: Dim("b")}, None))
    assert str(dims(to_onnx(program))["x"][0]).startswith("s")
    assert dims(to_onnx(program, dynamic_shapes=({0: "batch"}, None)))["x"] == ["batch", 4]


def test_equal_names_are_kept_for_equal_dimensions(caplog: pytest.LogCaptureFixture) -> None:
    class Both(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
            return x + y, z * 2

    args = (X, torch.randn(3, 4), torch.randn(6))
    shapes = ({0: "one"}, {0: "two"}, {0: "one"})
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"):
        found = dims(to_onnx(Both(), args, dynamic_shapes=shapes))
    # torch found the first two equal, and does not know it of the third.
    assert (found["x"][0], found["y"][0], found["z"][0]) == ("one", "one", "one_1")
    assert "the second is named 'one_1'" in caplog.text


def test_a_dim_derived_from_another() -> None:
    batch = Dim("batch", min=2, max=64)
    shapes = {"x": {0: 2 * batch}}

    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, -1, 4)

    found = dims(to_onnx(Halves(), (torch.randn(6, 4),), dynamic_shapes=shapes))
    assert found["x"][0] == "2*batch"
    assert found["output_0"] == [2, "batch", 4]


def test_outputs_are_named() -> None:
    assert "product" in dims(to_onnx(Product(), (X, Y), output_names=["product"]))
    with pytest.raises(ExportError, match=r"2 output name\(s\) for 1 output"):
        to_onnx(Product(), (X, Y), output_names=["a", "b"])


class Several(torch.nn.Module):
    """A model with nodes, constants and a subgraph, whose names a user may want."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a * 2, (x,))
        hidden = self.linear(chosen + 1).relu() * y.std(dim=1, keepdim=True)
        return torch.cat([hidden, hidden[:1]]).softmax(0), x + 1.5


def _inner_names() -> list[str]:
    graph = to_onnx(Several(), (X, X)).graph
    bodies = [a.g for n in graph.node for a in n.attribute if a.type == a.GRAPH]
    return [
        *(t.name for t in graph.initializer),
        *(name for g in (graph, *bodies) for n in g.node for name in n.output),
    ]


@pytest.mark.parametrize("level", [None, {"patterns": None}], ids=["optimized", "as converted"])
def test_what_lies_between_gives_way_to_names(level: Any) -> None:
    module = Several().eval()
    expected = [t.detach().numpy() for t in module(X, X)]
    names = sorted(
        {*_inner_names(), "relu", "add", "add_1", "val_1", "constant_0", "linear.weight"}
    )
    # What names an input at one level names an output at the other.
    for i in range(0 if level is None else 2, len(names), 4):
        first, second = names[i : i + 2], names[i + 2 : i + 4] or names[:2]
        if len(first) == len(second) == 2:
            given = {"input_names": first, "output_names": second}
            model = to_onnx(module, (X, X), **given, options=level)
            onnx.checker.check_model(model, full_check=True)
            assert list(dims(model)) == [*first, *second]
            for mine, theirs in zip(outputs(model, X, X), expected, strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("option", ["input_names", "output_names"])
@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("ab", "is a list of names, not 'ab'"),
        (3, "is a list of names, not 3"),
        (["a", ""], "has '', which is not a name"),
        (["a", 3], "has 3, which is not a name"),
        (["a", "a"], "has duplicates"),
    ],
    ids=str,
)
def test_names_that_are_none(option: str, names: Any, reason: str) -> None:
    with pytest.raises(ExportError, match=f"{option} {reason}"):
        to_onnx(Several(), (X, X), **{option: names})


def test_an_output_has_another_name_than_an_input() -> None:
    with pytest.raises(ExportError, match="'x', which is the name of an input"):
        to_onnx(Several(), (X, X), output_names=["o", "x"])
    with pytest.raises(ExportError, match="'a', which is the name of an input"):
        to_onnx(Several(), (X, X), input_names=["a", "b"], output_names=["a", "o"])
    model = to_onnx(Several(), (X, X), input_names=["a", "b"], output_names=["x", "y"])
    assert list(dims(model)) == ["a", "b", "x", "y"]


def imports(model: onnx.ModelProto) -> Mapping[str, int]:
    return {o.domain: o.version for o in model.opset_import}


@pytest.mark.parametrize("opset", [13, 16, 17, 24, onnx.defs.onnx_opset_version()])
def test_other_opsets(opset: int) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    model = to_onnx(module.eval(), (X,), target_opset=opset)
    assert imports(model) == {"": opset}
    onnx.checker.check_model(model, full_check=True)
    if opset < 18:
        expected = module(X).detach().numpy()
        np.testing.assert_allclose(outputs(model, X)[0], expected, atol=1e-6)


class Cropped(torch.nn.Module):
    """A node of an operator that is younger than opset 17, and has no parts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = torch.tensor([2, 2])
        spelled = torch.onnx.ops.symbolic(
            "CenterCropPad", (x, sizes), dtype=x.dtype, shape=(2, 2), version=18
        )
        return spelled + 1


def test_what_an_older_opset_cannot_say_is_said() -> None:
    with pytest.raises(ExportError, match=r"CenterCropPad cannot be .* opset 17: .* opset 18 or"):
        to_onnx(Cropped(), (X,), target_opset=17)
    assert imports(to_onnx(Cropped(), (X,), target_opset=18)) == {"": 18}


@pytest.mark.parametrize("target", [12, 1000, "18", True, {"": 18.0}], ids=str)
def test_an_opset_that_is_none(target: Any) -> None:
    with pytest.raises(ExportError, match=r"target_opset|not supported"):
        to_onnx(Product(), (X, Y), target_opset=target)


def test_an_opset_for_each_domain() -> None:
    model = to_onnx(Product(), (X, Y), target_opset={"": 20, "com.microsoft": 1})
    assert imports(model) == {"": 20, "com.microsoft": 1}
    assert imports(to_onnx(Product(), (X, Y), target_opset={"mine": 3})) == {"": 18, "mine": 3}


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"mine": -3}, "version -3 of 'mine': the first is 1"),
        ({"mine": 0}, "version 0 of 'mine': the first is 1"),
        ({3: 18}, "is a text, not 3"),
        ({"": 18, "ai.onnx": 19}, "the standard domain at two versions"),
    ],
    ids=str,
)
def test_domains_that_are_none(target: Any, reason: str) -> None:
    with pytest.raises(ExportError, match=reason):
        to_onnx(Product(), (X, Y), target_opset=target)


def test_the_standard_domain_has_two_names() -> None:
    for target in ({"ai.onnx": 20}, {"": 20, "ai.onnx": 20}):
        assert imports(to_onnx(Product(), (X, Y), target_opset=target)) == {"": 20}


@pytest.mark.parametrize(
    "strategy", ["nostrict", "strict", "fallback", "fallback-dec", "strict-decall"]
)
def test_strategies(strategy: str) -> None:
    model = to_onnx(torch.nn.GELU(), (X,), export_options=ExportOptions(strategy=strategy))
    expected = torch.nn.functional.gelu(X).numpy()
    np.testing.assert_allclose(outputs(model, X)[0], expected, atol=1e-6)


def test_the_fallback_tries_the_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    export, tried = torch.export.export, []

    def refuse(*args: Any, strict: bool, **kwargs: Any) -> Any:
        tried.append(strict)
        if not strict:
            raise RuntimeError("not this way")
        return export(*args, strict=strict, **kwargs)

    monkeypatch.setattr(torch.export, "export", refuse)
    to_onnx(torch.nn.ReLU(), (X,), export_options={"strategy": "fallback"})
    assert tried == [False, True]
    with pytest.raises(CaptureError, match="not this way"):
        to_onnx(torch.nn.ReLU(), (X,), export_options={"strategy": "nostrict"})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"strategy": "jit"}, "TorchScript"),
        ({"strategy": "quick"}, "Unknown strategy 'quick'"),
        ({"strategy": "strict-all"}, "Unknown strategy"),
        ({"strategy": "fallback", "strict": True}, "give one of them"),
        ({"strategy": "strict-dec", "decomposition_table": "all"}, "disagree"),
    ],
    ids=str,
)
def test_strategies_that_are_not_there(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        ExportOptions(**options)


def test_the_full_table_of_decompositions() -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.LogSoftmax(-1)
    )
    model = to_onnx(module, (X,), export_options={"decomposition_table": "all"})
    np.testing.assert_allclose(outputs(model, X)[0], module(X).detach().numpy(), atol=1e-5)
