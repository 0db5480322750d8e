"""torch's own table of higher-order operators, through the backend against eager mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.hop_db import hop_db
from torch.utils import _pytree as pytree

from dort_rewriter import OrtBackend

ON_A_GPU = {"flex_attention_backward", "inline_asm_elementwise"}
"""torch asks for a GPU, as a whole or for gradients."""

NOT_TRACED = {"local_map_hop", "register_hook"}
"""Dynamo refuses torch's sample, whatever the backend is."""

IN_TORCH = {"auto_functionalize", "flex_attention", "flex_gemm", "invoke_quant",
            "invoke_quant_packed", "while_loop_stack_output"}  # fmt: skip
"""Nothing of torch's sample is for ONNX Runtime."""

TRAINED = {"cond", "invoke_subgraph", "map", "scan"}

ENTRIES = {
    f"{entry.name}-{entry.variant_test_name}": entry
    for entry in hop_db
    if entry.name not in ON_A_GPU | NOT_TRACED
}


SAMPLES = [
    (name, dtype)
    for name in ENTRIES
    for dtype in (torch.float32, torch.float16, torch.int64)
    # NOTE: torch's loops carry the cosine of what is carried, and a branch of its switch is one,
    # which is no integer.
    if dtype.is_floating_point or not name.startswith(("while_loop", "switch"))
]


def run(function: Callable[..., Any], sample: Any, train: bool) -> tuple[Any, Any]:
    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_(train)

    given = pytree.tree_map_only(torch.Tensor, fresh, (sample.input, *sample.args))
    results = [r for r in pytree.tree_leaves(function(*given)) if isinstance(r, torch.Tensor)]
    leaves = [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]
    if not train:
        return results, leaves
    sum(r.float().sum() for r in results).backward()  # type: ignore[union-attr]
    return [r.detach() for r in results], [t.grad for t in leaves]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of torch, in eager
@pytest.mark.parametrize(("name", "dtype"), SAMPLES)
def test_results_and_gradients_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    entry = ENTRIES[name]
    train = entry.name in TRAINED and dtype.is_floating_point
    (sample,) = entry.sample_inputs_func(entry, "cpu", dtype, False)
    torch._dynamo.reset()
    backend = OrtBackend()
    compiled = torch.compile(entry.op, backend=backend, fullgraph=True)
    got, expected = run(compiled, sample, train), run(entry.op, sample, train)
    # A chain of float16 is computed in float32 in places: eager rounds after each operator.
    loose: dict[str, Any] = {} if dtype != torch.float16 else {"rtol": 4e-3, "atol": 2e-3}
    torch.testing.assert_close(got, expected, **loose)
    assert (backend.execution_count > 0) is (entry.name not in IN_TORCH)
