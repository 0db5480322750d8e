"""Gradients of what selects elements go to those that were selected, whatever is rounded how."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.backends.ways import compile_strictly

SELECTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "median": lambda x: x.median(),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(0, keepdim=True),
    "max": lambda x: x.max(),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", SELECTED)
def test_an_argument_that_is_computed(name: str, dtype: torch.dtype) -> None:
    select = SELECTED[name]

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.expm1(x.unbind(0)[0].clamp(max=3))
        return select(torch.var_mean(y, 1, correction=0)[0]).sum()

    compiled, backend = compile_strictly(function, fallback=True)
    for seed in range(12):
        torch.manual_seed(seed)
        x = torch.randn((2, 3, 4), dtype=dtype).transpose(1, 2)
        mine, theirs = (x.detach().clone().requires_grad_() for _ in range(2))
        compiled(mine).backward()
        function(theirs).backward()
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=2e-2, atol=2e-2)
    *_, backward = backend._all_ort_execution_info.execution_info_per_graph_module.keys()
    assert not any("var_mean" in str(n.target) for n in backward.graph.nodes), "computed again"
