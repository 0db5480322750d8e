"""A program that compiles several models, with ``cache_graphs`` or without: ways to compare.

usage: python -m tests.backends.lifetime.cached_graphs off on
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._dynamo.utils import counters

from dort_rewriter import OrtBackend

Compile = Callable[..., Callable[..., Any]]


def numbers(*shape: int) -> torch.Tensor:
    """The same numbers at each call."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)


def network() -> nn.Module:
    """The same weights at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))


def step(module: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    """The result, the gradients and the buffers of a training step."""
    module.zero_grad()
    result = call(x)
    result.square().sum().backward()
    grads = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return [result.detach(), *grads, *(b.clone() for b in module.buffers())]


def inference(compile: Compile) -> Any:
    module = network().eval()
    with torch.no_grad():
        return compile(module)(numbers(3, 4))


def training(compile: Compile) -> Any:
    module = network()
    call = compile(module)
    return [step(module, call, numbers(3, 4)) for _ in range(2)]


def any_size(compile: Compile) -> Any:
    module = network()
    call = compile(module, dynamic=True)
    return [step(module, call, numbers(rows, 4)) for rows in (3, 5, 7)]


def views_of_any_size(compile: Compile) -> Any:
    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        joined = torch.cat([x, y])
        return joined[1:].t(), x[:2], joined.reshape(-1), x.shape[0] + y.shape[0]

    call = compile(function, dynamic=True)
    given = numbers(3, 4), numbers(5, 4)
    results = call(*given)
    assert results[1].untyped_storage().data_ptr() == given[0].untyped_storage().data_ptr()
    return [results, call(numbers(6, 4), numbers(9, 4))]


def statistics(compile: Compile) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    call = compile(module)
    return [step(module, call, numbers(2, 3, 6, 6)) for _ in range(2)]


class Counter(nn.Module):
    """Writes to its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Count a call."""
        self.seen.add_(x.sum(0))
        self.calls += 1
        return x * self.seen


def buffers(compile: Compile) -> Any:
    module = Counter()
    call = compile(module)
    with torch.no_grad():
        return [*(call(numbers(3, 4)) for _ in range(3)), *module.buffers()]


def written_arguments(compile: Compile) -> Any:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y[:, 1] = 3
        return x + y

    given = numbers(3, 4), numbers(3, 4)
    return [compile(function)(*given), *given]


def aliases(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> Any:
        y = x * 2
        return x.t(), y, y.t(), y.view(-1)[2:5]

    x = numbers(3, 4).requires_grad_()
    results = compile(function)(x)
    sum(r.sum() for r in results).backward()
    places = [r.untyped_storage().data_ptr() for r in results]
    assert places[0] == x.untyped_storage().data_ptr()
    assert len(set(places[1:])) == 1
    return [*results, x.grad]


def second_backward(compile: Compile) -> Any:
    module = network()
    loss = compile(module)(numbers(3, 4)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return [p.grad for p in module.parameters()]


def random(compile: Compile) -> Any:
    module = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    call = compile(module)
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.uniform_(parameter)
    return [step(module, call, numbers(3, 4)) for _ in range(2)]


def constants(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.tensor(2.5)

    return compile(function)(numbers(3, 4))


def changing_weights(compile: Compile) -> Any:
    module = network().eval()
    call = compile(module, options={"freeze": True})
    with torch.no_grad():
        before = call(numbers(3, 4))
        module[0].weight.mul_(2)
        return [before, call(numbers(3, 4))]


def cut(compile: Compile) -> Any:
    module = network()
    places = {"aten::gelu": "torch", "aten::gelu_backward": "torch"}
    return step(module, compile(module, options={"placement": places}), numbers(3, 4))


def in_torch(compile: Compile) -> Any:
    return compile(lambda x: torch.view_as_real(torch.fft.fft(x)).relu() + 1)(numbers(3, 4))


def compared(compile: Compile) -> Any:
    module = network()
    return step(module, compile(module, options={"verify": True}), numbers(3, 4))


KEPT = (
    *(inference, training, any_size, views_of_any_size, statistics, buffers, written_arguments),
    *(aliases, second_backward, random, constants, changing_weights, cut, in_torch, compared),
)
"""What another process finds."""


def called_in_torch(compile: Compile) -> Any:
    return compile(lambda x: torch.linalg.inv(x @ x.t() + torch.eye(3)).relu())(numbers(3, 4))


def of_the_user(compile: Compile) -> Any:
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return grad * x * 7

    x = numbers(3, 4).requires_grad_()
    result = compile(lambda x: Exponential.apply(x) * 2)(x)
    result.sum().backward()
    return [result, x.grad]


def branches(compile: Compile) -> Any:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    return compile(function)(numbers(3, 4))


TRACED = (called_in_torch, of_the_user, branches)
"""What is traced again, since no data can say it."""


def told(value: Any) -> Any:
    """Results as JSON has them: numbers by their bits, strides, views."""
    if isinstance(value, list | tuple):
        return [told(v) for v in value]
    if not isinstance(value, torch.Tensor):
        return value
    content = value.detach().contiguous().view(-1).view(torch.uint8).tolist()
    about = [str(value.dtype), *value.shape, *value.stride(), value.requires_grad]
    return [*about, value._is_view(), bytes(content).hex()]


def run(program: Callable[[Compile], Any], cache_graphs: bool) -> dict[str, Any]:
    """What a program gives, how many sessions ran, and what became of torch's cache."""
    torch._dynamo.reset()
    counters.clear()
    made: list[OrtBackend] = []

    def compile(
        target: Any, *, dynamic: bool | None = None, options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        patterns = {"patterns": "default+onnxruntime"}  # no library has to be compiled
        chosen = {"optimization": patterns, "cache_graphs": cache_graphs, **(options or {})}
        made.append(OrtBackend(chosen))
        compiled: Callable[..., Any] = torch.compile(target, backend=made[-1], dynamic=dynamic)
        return compiled

    results = told(program(compile))
    found = {k: counters["aot_autograd"][f"autograd_cache_{k}"] for k in ("hit", "saved")}
    return {"results": results, "runs": [b.execution_count for b in made], "found": found}


def main(words: Sequence[str]) -> dict[str, Any]:
    """What all programs give in each way, and what of Inductor's compilers is imported then."""
    heavy = ("triton", "torch._inductor.lowering", "torch._inductor.compile_fx")
    found: dict[str, Any] = {}
    for word in words:
        found[word] = {p.__name__: run(p, word == "on") for p in (*KEPT, *TRACED)}
        found[word]["imported"] = [name for name in heavy if name in sys.modules]
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
