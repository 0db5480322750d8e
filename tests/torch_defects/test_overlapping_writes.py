"""Writes in place to elements that are one in memory run in eager mode, and are said to."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dort_rewriter import CaptureError, OrtBackend, UnsupportedOpError, onnx_debug_backend
from dort_rewriter.torch_defects.overlapping_writes import overlapping_writes

Tensor = torch.Tensor
Writes = Callable[[Tensor], Any]

ROWS = torch.tensor([0, 1])

TAKEN: dict[str, Writes] = {
    "zero_": lambda v: v.zero_(),
    "fill_": lambda v: v.fill_(2.0),
    "masked_fill_": lambda v: v.masked_fill_(torch.tensor([True, False, True]), 1.0),
    "index_fill_": lambda v: v.index_fill_(0, ROWS, 1.0),
    "setitem of rows": lambda v: v.__setitem__(ROWS, 5.0),
    "torch.fill_": lambda v: torch.fill_(v, 3.0),
    "a row": lambda v: v[0].mul_(2),
    "a row, by number": lambda v: v.__setitem__(0, 5.0),
    "a column of one": lambda v: v[1:].add_(v[1:]),
    "embedding": lambda v: functional.embedding(ROWS, v, max_norm=1e-3),
}
"""What eager mode writes to an expanded tensor."""

REFUSED: dict[str, Writes] = {
    "mul_": lambda v: v.mul_(2),
    "add_": lambda v: v.add_(v),
    "*=": lambda v: operator.imul(v, 2),
    "*=, the method": lambda v: v.__imul__(2),
    "scatter_": lambda v: v.scatter_(0, torch.zeros(2, 3, dtype=torch.int64), 1.0),
    "setitem of a tensor": lambda v: v.__setitem__(slice(None), torch.ones(2, 3)),
    "relu": lambda v: functional.relu(v, inplace=True),
    "relu, by place": lambda v: functional.relu(v, True),
    "relu, by name": lambda v: functional.relu(inplace=True, input=v),
    "relu_, by name": lambda v: torch.relu_(input=v),
    "a layer": torch.nn.ReLU(inplace=True),
    "dropout": lambda v: functional.dropout(v, 0.5, True, True),
    "_foreach_add_": lambda v: torch._foreach_add_([torch.ones(2), v], 1.0),
    "out": lambda v: torch.max(v + 1, 1, out=(v[:, 0], torch.zeros(2, dtype=torch.int64))),
    "in a checkpoint": lambda v: checkpoint(lambda t: t.mul_(2), v, use_reentrant=False),
}

IN_SOME_VERSIONS: dict[str, Writes] = {
    "setitem of a column": lambda v: v.__setitem__((slice(None), 1), 5.0),
    "setitem of all": lambda v: v.__setitem__(..., 5.0),
}
"""What torch 2.15 takes, and older ones refuse."""

ONE_BY_ONE: dict[str, Writes] = {
    "a clone": lambda v: v.clone().mul_(2),
    "its shape": lambda v: v.t_(),
    "a copy": lambda v: functional.relu(v, inplace=False),
    "nothing": lambda v: functional.embedding(ROWS, v),
}
"""What writes to no element twice."""


def written(write: Writes) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x.expand(2, 3)
        write(v)
        return v + 1, x * 2

    return function


def results(function: Callable[[Tensor], Any]) -> Any:
    x = torch.arange(3.0) + 0.25
    return *function(x), x


def outcome(function: Callable[[Tensor], Any]) -> Any:
    try:
        return [r.tolist() for r in results(function)]
    except RuntimeError:
        return RuntimeError


@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_mode_writes(
    name: str, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    function = written(TAKEN[name])
    compiled = torch.compile(function, backend=OrtBackend({"fallback": True}), dynamic=dynamic)
    torch._dynamo.reset()
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        got = results(compiled)
    for ours, eagers in zip(got, results(function), strict=True):
        assert torch.equal(ours, eagers)
    assert "one in memory (of an expanded tensor)" in caplog.text


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_mode_refuses(name: str) -> None:
    function = written(REFUSED[name])
    torch._dynamo.reset()
    with pytest.raises(RuntimeError):
        results(function)
    with pytest.raises(RuntimeError):
        results(torch.compile(function, backend=OrtBackend({"fallback": True})))


@pytest.mark.parametrize("name", IN_SOME_VERSIONS)
def test_what_some_versions_take(name: str) -> None:
    function = written(IN_SOME_VERSIONS[name])
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend({"fallback": True}))
    assert outcome(compiled) == outcome(function)


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_what_is_written_once_is_converted(name: str) -> None:
    function = written(ONE_BY_ONE[name])
    torch._dynamo.reset()
    got = results(torch.compile(function, backend=OrtBackend({"fallback": False})))
    for ours, eagers in zip(got, results(function), strict=True):
        assert torch.equal(ours, eagers)


class Clear(torch.autograd.Function):
    """Writes to an expanded gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.sum().expand(3).zero_() + 1


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # Dynamo's own
def test_a_backward_of_ones_own() -> None:
    def gradient(function: Callable[[Tensor], Tensor]) -> list[float]:
        x = torch.ones(3, requires_grad=True)
        return torch.autograd.grad(function(x).sum(), x)[0].tolist()

    def function(x: Tensor) -> Tensor:
        return Clear.apply(x)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=OrtBackend({"fallback": True}))
    assert gradient(compiled) == gradient(function) == [1.0] * 3


def test_an_expanded_argument() -> None:
    def function(x: Tensor) -> Tensor:
        x[:, 1:].zero_()
        return x * 2

    def run(call: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        x = torch.arange(1.0, 4.0).expand(2, 3)
        return call(x), x

    torch._dynamo.reset()
    got = run(torch.compile(function, backend=OrtBackend({"fallback": True})))
    for ours, eagers in zip(got, run(function), strict=True):
        assert torch.equal(ours, eagers)


def test_without_a_fallback_it_is_an_error() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(written(TAKEN["zero_"]), backend=OrtBackend({"fallback": False}))
    with pytest.raises(UnsupportedOpError, match="one in memory"):
        compiled(torch.ones(3))


def test_a_backend_of_ones_own_is_told() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(written(TAKEN["zero_"]), backend=onnx_debug_backend)
    with pytest.raises(CaptureError, match="one in memory"):
        compiled(torch.ones(3))


def test_a_graph_made_by_hand_has_no_values() -> None:
    made = torch.fx.symbolic_trace(lambda x: x.expand(2, 3).zero_())
    assert overlapping_writes(made) == []
