"""Operators on lists of tensors: each is what torch computes without our decomposition."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dort_rewriter.export.decompositions import foreach_decompositions

aten = torch.ops.aten
A, B, C = ([torch.rand(n, 3) * 0.8 + 0.1 for n in (1, 2)] for _ in range(3))

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "": (A,),
    "List": (A, B),
    "Scalar": (A, 1.5),
    "ScalarList": (A, [0.5, 2.0]),
    "Tensor": (A, torch.tensor(0.5)),
    "ScalarAndTensor": (2.0, A),
}
SPECIAL: dict[str, tuple[Any, ...]] = {
    "addcmul.Scalar": (A, B, C, 0.5),
    "addcdiv.Scalar": (A, B, C, 0.5),
    "addcmul.ScalarList": (A, B, C, [0.5, 2.0]),
    "addcdiv.ScalarList": (A, B, C, [0.5, 2.0]),
    "lerp.List": (A, B, C),
    "lerp.Scalar": (A, B, 0.3),
    "lerp.ScalarList": (A, B, [0.3, 0.7]),
    "copy": (A, B),
    "norm.Scalar": (A, 2.0),
}


@pytest.mark.parametrize("op", foreach_decompositions(), ids=lambda op: op.name())
def test_a_decomposition_is_exact(op: torch._ops.OpOverload) -> None:
    name = op.name().removeprefix("aten::_foreach_")
    arguments = SPECIAL.get(name) or ARGUMENTS[op._overloadname.replace("default", "")]
    got = foreach_decompositions()[op](*arguments)
    want = op(*arguments)
    torch.testing.assert_close(list(got), list(want), rtol=0, atol=0)


def test_numbers_go_by_keyword_too() -> None:
    op = aten._foreach_add.List
    got = foreach_decompositions()[op](A, B, alpha=0.5)
    torch.testing.assert_close(got, list(op(A, B, alpha=0.5)), rtol=0, atol=0)
