from __future__ import annotations

import onnxruntime
import pytest
import torch

from dort_rewriter import to_onnx
from tests.export.cases import Case, table_test

TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _numbers(dtype: torch.dtype) -> torch.Tensor:
    """Zeros, the ends of a type, and two of Fibonacci's numbers, which take the most steps."""
    ends = torch.iinfo(dtype)
    few = [0, 1, 2, 3, 6, 35, 84, 89, 55, ends.max, ends.max - 1, ends.max // 3]
    wide = [2971215073, 4807526976] if ends.bits > 32 else []
    return torch.tensor([*few, *wide, *([ends.min, ends.min + 1, -1, -6] if ends.min else [])]).to(
        dtype
    )


CASES = [
    *(Case("aten::gcd", (_numbers(t)[:, None], _numbers(t))) for t in TYPES),
    Case("aten::gcd", (torch.tensor(12), torch.tensor(-18))),
    Case("aten::gcd", (torch.zeros(0, 3, dtype=torch.int32), torch.tensor(4, dtype=torch.int32))),
    Case("prims::gcd", (torch.tensor([12, -18, 0, 7]), torch.tensor([8, 27, 5, 0]))),
]

test_op = table_test(CASES)


class _Divisors(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.gcd(x, y), torch.lcm(x, y)


# NOTE: onnxruntime 1.19 cannot compare uint8.
@pytest.mark.parametrize("dtype", TYPES[:-1], ids=str)
def test_files_have_divisors_and_multiples(dtype: torch.dtype) -> None:
    numbers = _numbers(dtype)
    numbers = numbers[numbers.long() != torch.iinfo(dtype).min]  # undefined in C++
    x, y = (n.flatten() for n in torch.meshgrid(numbers, numbers, indexing="ij"))
    model = to_onnx(_Divisors(), (x, y))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    for got, expected in zip(
        session.run(None, dict(zip(names, (x.numpy(), y.numpy()), strict=True))),
        _Divisors()(x, y),
        strict=True,
    ):
        assert torch.equal(torch.from_numpy(got), expected)
