"""Checks of factorizations, which have an effect, beside writes to memory that arguments share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend

Tensor = torch.Tensor


def inverse_of_another(x: Tensor, row: Tensor, other: Tensor) -> Tensor:
    row.mul_(2)
    return torch.linalg.inv(other) @ x


def inverse_of_what_is_written(x: Tensor, row: Tensor, other: Tensor) -> Tensor:
    row.mul_(2)
    return torch.linalg.inv(x) + other


def unused(x: Tensor, row: Tensor, other: Tensor) -> Tensor:
    row.mul_(2)
    torch.linalg.solve(other, x)
    return x.mean()


def two_effects(x: Tensor, row: Tensor, other: Tensor) -> Tensor:
    row.mul_(2)
    return torch.linalg.cholesky(other @ other.mT) + torch.linalg.inv(x)


PROGRAMS = [inverse_of_another, inverse_of_what_is_written, unused, two_effects]


def run(
    function: Callable[..., Tensor], kind: str, matrix: Tensor | None = None
) -> tuple[list[Any], str]:
    torch.manual_seed(0)
    leaf = 4 * torch.eye(3) + torch.rand(3, 3)
    other = (leaf.mT + 1).clone() if matrix is None else matrix
    leaf.requires_grad_(kind == "gradients")
    x = leaf * 1
    try:
        result = function(x, x[0], other)
        if result.requires_grad:
            result.sum().backward()
    except RuntimeError as error:
        return [x.detach()], f"{type(error).__name__}: {error}"
    return [x.detach(), result.detach(), leaf.grad], ""


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # which Dynamo reads
@pytest.mark.parametrize("kind", ["inference", "gradients"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_effects_beside_shared_memory(program: Callable[..., Tensor], kind: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=OrtBackend())
    (found, error), (expected, _) = run(compiled, kind), run(program, kind)
    assert not error
    torch.testing.assert_close(found, expected)


def test_the_check_still_raises() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(unused, backend=OrtBackend())
    singular = torch.zeros(3, 3)
    assert run(compiled, "inference", singular)[1] == run(unused, "inference", singular)[1] != ""
