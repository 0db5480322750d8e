"""Programs of which a part stays in torch: what is cut off must not break the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from dort_rewriter import OrtBackend
from tests.backends.ways import compile_strictly

Tensor = torch.Tensor
Tensors = tuple[Tensor, ...]


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype)


def train(function: Callable[..., Tensor], given: Tensors) -> list[Any]:
    leaves = [a.detach().clone().requires_grad_() for a in given]
    torch.manual_seed(3)
    result = function(*leaves)
    result.float().sin().sum().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves)]


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Any, OrtBackend]:
    torch._dynamo.reset()
    backend = OrtBackend()
    return torch.compile(function, backend=backend, **options), backend


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bags_of_bfloat16(mode: str) -> None:
    indices, offsets = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9]), torch.tensor([0, 4])

    def function(weight: Tensor, x: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode).relu() * 2 + x.exp()

    given = (numbers(10, 4, dtype=torch.bfloat16), numbers(4, dtype=torch.bfloat16))
    ours, backend = compiled(function)
    torch.testing.assert_close(ours(*given), function(*given))
    torch.testing.assert_close(train(ours, given), train(function, given))
    assert backend.execution_count > 0


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_that_end_at_the_last_offset_without_a_gradient(mode: str, dynamic: bool) -> None:
    """torch returns as many counts as there are bags, or as there are offsets."""

    def function(weight: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        return 1 + F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=True)

    given = (numbers(5, 3), torch.tensor([0, 1, 2, 3, 4, 1]), torch.tensor([0, 2, 2, 6]))
    torch._dynamo.reset()
    ours, backend = compile_strictly(function, dynamic=dynamic)
    torch.testing.assert_close(ours(*given), function(*given))
    assert backend.execution_count == 1


def test_weighted_bags_of_bfloat16_are_summed_in_float32() -> None:
    indices, offsets = torch.arange(64) % 10, torch.tensor([0, 40])

    def function(weight: Tensor, factors: Tensor) -> Tensor:
        return F.embedding_bag(
            indices, weight, offsets, mode="sum", per_sample_weights=factors
        ).relu()

    given = (numbers(10, 4, dtype=torch.bfloat16), numbers(64, dtype=torch.bfloat16))
    ours, backend = compiled(function)
    torch.testing.assert_close(ours(*given), function(*given), rtol=0.008, atol=0.001)
    torch.testing.assert_close(train(ours, given), train(function, given), rtol=0.008, atol=0.008)
    assert backend.execution_count > 0


def test_as_many_groups_as_a_symbolic_size() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return F.conv2d(x.relu() * 2, weight, groups=weight.shape[0]).sin() + 1

    ours, _ = compiled(function, dynamic=True)
    for channels in (4, 6):
        given = (numbers(2, channels, 5, 5), numbers(channels, 1, 3, 3))
        torch.testing.assert_close(ours(*given), function(*given))
        torch.testing.assert_close(train(ours, given), train(function, given))


def causal(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j


def of_its_head(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + h


def relative(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + (i - j) * 0.1


BIAS = numbers(2, 16, 16)


def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return score + BIAS[h, i, j]


def block_mask() -> BlockMask:
    return create_block_mask(causal, B=None, H=None, Q_LEN=16, KV_LEN=16, device="cpu")


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
@pytest.mark.parametrize("score_mod", [None, of_its_head, relative, biased])
def test_flex_attention_beside_other_operators(
    score_mod: Callable[..., Tensor] | None, masked: bool
) -> None:
    """NOTE: torch has its backward on a GPU alone."""
    mask = block_mask() if masked else None

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mixed = flex_attention((q * 2).sin(), k.cos(), v + 1, score_mod=score_mod, block_mask=mask)
        assert isinstance(mixed, Tensor)
        return mixed.relu() * 3

    given = tuple(numbers(1, 2, 16, 8) + i for i in range(3))
    ours, backend = compiled(function)
    torch.testing.assert_close(ours(*given), function(*given))
    assert backend.execution_count == 2


def test_a_checkpoint_with_dropout() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        def inner(a: Tensor) -> Tensor:
            return F.dropout((a @ weight).relu(), 0.5)

        result: Tensor = checkpoint(inner, x, use_reentrant=False).sum(1) * 2
        return result

    given = (numbers(4, 4), numbers(4, 4) + 0.1)
    ours, backend = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(train(ours, given), train(function, given))
    assert backend.execution_count > 0


def test_a_checkpoint_with_a_batch_norm() -> None:
    """What it gave is kept: the running statistics are others when the backward begins."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        def inner(a: Tensor) -> Tensor:
            result: Tensor = norm((a @ weight).relu()).sigmoid()
            return result

        result: Tensor = checkpoint(inner, x, use_reentrant=False).sum(1) * 2
        return result

    given = (numbers(5, 4), numbers(4, 4) + 0.1)
    ours, backend = compiled(function)
    for _ in range(2):
        torch.testing.assert_close(train(ours, given), train(function, given))
    assert backend.execution_count > 0


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_torch_writes_a_part_of_has_the_layout_of_the_session(dynamic: bool) -> None:
    """The copy that it writes to has the strides of what a session gave."""

    def function(x: Tensor) -> Tensor:
        columns = (x * 2).relu()[:, ::2]
        written = columns.slice_scatter(columns[:1] * 2, 0, 0, 1)
        written[1:].zero_()
        return written

    ours, _ = compiled(function, dynamic=dynamic)
    for size in (3, 4):
        x = numbers(size, 6)
        torch.testing.assert_close(ours(x), function(x), check_stride=True)
