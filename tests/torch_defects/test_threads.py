"""What is changed in torch while one thread traces is not seen by another."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._decomp import decomposition_table
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dort_rewriter.capture.tracing import correct_tracing

aten = torch.ops.aten


def counts() -> Any:
    with FakeTensorMode(shape_env=ShapeEnv()):
        values, numbers = torch.unique(torch.empty(7), return_counts=True)
        bins = torch.bincount(torch.empty(7, dtype=torch.int32))
    return values.dtype, numbers.dtype, bins.dtype


def quotients() -> Any:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    given = torch.empty((7, 3), dtype=torch.int32)
    torch._dynamo.maybe_mark_dynamic(given, 0)
    with mode:
        fake = mode.from_tensor(given)
        return torch.div(fake, fake).dtype


def norms() -> Any:
    x = torch.empty(7, 1)
    with FakeTensorMode():
        fake = torch.linalg.vector_norm(torch.empty(7, 1), 1, -1)
    decomposed = decomposition_table[aten.linalg_vector_norm.default](x, 1, [-1])
    return fake.shape, decomposed.shape


def classes() -> Any:
    with FakeTensorMode(), torch._dispatch.python.enable_python_dispatcher():
        return torch.nn.functional.one_hot(torch.empty(7, dtype=torch.int64), 3).shape


def losses() -> Any:
    given, target = torch.tensor([0.1, 0.2, 0.4, 0.8]), torch.tensor([3, 0, -1, 1])
    with torch._dispatch.python.enable_python_dispatcher():
        loss = torch.nn.functional.multilabel_margin_loss(given.requires_grad_(), target)
    return loss.item()


def mutations() -> Any:
    x = torch.zeros((), dtype=torch.float64)
    torch.compile(lambda y: (y.add_(1), y + 1)[1], backend="aot_eager")(x)
    return x.item()


def expansions() -> Any:
    x = torch.full((3,), 1e8)
    torch.compile(lambda y: (y.expand_as(y).mul_(1e-8), y + 1)[1], backend="aot_eager")(x)
    return x.tolist(), torch.compile(lambda y: y.expand(2, 3) + 1, backend="aot_eager")(x).tolist()


ASKED = [counts, quotients, norms, classes, losses, mutations, expansions]


@pytest.mark.parametrize("ask", ASKED)
def test_another_thread_sees_torch_as_it_is(ask: Callable[[], Any]) -> None:
    importlib.import_module("torch._dispatch.python")
    torch._dynamo.reset()
    with ThreadPoolExecutor(1) as other:
        before = other.submit(ask).result()
        with correct_tracing():
            torch._dynamo.reset()
            meanwhile = other.submit(ask).result()
        torch._dynamo.reset()
        after = other.submit(ask).result()
    assert before == meanwhile == after
