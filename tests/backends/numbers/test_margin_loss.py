"""The multilabel margin loss: what stands behind the -1 that ends a row of targets is none."""

from __future__ import annotations

from typing import Any

import onnxruntime
import pytest
import torch
from torch.nn.functional import multilabel_margin_loss

from dort_rewriter import to_onnx
from tests.backends.ways import compile_strictly

TARGETS: dict[str, Any] = {
    "ended": [[1, 2, -1, 0, 0], [3, -1, -1, 2, 1]],
    "full": [[1, 2, 3, 0, 4], [4, 3, 2, 1, 0]],
    "none": [[-1, 0, 0, 0, 0], [-1, 3, 3, 3, 3]],
    "row": [3, 0, -1, 1, 1],
    "number": 0,
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", TARGETS)
def test_as_in_eager_mode(name: str, reduction: str, dynamic: bool) -> None:
    target = torch.tensor(TARGETS[name])
    x = torch.randn(target.shape)
    given, expected = x.clone().requires_grad_(), x.clone().requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return multilabel_margin_loss(x, target, reduction=reduction)

    compiled, _ = compile_strictly(loss, fallback=True, dynamic=dynamic)
    got, wanted = compiled(given), loss(expected)
    torch.testing.assert_close(got, wanted)
    got.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(given.grad, expected.grad)


def test_a_target_of_another_shape_is_refused() -> None:
    compiled, _ = compile_strictly(multilabel_margin_loss, fallback=True)
    with pytest.raises(RuntimeError, match="inconsistent target size"):
        compiled(torch.randn(2, 3), torch.zeros(2, 4, dtype=torch.int64))


def test_files_are_right_too() -> None:
    class Loss(torch.nn.Module):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return multilabel_margin_loss(x, target)

    target = torch.tensor(TARGETS["ended"])
    x = torch.randn(target.shape)
    model = to_onnx(Loss(), (x, target)).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": x.numpy(), "target": target.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), Loss()(x, target))
