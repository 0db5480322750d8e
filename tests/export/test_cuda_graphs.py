"""Graphs with the operators that torch chooses on CUDA, made without a device and run on the CPU.

Fake tensors of CUDA have no gradients without a device. The operators are called on fake tensors
of the CPU instead, which never reach a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
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
    """The result, and the gradients of the first tensors: the parameters of these names."""

    def step(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, state = tensors[-1], dict(zip(names, tensors, strict=False))
        out = torch.func.functional_call(module, state, (x,))
        wanted = [state[name] for name, _ in module.named_parameters()]
        return (out, *torch.autograd.grad(out.square().sum(), [*wanted, x]))

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
    return traced, [t.detach() for t in given()], expected


@pytest.mark.parametrize(("name", "attend"), ATTENTIONS.items(), ids=list(ATTENTIONS))
def test_a_decoder_trains_by_the_attentions_of_cuda(name: str, attend: Attend) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16)
    traced, tensors, expected = training_graph(Decoder(), x, attend)
    assert {name, f"{name}_backward"} <= operators(traced.graph)
    torch.testing.assert_close(run(traced, tensors, 18), [*expected], atol=2e-5, rtol=2e-5)


def test_pictures_pass_cudnn_and_have_gradients() -> None:
    torch.manual_seed(0)
    module, x = Pictures().eval(), torch.randn(2, 3, 8, 8)
    traced, tensors, expected = training_graph(module, x, flash)
    got = run(traced, tensors, 18)
    torch.testing.assert_close(got[: len(expected)], [*expected], atol=2e-5, rtol=2e-5)
