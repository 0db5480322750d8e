"""What a block writes to is as it was before; what it does not write to is not touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import dort_rewriter
from dort_rewriter import OrtBackend
from dort_rewriter.deployment.restoring import left_as_it_was


class Statistics(nn.Module):
    """Buffers of several kinds, some of which a call writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("unknown", torch.tensor([torch.nan, 1.0]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("scale", torch.ones(2))
        self.inner = nn.Module()
        self.inner.register_buffer("latest", torch.zeros(2))
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        self.inner.latest = x.clone()
        return x * self.scale + self.unknown.nan_to_num()


def test_what_calls_write_to_is_set_back() -> None:
    given = [torch.zeros(3, dtype=t) for t in (torch.float32, torch.bool, torch.complex64)]
    given += [torch.full((2,), torch.nan), torch.zeros(2, 4)[:, ::2], torch.tensor(1)]
    given += [torch.zeros(2, dtype=torch.complex64).conj(), torch.empty(0)]
    before = [t.clone() for t in given]
    state = torch.random.get_rng_state()
    with left_as_it_was(torch.nn.Identity(), {"nested": (given, "no tensor")}):
        for tensor in given:
            tensor.fill_(7)
        torch.rand(3)
    for tensor, values in zip(given, before, strict=True):
        torch.testing.assert_close(tensor, values, equal_nan=True)
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_expanded_view_of_a_tensor_is_set_back_with_it() -> None:
    base = torch.zeros(1, 3)
    with left_as_it_was(None, [base.expand(4, 3)]):
        base += 1
    assert not base.any()


def test_it_is_set_back_after_an_error() -> None:
    x = torch.zeros(2)
    with pytest.raises(KeyError), left_as_it_was(None, x):  # noqa: PT012
        x += 1
        raise KeyError
    assert not x.any()


def test_what_is_not_written_to_is_not_touched() -> None:
    module, x = Statistics(), torch.tensor([torch.nan])
    untouched = [module.unknown, module.scale, x]
    versions = [t._version for t in untouched]
    latest = module.inner.latest
    with left_as_it_was(module, x):
        module(torch.ones(2))
        assert int(module.count) == 1
    assert [t._version for t in untouched] == versions
    assert int(module.count) == 0
    assert module.inner.latest is latest
    assert not latest.any()
    assert module.nothing is None


def test_tensors_without_bytes_of_their_own_are_left_alone() -> None:
    module = nn.Module()
    module.register_buffer("sparse", torch.eye(2).to_sparse())
    module.register_buffer("meta", torch.empty(2, device="meta"))
    module.register_buffer("lazy", nn.UninitializedBuffer())
    pair = TwoTensor(torch.zeros(2), torch.zeros(2))
    with left_as_it_was(module, pair):
        module.sparse.mul_(2)
    assert float(module.sparse.to_dense().sum()) == 4.0


@torch.no_grad()
def test_a_warm_up_does_not_write_to_a_buffer_with_nan() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("unknown", torch.tensor([torch.nan, 1.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.unknown

    module = Model().eval()
    compiled = torch.compile(module, backend=OrtBackend({"freeze": True}))
    version = module.unknown._version
    dort_rewriter.warm_up(compiled, [((2,),)])
    dort_rewriter.warm_up(compiled, [((2,),)])
    assert module.unknown._version == version
    torch.testing.assert_close(compiled(torch.ones(2)), module(torch.ones(2)), equal_nan=True)


@torch.no_grad()
def test_tensors_deep_among_the_arguments_are_left_as_they_were_by_a_warm_up() -> None:
    total = torch.zeros(3)
    add = torch.compile(lambda pair: pair[0].add_(pair[1]), backend=OrtBackend())
    dort_rewriter.warm_up(add, [([total, torch.ones(3)],)])
    assert not total.any()
