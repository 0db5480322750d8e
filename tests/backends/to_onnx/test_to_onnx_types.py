"""Models for files: their nodes have types that ONNX defines them for."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from dort_rewriter import to_onnx
from dort_rewriter.compiler.building import add_casts

Function = Callable[[torch.Tensor], torch.Tensor]

OF_ALL: tuple[Function, ...] = (
    torch.neg,
    torch.abs,
    torch.sign,
    torch.sin,
    torch.exp2,
    torch.relu,
    torch.square,
    torch.tril,
    torch.unique,
    lambda x: x.sum(0),
    lambda x: x.amin(0),
    lambda x: x.amax(1),
    lambda x: x.argmax(1),
    lambda x: x.all(1),
    lambda x: x.cumsum(0),
    lambda x: x @ x.T,
    lambda x: x % 3,
    lambda x: x // 2,
    lambda x: x.clamp(1, 5),
    lambda x: x > 2,
    lambda x: x == x.flip(0),
    lambda x: x.sort(1).values,
    lambda x: x.topk(2).values,
    lambda x: x.scatter(0, torch.zeros(1, 3, dtype=torch.int64), 1),
    lambda x: torch.nn.functional.pad(x, (1, 1)),
    lambda x: torch.where(x > 1, x, 0),
    lambda x: x[x > 1],
    lambda x: x.float().mean(),
    lambda x: x**2,
)
OF_INTEGERS: tuple[Function, ...] = (lambda x: x << 1, lambda x: ~x ^ (x & 3))
TYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float64),
)


class Calls(torch.nn.Module):
    """Several functions of one argument."""

    def __init__(self, functions: tuple[Function, ...]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [function(x) for function in self.functions]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t).removeprefix("torch."))
def test_a_file_is_valid(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 3, 7], [2, 1, 9]]).to(dtype)
    module = Calls(OF_ALL if dtype.is_floating_point else OF_ALL + OF_INTEGERS)
    model = to_onnx(module, (x,))
    onnx.checker.check_model(model, full_check=True)
    if dtype is torch.bfloat16:  # NumPy has no such type
        return
    runnable = ir.from_proto(model)
    add_casts(runnable, provider="CPUExecutionProvider")
    session = onnxruntime.InferenceSession(ir.to_proto(runnable).SerializeToString())
    given = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    for number, (ours, expected) in enumerate(zip(given, module(x), strict=True)):
        torch.testing.assert_close(
            torch.from_numpy(ours), expected, msg=lambda text, n=number: f"function {n}: {text}"
        )
