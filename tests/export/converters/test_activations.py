from __future__ import annotations

import torch

from tests.export.cases import Case, T, table_test

X = torch.tensor([[0.0, -0.3, 0.3, 1.5, -1.5], [-7.0, 7.0, 30.0, -30.0, 0.6]])
G = T(2, 5)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

IMPLICIT = ("aten::silu_backward", "aten::mish_backward")

CASES = [
    *(Case(f"aten::{n}", (X,)) for n in ("relu", "silu", "mish", "celu", "gelu", "elu")),
    *(Case("aten::relu", (T(2, 5, dtype=d),)) for d in (torch.float64, *INTEGERS)),
    *(Case(f"aten::{n}", (T(),)) for n in ("relu", "silu", "gelu", "softplus")),
    *(
        Case("aten::gelu", (X,), {"approximate": a}, target_opset=o)
        for a in ("none", "tanh")
        for o in (18, 20)
    ),
    *(Case("aten::gelu_backward", (G, X), {"approximate": a}) for a in ("none", "tanh")),
    *(Case(f"aten::{n}_backward", (G, X)) for n in ("silu", "mish", "sigmoid", "tanh")),
    Case("aten::threshold_backward", (G, X, 0)),
    Case("aten::threshold", (X, 0.5, -2.0)),
    Case("aten::leaky_relu", (X, 0.2)),
    Case("aten::leaky_relu", (X.double(), 0.1)),
    Case("aten::leaky_relu_backward", (G, X, 0.2, False)),
    Case("aten::_prelu_kernel", (X, T(1, 5))),
    Case("aten::_prelu_kernel_backward", (G, X, T(1, 5).expand(2, 5))),
    Case("aten::log_sigmoid_forward", (X,)),
    Case("aten::log_sigmoid_backward", (G, X, torch.exp(-X.abs()))),
    Case("aten::softplus", (X,)),
    Case("aten::softplus", (X, 2, 5)),
    Case("aten::softplus_backward", (G, X, 2, 5)),
    Case("aten::elu", (X, 1.5)),
    Case("aten::elu", (X, 1.5, 0.7, 1.2)),
    Case("aten::elu_backward", (G, 1.5, 0.7, 1.2, False, X)),
    Case("aten::elu_backward", (G, 1.5, 1, 1, True, torch.nn.functional.elu(X, 1.5))),
    Case("aten::celu", (X, 0.7)),
    Case("aten::celu", (X, -0.7)),
]


# torch < 2.9 traces some, called alone, as simpler operators.
IS_OLD = torch.torch_version.TorchVersion(torch.__version__) < (2, 9)
test_op = table_test([c for c in CASES if not (IS_OLD and c.op in IMPLICIT)])
