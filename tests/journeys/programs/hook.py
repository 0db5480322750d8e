"""The switch: torch's own class is changed where there is one, and left alone without it."""

import os

os.environ["ONNXRT_CHANGE_REWRITER"] = "1"

import torch

import dort_rewriter


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 2).softmax(-1)


x = torch.randn(3, 4, requires_grad=True)
compiled = torch.compile(function, backend="onnxrt")
result = compiled(x)
result.square().sum().backward()
again = x.detach().clone().requires_grad_()
expected = function(again)
expected.square().sum().backward()
torch.testing.assert_close(result, expected)
torch.testing.assert_close(x.grad, again.grad)
assert dort_rewriter.installed()
print("hook: done")
