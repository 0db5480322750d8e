"""Equal elements: which of them come first is what torch's kernels make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.plan.graph_plan import plan_graph
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.plan.ties import TIES
from dort_rewriter.runtime.providers import CPU
from tests.backends.test_own_kernels import compiled

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SIZES = (3, 17, 200)
"""On both sides of where torch's algorithms change."""


def ties(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of few distinct numbers; of floats also NaN, infinities and two zeros."""
    generator = torch.Generator().manual_seed(n)
    x = torch.cat([torch.randint(0, m, (6, n), generator=generator) for m in (1, 2, 5)]).to(dtype)
    if dtype.is_floating_point:
        for value in (math.nan, math.inf, -math.inf, -0.0):
            x[1::2][torch.rand(9, n, generator=generator) < 0.1] = value
    return x


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool], ids=str)
def test_eagers_order(dtype: torch.dtype) -> None:
    """Of rows and columns, by every operator whose ties torch decides."""
    rows = [ties(n, dtype) for n in SIZES]

    def order(*rows: torch.Tensor) -> Any:
        results: list[torch.Tensor] = []
        for x in rows:
            n = x.shape[1]
            for largest in (False, True):
                results += aten.sort(x, -1, largest)
                results += aten.sort.stable(x.t(), stable=False, dim=0, descending=largest)
                results += aten.sort.stable(x, stable=True, dim=1, descending=largest)
                for k in (2, n // 2) if dtype is not torch.bool else ():
                    results += aten.topk(x, k, 1, largest)
                    results += aten.topk(x.t(), k, 0, largest, False)
            results += [*aten.max(x, 1), *aten.min(x, 0)]
            if dtype is not torch.bool:
                results += [*aten.median(x, 1), *aten.median(x, 0), *aten.nanmedian(x, 1)]
                results += [aten.argmax(x, 1), aten.argmin(x, 0), aten.argmax(x)]
            whole = x[::2]  # torch sorts for a mode by a comparison that a NaN breaks
            results += [*aten.mode(whole, 1), *aten.mode(whole, 0)]
        return results

    run, used = compiled(order, *rows, mode="fake")
    got, expected = run(*rows), order(*rows)
    assert used - {"ElementwiseList"} == {"Order"}  # results of medians may be made in one node
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=f"result {i}")


def left(
    function: Callable[..., Any], x: torch.Tensor, *, dynamic: bool = False, patterns: str = "all"
) -> tuple[str, ...]:
    """The operators of a function that stay in torch for their ties."""
    wanted = "default+onnxruntime+kernels" if patterns == "all" else patterns
    recipe = Recipe(
        dispatcher=Dispatcher(),
        options=OrtBackendOptions(
            optimization=OptimizationOptions(patterns=wanted), fallback=False
        ),
        select_providers=lambda graph, args: [(CPU, {})],
    )
    graph = make_fx(function, tracing_mode="symbolic" if dynamic else "fake")(x)
    graph.graph.eliminate_dead_code()
    found = plan_graph(graph, recipe).fallbacks
    assert all(f.reason == TIES for f in found)
    return tuple(f.op for f in found)


def test_what_stays_in_torch() -> None:
    """What our kernel does not do, or all of it without the kernel, where ties show."""
    x, many = torch.zeros(4, 40), torch.zeros(40000, dtype=torch.int64)
    assert left(lambda x: x.topk(2), x) == ()
    assert left(lambda x: x.kthvalue(2), x) == ("aten::kthvalue",)
    assert left(lambda x: x.kthvalue(2)[0] + 1, x) == ()
    assert left(lambda x: x.sort()[1], many) == ("aten::sort",)
    assert left(lambda x: x.sort(descending=True)[1], many) == ()
    assert left(lambda x: x.sort()[1], many[:9]) == ()
    assert left(lambda x: x.sort()[1], many[:9], dynamic=True) == ("aten::sort",)
    assert left(lambda x: x.topk(2), x, patterns="default") == ("aten::topk",)
    assert left(lambda x: x.topk(2)[0] + 1, x, patterns="default") == ()
    unsorted = left(lambda x: x.topk(2, sorted=False)[0], x, patterns="default")
    assert unsorted == ("aten::topk",)
    assert left(lambda x: x.sort(stable=True), x, patterns="default") == ()
    assert left(lambda x: x.argsort(), x, patterns="default") == ("aten::sort",)
    assert left(lambda x: x.mode(), x, patterns="default") == ("aten::mode",)


class Experts(nn.Module):
    """A mixture of experts whose router starts at zero."""

    def __init__(self, experts: int, chosen: int) -> None:
        super().__init__()
        self.router = nn.Linear(8, experts)
        nn.init.zeros_(self.router.weight)
        nn.init.zeros_(self.router.bias)
        self.experts = nn.Parameter(torch.randn(experts, 8, 8))
        self.chosen = chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.router(x).sigmoid()
        weights, chosen = scores.topk(self.chosen, dim=-1)
        outputs = torch.einsum("nd,nkde->nke", x, self.experts[chosen])
        return (outputs * weights[..., None]).sum(1)


@pytest.mark.parametrize(
    ("experts", "chosen", "dynamic"), [(8, 2, False), (64, 6, True), (128, 2, False)]
)
def test_a_router_that_starts_at_zero(experts: int, chosen: int, dynamic: bool) -> None:
    """Eager's experts are chosen, and get the gradients."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Experts(experts, chosen)
    fast = torch.compile(model, backend="onnxrt", dynamic=dynamic, options={"fallback": False})
    for n in (5, 7):
        x = torch.randn(n, 8)
        results = []
        for function in (model, fast):
            model.zero_grad()
            y = function(x)
            y.square().sum().backward()
            results.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
