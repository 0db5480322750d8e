"""What a compiled function writes is written as in eager: inputs, buffers, caches, parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.backends.ways import compile_strictly, models

STATIC_OR_DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def _check(function: Callable[..., Any], *arguments: torch.Tensor, dynamic: bool) -> None:
    """Call twice, compiled and in eager, each on its own copy of the arguments."""
    compiled, backend = compile_strictly(function, dynamic=dynamic)
    mine, theirs = copy.deepcopy(arguments), copy.deepcopy(arguments)
    for _ in range(2):
        torch.testing.assert_close(compiled(*mine), function(*theirs))
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()
    assert backend.execution_count == 2


@STATIC_OR_DYNAMIC
def test_a_slice_of_an_input(dynamic: bool) -> None:
    def function(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache[:, 1:3] = new * 2
        cache[:, 0].add_(1)
        return cache.sum(1)

    _check(function, torch.randn(3, 5), torch.randn(3, 2), dynamic=dynamic)


@STATIC_OR_DYNAMIC
def test_an_input_that_is_not_contiguous(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(x.sum(0))
        return x.relu()

    base = torch.randn(4, 3)
    _check(function, base.t(), dynamic=dynamic)


@STATIC_OR_DYNAMIC
def test_a_view_of_what_was_written_is_returned(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.view(-1)
        y.exp_()
        return y, x + 1

    _check(function, torch.randn(2, 3), dynamic=dynamic)


@STATIC_OR_DYNAMIC
def test_what_is_read_before_a_write(dynamic: bool) -> None:
    """A view of the new value is made once the graph has written it."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        size = x.norm()
        x[0] = -0.25
        return size, size.to(torch.bfloat16), x.reshape(-1)

    compiled, _ = compile_strictly(function, dynamic=dynamic, fallback=True)
    for size in (4, 6) if dynamic else (4, 4):
        mine = torch.randn(size, 6)[:, ::2]
        theirs = mine.clone()
        torch.testing.assert_close(compiled(mine), function(theirs))
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["zero_", "fill_"])
def test_what_is_filled_lies_in_memory_as_before(name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        turned = x.abs().movedim(0, -1)
        getattr(turned, name)(*([] if name == "zero_" else [3]))
        return turned

    compiled, _ = compile_strictly(function)
    x = torch.randn(4, 3)
    got, expected = compiled(x), function(x)
    torch.testing.assert_close(got, expected)
    assert got.stride() == expected.stride() == (1, 3)


def test_a_result_is_the_input_that_was_written() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    compiled, _ = compile_strictly(function)
    x = torch.ones(3)
    y = compiled(x)
    assert y.data_ptr() == x.data_ptr()
    assert x.tolist() == [2.0] * 3


@pytest.mark.parametrize("name", ["addcmul_", "addcdiv_"])
@pytest.mark.parametrize("others", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("own", [torch.float64, torch.float32, torch.bfloat16])
def test_a_sum_of_products_of_other_types(
    name: str, own: torch.dtype, others: torch.dtype
) -> None:
    def change(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        getattr(y, name)(a, b, value=0.5)
        return y

    args = torch.randn(4, 5).to(own), torch.randn(4, 5).to(others), torch.rand(4, 5).to(others) + 1
    compiled, backend = compile_strictly(change)
    # Dynamo takes these operators apart: the product is rounded to the type of its factors there,
    # for every backend, and not in eager mode.
    rounding = max(torch.finfo(own).eps, torch.finfo(others).eps)
    torch.testing.assert_close(compiled(*args), change(*args), rtol=rounding, atol=2 * rounding)
    assert models(backend) == [1]


def test_positions_are_written_by_index() -> None:
    def function(cache: torch.Tensor, at: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new)
        return cache * 2

    compiled, backend = compile_strictly(function)
    mine, theirs = torch.zeros(2, 6, 3), torch.zeros(2, 6, 3)
    for position in range(6):
        at, new = torch.tensor([position]), torch.randn(2, 1, 3)
        torch.testing.assert_close(compiled(mine, at, new), function(theirs, at, new))
        torch.testing.assert_close(mine, theirs)
    assert models(backend) == [1]


@STATIC_OR_DYNAMIC
def test_running_statistics_and_counters(dynamic: bool) -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4, momentum=0.3)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.shape[0]
            return self.norm(x)

    model = Counted()
    twin = copy.deepcopy(model)
    compiled, _ = compile_strictly(model, dynamic=dynamic)
    for _ in range(3):
        x = torch.randn(5, 4)
        torch.testing.assert_close(compiled(x), twin(x))
    model.eval(), twin.eval()
    torch.testing.assert_close(compiled(x), twin(x))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], msg=name)
    assert int(model.seen) == 20


OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.01, "capturable": False}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
}


@pytest.mark.parametrize("foreach", [False, True], ids=["loop", "foreach"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_step_is_one_graph(name: str, foreach: bool) -> None:
    kind, options = OPTIMIZERS[name]
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    twin = copy.deepcopy(model)
    mine, theirs = (
        kind(m.parameters(), **options, foreach=foreach)  # type: ignore[call-arg]
        for m in (model, twin)
    )
    compiled, backend = compile_strictly(mine.step, fullgraph=False)
    for _ in range(3):
        x = torch.randn(3, 4)
        for module, step in ((model, compiled), (twin, theirs.step)):
            module.zero_grad()
            module(x).square().mean().backward()
            step()
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
    assert backend.execution_count == 3


@pytest.mark.parametrize("whole", [False, True], ids=["step", "whole"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_a_fused_optimizer_is_that_of_eager_mode(name: str, whole: bool) -> None:
    """Dynamo skips its step, which is one kernel of torch: alone, and in a step of training."""
    kind, options = OPTIMIZERS[name]
    options = {k: v for k, v in options.items() if k != "capturable"}
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    twin = copy.deepcopy(model)
    mine, theirs = (
        kind(m.parameters(), **options, fused=True)  # type: ignore[call-arg]
        for m in (model, twin)
    )

    def train(module: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        module(x).square().mean().backward()
        optimizer.step()

    train_mine = train
    if whole:
        train_mine, backend = compile_strictly(train, fullgraph=False)
    else:
        mine.step, backend = compile_strictly(mine.step, fullgraph=False)  # type: ignore[method-assign]
    for _ in range(3):
        x = torch.randn(3, 4)
        train_mine(model, mine, x)
        train(twin, theirs, x)
        torch.testing.assert_close(model.state_dict(), twin.state_dict())
        torch.testing.assert_close(mine.state_dict()["state"], theirs.state_dict()["state"])
    assert (backend.execution_count > 0) is whole


READ_THEN_WRITTEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "power of a copy": lambda x: (y := x.repeat_interleave(2, 1) ** 2, x.zero_(), y)[2],
    "chain": lambda x: (y := (x * 3).sin().cos(), x.mul_(2), y)[2],
    "both returned": lambda x: (y := (x + 1).sin(), x.mul_(2), y, x * 3)[2:],
    "through a view": lambda x: (y := (x.t()[1:] + 1).cos(), x[1:].zero_(), y)[2],
    "one of several": lambda x: (y := ((x * 3).max(1)[0] + 1).exp(), x.zero_(), y)[2],
    "activation": lambda x: (y := nn.functional.gelu(x + 1), x.fill_(7.0), y)[2],
}


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo asks for it
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", READ_THEN_WRITTEN)
def test_gradients_of_what_is_read_then_written(name: str, dynamic: bool) -> None:
    """They are of the values read: nothing is computed again of what was written to."""
    function = READ_THEN_WRITTEN[name]
    compiled, _ = compile_strictly(function, dynamic=dynamic)
    gradients = []
    for call in (function, compiled):
        torch.manual_seed(0)
        leaf = torch.randn(4, 6, requires_grad=True)
        results = call(leaf * 1)
        results = results if isinstance(results, tuple) else (results,)
        sum(r.square().sum() for r in results).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1], gradients[0])


READ_THEN_WRITTEN_DATA: dict[str, Callable[..., Any]] = {
    "computed": lambda w, x: (y := (x * 2).exp(), x.zero_(), w * y)[2],
    "a mask": lambda w, x: (m := x.int().bool(), x.fill_(2), w.masked_fill(m, 0))[2],
    "in part": lambda w, x: (y := x.sin() + 1, x[0].zero_(), w * y, x)[2:],
    "through a view": lambda w, x: (y := x.t().cos().t(), x[:, 1].mul_(3), w * y)[2],
    "beside others": lambda w, x: (y := (x + w.detach()).exp(), x.add_(w.detach()), w * y)[2],
    "several times": lambda w, x: (
        y := x.exp(), x.add_(1), z := x.tanh().exp(), x.mul_(2), w * y * z)[4],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo asks for it
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", READ_THEN_WRITTEN_DATA)
def test_gradients_of_what_is_read_of_data_then_written(name: str, dynamic: bool) -> None:
    """The same where the argument that is written to has no gradient: it raised."""
    function = READ_THEN_WRITTEN_DATA[name]
    compiled, _ = compile_strictly(function, dynamic=dynamic)
    found = []
    for call in (function, compiled):
        torch.manual_seed(0)
        leaf, data = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
        results = call(leaf, data)
        results = results if isinstance(results, tuple) else (results,)
        results[0].square().sum().backward()
        found.append((leaf.grad, data, results))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo asks for it
def test_gradients_that_eager_mode_refuses_are_refused() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * x
        x.zero_()
        return y

    for call in (function, compile_strictly(function, fallback=True)[0]):
        x = torch.ones(3, requires_grad=True) * 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            call(x).sum().backward()
