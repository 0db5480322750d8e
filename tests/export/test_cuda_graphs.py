"""Graphs with the operators that torch chooses on CUDA, made without a device and run on the CPU.

Fake tensors of CUDA have no gradients without a device. The operators are called on fake tensors
of the CPU instead, which never reach a kernel. Recurrent layers are traced on CUDA, in inference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.registry import op_name
from tests.export.cases import run

aten = torch.ops.aten
Attend = Callable[..., Any]


def flash(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal)[0]


def efficient(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, is_causal)[0]


def cudnn(q: Any, k: Any, v: Any, is_causal: bool) -> Any:
    return aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, is_causal)[0]


def cell(fused: Any, x: Any, state: Any, *weights: Any) -> Any:
    """A step of an LSTM or a GRU as ``lstm_cell`` and ``gru_cell`` make it on CUDA."""
    of_input, of_hidden, *biases = weights
    hidden, *memory = state if isinstance(state, tuple) else (state, state)
    gates = x @ of_input.t(), hidden @ of_hidden.t()
    results = fused(*gates, *memory, *biases)
    return results[:2] if isinstance(state, tuple) else results[0]


CELLS = {
    torch.lstm_cell: aten._thnn_fused_lstm_cell,
    torch.gru_cell: aten._thnn_fused_gru_cell,
}


class ChoicesOfCuda(TorchFunctionMode):
    """Calls the operators that torch chooses where tensors are on CUDA."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is nn.functional.scaled_dot_product_attention:
            return self.attend(*args, **kwargs)
        if function is torch.batch_norm:
            x, weight, bias, mean, var, training, momentum, eps, _ = args
            return aten.cudnn_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]
        if function in CELLS:
            return cell(CELLS[function], *args)
        return function(*args, **kwargs)


class Decoder(nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(8, 16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.places(torch.arange(x.shape[1], device=x.device))
        heads = self.qkv(self.norm(x)).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*heads.unbind(), is_causal=True)
        return x + self.out(nn.functional.gelu(attended.transpose(1, 2).flatten(2)))


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(nn.functional.relu(self.norm(self.conv(x))), 2)
        return self.out(x.mean((2, 3)))


def step_of(module: nn.Module, names: list[str]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """The result, the gradients of the parameters and the argument, and the new buffers."""

    def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, state = tensors[-1], dict(zip(names, tensors, strict=False))
        state |= {name: state[name].clone() for name, _ in module.named_buffers()}
        out = torch.func.functional_call(module, state, (x,))
        wanted = [state[name] for name, _ in module.named_parameters()]
        gradients = torch.autograd.grad(out.square().sum(), [*wanted, x])
        return (out, *gradients, *(state[name] for name, _ in module.named_buffers()))

    return step


def operators(graph: torch.fx.Graph) -> set[str]:
    return {op_name(n.target) for n in graph.nodes if n.op == "call_function"}


ATTENTIONS = {
    "aten::_scaled_dot_product_flash_attention": flash,
    "aten::_scaled_dot_product_efficient_attention": efficient,
    "aten::_scaled_dot_product_cudnn_attention": cudnn,
}


def training_graph(
    module: nn.Module, x: torch.Tensor, attend: Attend
) -> tuple[torch.fx.GraphModule, list[torch.Tensor], tuple[torch.Tensor, ...]]:
    """A step as CUDA's, what it is given, and what eager mode on the CPU makes of it."""
    state = {k: v.detach().clone() for k, v in module.state_dict().items()}
    parameters = {name for name, _ in module.named_parameters()}

    def given() -> list[torch.Tensor]:
        tensors = [v.clone().requires_grad_(k in parameters) for k, v in state.items()]
        return [*tensors, x.clone().requires_grad_()]

    step = step_of(module, list(state))
    expected = step(*given())
    table = get_decomposition_table()
    with ChoicesOfCuda(attend):
        traced = make_fx(step, decomposition_table=table, tracing_mode="fake")(*given())
    tensors = [t.detach() for t in given()]
    pure = torch.func.functionalize(traced)  # running statistics are written in place
    traced = make_fx(pure, decomposition_table=table, tracing_mode="fake")(*tensors)
    return traced, tensors, expected


@pytest.mark.parametrize(("name", "attend"), ATTENTIONS.items(), ids=list(ATTENTIONS))
def test_a_decoder_trains_by_the_attentions_of_cuda(name: str, attend: Attend) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    traced, tensors, expected = training_graph(Decoder(), x, attend)
    assert {name, f"{name}_backward"} <= operators(traced.graph)
    torch.testing.assert_close(run(traced, tensors, 18), [*expected], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("training", [False, True])
def test_pictures_pass_cudnn_and_have_gradients(training: bool) -> None:
    """In training with the statistics of the batch, which go into the buffers."""
    torch.manual_seed(0)
    module, x = Pictures().train(training), torch.randn(2, 3, 8, 8)
    traced, tensors, expected = training_graph(module, x, flash)
    torch.testing.assert_close(run(traced, tensors, 18), [*expected], atol=2e-5, rtol=2e-5)


class Steps(nn.Module):
    """Cells that are called in a loop: recurrent layers written by hand."""

    def __init__(self, kind: type[nn.Module], bias: bool) -> None:
        super().__init__()
        self.cell = kind(4, 6, bias=bias)
        self.out = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = x.new_zeros(x.shape[1], 6)
        state: Any = (start, start) if isinstance(self.cell, nn.LSTMCell) else start
        outs = []
        for one in x.unbind():
            state = self.cell(one, state)
            outs.append(self.out(state[0] if isinstance(state, tuple) else state))
        return torch.stack(outs) * state[-1].mean()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells_of_cuda_train(kind: type[nn.Module], bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    traced, tensors, expected = training_graph(Steps(kind, bias), x, flash)
    assert not any("_thnn_" in name for name in operators(traced.graph))
    torch.testing.assert_close(run(traced, tensors, 18), [*expected], atol=2e-5, rtol=2e-5)


def graph_on_cuda(
    function: Callable[..., Any], tensors: list[torch.Tensor]
) -> torch.fx.GraphModule:
    """A graph of fake tensors of CUDA, traced as AOTAutograd traces: no kernel is looked for."""
    with FakeTensorMode(), enable_python_dispatcher(), torch.no_grad():
        fakes = [torch.empty(t.shape, dtype=t.dtype, device="cuda") for t in tensors]
        traced = make_fx(function, decomposition_table=get_decomposition_table())(*fakes)
    values = [n.meta.get("val") for n in traced.graph.nodes]
    assert {v.device.type for v in values if isinstance(v, torch.Tensor)} == {"cuda"}
    return traced


LAYERS: dict[str, nn.RNNBase] = {
    "lstm": nn.LSTM(4, 6, 2, batch_first=True),
    "lstm, both ways": nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True),
    "gru": nn.GRU(4, 6, 2, batch_first=True, bidirectional=True),
    "rnn_tanh": nn.RNN(4, 6, 2, batch_first=True),
    "rnn_relu": nn.RNN(4, 6, 2, batch_first=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_traced_on_cuda(name: str) -> None:
    """None is cudnn's: torch unrolls them."""
    layer, kernel = LAYERS[name], getattr(torch, name.partition(",")[0])
    weights = [p.detach() for p in layer.parameters()]
    start = torch.randn(len(weights) // 4, 3, 6)
    states = [start, start + 1] if kernel is torch.lstm else [start]

    def function(x: torch.Tensor, *rest: torch.Tensor) -> Any:
        state = rest[: len(states)] if kernel is torch.lstm else rest[0]
        settings = (True, 2, 0.0, False, layer.bidirectional, True)
        return kernel(x, state, list(rest[len(states) :]), *settings)

    tensors = [torch.randn(3, 5, 4), *states, *weights]
    expected = [*function(*tensors)]
    got = run(graph_on_cuda(function, tensors), tensors, 18)
    # NOTE: torch 2.8 gives states of four dimensions, compiled by whatever backend.
    got = [g.squeeze(1) if g.dim() > e.dim() else g for g, e in zip(got, expected, strict=True)]
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_cells_traced_on_cuda(kind: type[nn.RNNCellBase]) -> None:
    x, state, *weights = [torch.randn(3, 4), torch.randn(3, 6), *kind(4, 6).parameters()]
    tensors = [x, state, *(w.detach() for w in weights)]

    def function(x: torch.Tensor, state: torch.Tensor, *weights: torch.Tensor) -> Any:
        if kind is nn.LSTMCell:
            return torch.lstm_cell(x, (state, state + 1), *weights)
        return (torch.gru_cell(x, state, *weights),)

    got = run(graph_on_cuda(function, tensors), tensors, 18)
    torch.testing.assert_close(got, [*function(*tensors)], atol=2e-5, rtol=2e-5)
