"""Models compiled layer by layer: equal layers share a graph, and all is as in eager mode."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dort_rewriter import (
    CaptureError,
    OptionError,
    OrtBackend,
    compile_layers,
    explain,
    load,
    save,
    warm_up,
)
from dort_rewriter.backends import layers

# Dynamo hides this warning when it looks at an argument that has gradients; here it is an error.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

SIZE = 8


class Layer(nn.Module):
    def __init__(self, number: int, *, width: int = SIZE, drop: float = 0.0) -> None:
        super().__init__()
        self.number = number
        self.scale = 0.5
        self.inner = nn.Linear(SIZE, width)
        self.outer = nn.Linear(width, SIZE)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = self.drop(self.outer(self.inner(x).tanh()))
        return x + self.scale * y if bias is None else x + self.scale * y + bias


class Numbered(Layer):
    def forward(self, x: torch.Tensor, *, bias: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, bias=bias) / (self.number + 1)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


class Deep(nn.Module):
    """What deep models are: an embedding, layers, a norm of their own, a head."""

    def __init__(self, *layers: nn.Module, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, SIZE)
        self.layers = nn.ModuleList(layers)
        self.norm = Norm()
        self.head = nn.Linear(SIZE, 16)
        self.checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: Any = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.head(self.norm(x))


TOKENS = torch.arange(12).view(2, 6)
BESIDE = 2
"""The graphs of the norm and of the head."""


@pytest.fixture
def backend() -> Iterator[OrtBackend]:
    torch._dynamo.reset()
    yield OrtBackend()
    torch._dynamo.reset()


def graphs(backend: OrtBackend) -> int:
    return len(backend._all_ort_execution_info.execution_info_per_graph_module)


def deep(count: int = 4, kind: type[Layer] = Layer, **options: Any) -> Deep:
    torch.manual_seed(0)
    return Deep(*(kind(i, **options) for i in range(count)))


def check(compiled: nn.Module, twin: nn.Module, tokens: torch.Tensor = TOKENS) -> None:
    """Compare a training step with eager mode: result, gradients, random state behind it."""
    results, states = [], []
    for model in (compiled, twin):
        torch.manual_seed(1)
        model.zero_grad()
        result = model(tokens)
        result.square().mean().backward()
        results.append(result.detach())
        states.append(torch.get_rng_state())
    torch.testing.assert_close(*results)
    assert torch.equal(*states)
    for one, other in zip(compiled.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def compiled_twin(model: nn.Module, backend: OrtBackend, **options: Any) -> nn.Module:
    return compile_layers(copy.deepcopy(model), backend=backend, **options)


def test_equal_layers_share_a_graph(backend: OrtBackend) -> None:
    model = deep()
    compiled = compiled_twin(model, backend)
    assert type(compiled) is Deep
    assert compiled.state_dict().keys() == model.state_dict().keys()
    check(compiled, model)
    assert graphs(backend) == 2 * (1 + BESIDE)
    assert backend.execution_count == 2 * (4 + BESIDE)
    with torch.no_grad():
        torch.testing.assert_close(compiled(TOKENS), model(TOKENS))
    assert graphs(backend) == 3 * (1 + BESIDE)


def test_the_model_is_compiled_in_place_and_copies_are_not(backend: OrtBackend) -> None:
    model = deep(2)
    assert compile_layers(model, backend=backend) is model
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(TOKENS), deep(2)(TOKENS))
    assert backend.execution_count == 0


def other_last() -> Deep:
    torch.manual_seed(0)
    return Deep(Layer(0), Layer(1), Layer(2, width=3))


def other_scales() -> Deep:
    model = deep(3)
    for layer, scale in zip(model.layers, (0.1, 0.2, 0.3), strict=True):
        layer.scale = scale
    return model


def shared_weights() -> Deep:
    model = deep(4)
    for layer in model.layers[2:]:
        layer.inner.weight = model.layers[0].inner.weight
    return model


def one_layer_twice() -> Deep:
    model = deep(2)
    return Deep(*model.layers, *model.layers)


def tied_inside() -> Deep:
    model = deep(3)
    model.layers[1].outer.weight = model.layers[1].inner.weight
    return model


def frozen_but_one() -> Deep:
    model = deep(3)
    for layer in model.layers:
        for parameter in layer.inner.parameters():
            parameter.requires_grad_(False)
    model.layers[1].inner.weight.requires_grad_(True)
    return model


def checkpointed() -> Deep:
    torch.manual_seed(0)
    return Deep(*(Layer(i, drop=0.5) for i in range(3)), checkpointed=True)


MODELS = [
    (lambda: deep(3, drop=0.5), 1),
    (other_last, 2),
    (other_scales, 3),
    (shared_weights, 1),
    (one_layer_twice, 1),
    (tied_inside, 2),
    (frozen_but_one, 2),
    (checkpointed, 1),
]


@pytest.mark.parametrize(
    ("make", "made"),
    MODELS,
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_step_is_that_of_eager_mode(make: Any, made: int, backend: OrtBackend) -> None:
    model = make()
    compiled = compiled_twin(model, backend)
    for _ in range(2):
        check(compiled, model)
    assert graphs(backend) == 2 * (made + BESIDE)


def test_layers_that_read_their_number_are_compiled_each(
    backend: OrtBackend, caplog: pytest.LogCaptureFixture
) -> None:
    model = deep(10, Numbered)
    compiled = compiled_twin(model, backend)
    with caplog.at_level(logging.INFO, "dort_rewriter"):
        check(compiled, model)
    (line,) = [r.getMessage() for r in caplog.records if "read what differs" in r.getMessage()]
    assert line.startswith("10 modules Numbered")
    check(compiled, model)
    made = graphs(backend)
    assert made <= 2 * (10 + 2 + BESIDE)
    with torch._dynamo.config.patch(error_on_recompile=True):
        check(compiled, model)
    assert backend.execution_count == 3 * 2 * (10 + BESIDE)


def test_hooks_that_come_later_are_called(backend: OrtBackend) -> None:
    model = deep(3)
    compiled = compiled_twin(model, backend)
    check(compiled, model)
    for each in (model, compiled):
        each.layers[1].register_forward_hook(lambda module, args, result: result * 2)
        each.layers[2].register_full_backward_hook(lambda module, given, _: (given[0] * 2,))
    check(compiled, model)
    for each in (model, compiled):
        each.layers[1]._forward_hooks.clear()
        each.layers[2]._backward_hooks.clear()
    before = graphs(backend)
    check(compiled, model)
    assert graphs(backend) == before


def test_any_size_by_one_graph(backend: OrtBackend) -> None:
    model = deep(3)
    compiled = compiled_twin(model, backend, dynamic=True)
    for rows in (2, 3, 5):
        check(compiled, model, torch.arange(6 * rows).view(rows, 6) % 16)
    assert graphs(backend) == 2 * (1 + BESIDE)


def test_training_and_inference_alternate(backend: OrtBackend) -> None:
    model = deep(3, drop=0.5)
    compiled = compiled_twin(model, backend)
    for _ in range(2):
        check(compiled.train(), model.train())
        check(compiled.eval(), model.eval())
    assert graphs(backend) == 2 * (2 + BESIDE)


def test_a_graph_around_takes_the_layers_in(backend: OrtBackend) -> None:
    model = deep(2)
    whole = torch.compile(compiled_twin(model, backend), backend=backend)
    torch.testing.assert_close(whole(TOKENS), model(TOKENS))
    assert graphs(backend) == 1


def test_modules_of_torch_are_layers(backend: OrtBackend) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(SIZE, 2, 16, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    compiled = compiled_twin(model, backend)
    x = torch.randn(2, 4, SIZE, requires_grad=True)  # as what other layers get
    check(compiled, model, x)
    assert graphs(backend) == 2


def test_without_layers_the_whole_is_one_graph(backend: OrtBackend) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU())
    compiled = compiled_twin(model, backend)
    check(compiled, model, torch.randn(2, 4))
    assert graphs(backend) == 2


def test_layers_by_the_name_that_a_model_gives(backend: OrtBackend) -> None:
    model = deep(3)
    model._repeated_blocks = ["Norm"]
    compiled = compiled_twin(model, backend)
    check(compiled, model)
    assert backend.execution_count == 2 * (1 + 1 + 3)  # the norm, the head, the layers alone


def test_options_that_are_not_those_of_torch_compile() -> None:
    with pytest.raises(OptionError, match=r"options=\{'freeze': \.\.\.\}"):
        compile_layers(deep(2), freeze=True)
    with pytest.raises(OptionError, match=r"torch\.nn\.Module"):
        compile_layers(lambda x: x)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="dynamics"):
        compile_layers(deep(2), dynamics=True)


@pytest.mark.parametrize("way", ["compile_layers", "module.compile"])
def test_each_frozen_layer_has_its_own_weights(way: str) -> None:
    model = deep(4)
    twin = copy.deepcopy(model)
    backend = OrtBackend({"freeze": True, "fallback": False})
    if way == "compile_layers":
        compile_layers(model, backend=backend)
    else:
        for layer in model.layers:
            layer.compile(backend=backend)

    def check_frozen() -> list[int]:
        with torch.no_grad():
            torch.testing.assert_close(model(TOKENS), twin(TOKENS))
            torch.testing.assert_close(model(TOKENS), twin(TOKENS))
        table = backend._all_ort_execution_info.execution_info_per_graph_module
        return [len(i.session.get_inputs()) for infos in table.values() for i in infos]

    made = 4 + (BESIDE if way == "compile_layers" else 0)
    assert check_frozen() == [1] * made
    assert check_frozen() == [1] * made
    for each in (model, twin):
        with torch.no_grad():
            each.layers[2].inner.weight.mul_(2)
    assert check_frozen() == [1] * (made + 1)
    for each in (model, twin):
        torch.manual_seed(2)
        each.layers[0] = copy.deepcopy(each.layers[1])
        each.layers[1].outer.weight.data = torch.randn(SIZE, SIZE)
    check_frozen()


def test_it_is_suggested_where_a_graph_of_layers_took_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(layers, "LONG", 0.0)
    with caplog.at_level(logging.INFO, "dort_rewriter"), torch.no_grad():
        torch.compile(deep(3), backend="onnxrt")(TOKENS)
        torch.compile(nn.Sequential(*[nn.Linear(4, 4)] * 5), backend="onnxrt")(torch.ones(1, 4))
        assert "compile_layers" not in caplog.text
        torch.compile(deep(4), backend="onnxrt")(TOKENS)
    assert "A graph with 4 layers Layer" in caplog.text
    assert "dort_rewriter.compile_layers(model)" in caplog.text


def test_it_is_saved_as_a_whole(tmp_path: Path) -> None:
    model = compile_layers(deep(3))
    with torch.no_grad():
        expected = model(TOKENS)
        with pytest.raises(CaptureError, match=r"compile_layers saw .* example arguments"):
            save(model, tmp_path / "saved")
        save(model, tmp_path / "saved", TOKENS)
        torch.testing.assert_close(load(tmp_path / "saved")(TOKENS), expected)
        torch.testing.assert_close(model(TOKENS), expected)


def test_tools_see_the_whole() -> None:
    for model, x in ((deep(3), TOKENS), (nn.Sequential(nn.Linear(4, 2)), torch.ones(2, 4))):
        compile_layers(model)
        assert len(explain(model, x).graphs) == 1
        warm_up(model, [(x,)])


def test_nested_compile_regions(backend: OrtBackend) -> None:
    """What torch has for layers within one graph."""

    class Region(Layer):
        forward = torch.compiler.nested_compile_region(Layer.forward)

    model = deep(3)
    check(torch.compile(deep(3, Region), backend=backend), model)
    assert graphs(backend) == 2
