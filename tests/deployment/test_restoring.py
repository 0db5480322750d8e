"""What a block writes to is as it was before; what it does not write to is not touched."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import logging
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import dort_rewriter
from dort_rewriter import OrtBackend
from dort_rewriter.deployment import restoring
from dort_rewriter.deployment.restoring import Reachable, left_as_it_was


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


class Box:
    """An object with a tensor, a number and lists."""

    def __init__(self) -> None:
        self.total = torch.zeros(3)
        self.calls = 0
        self.history: list[Any] = []
        self.by_name = {"a": torch.zeros(2), "b": None}
        self.itself = self

    def write(self, x: torch.Tensor) -> None:
        self.total.add_(x)
        self.calls += 1
        self.history.append(self.total + 1)
        self.by_name["a"] = x
        del self.by_name["b"]
        self.by_name["c"] = x
        self.more = x


def state_of(box: Box) -> tuple[Any, ...]:
    return (
        *(id(box.total), box.total.tolist(), box.calls, list(box.history)),
        *(
            [(k, id(v)) for k, v in box.by_name.items()],
            box.by_name["a"].tolist(),
            list(vars(box)),
        ),
    )


class Slotted:
    __slots__ = ("__hidden", "later", "tensor")

    def __init__(self) -> None:
        self.tensor = torch.zeros(2)
        self.__hidden = 1

    def write(self) -> None:
        self.tensor = self.tensor + 1
        self.__hidden += 1
        self.later = 3

    def hidden(self) -> int:
        return self.__hidden


def test_objects_among_the_arguments_are_set_back_in_any_depth() -> None:
    box, inner = Box(), Box()
    box.history.append((1, {"inner": inner}))
    before = state_of(box), state_of(inner)
    with left_as_it_was(None, ([box], {"x": 1})):
        box.write(torch.ones(3))
        inner.write(torch.ones(3))
    assert (state_of(box), state_of(inner)) == before


def test_containers_are_set_back() -> None:
    class Unwilling(dict[str, int]):
        def __setitem__(self, key: str, value: int) -> None:
            raise TypeError("It is set by update() alone.")

    counts = collections.Counter("aab")
    ordered = collections.OrderedDict(a=1, b=2)
    last = collections.deque([1, 2], maxlen=2)
    names, unwilling = {"a"}, Unwilling(a=1)
    given = (counts, ordered, last, names, unwilling)
    expected = [copy.copy(g) for g in given[:-1]] + [{"a": 1}]
    with left_as_it_was(None, given):
        counts["c"] += 1
        ordered["a"] = ordered.pop("a")
        last.append(3)
        names.add("b")
        unwilling.update(a=2, b=3)
    assert list(given) == expected
    assert list(ordered) == ["a", "b"]


def test_slots_are_set_back() -> None:
    slotted = Slotted()
    tensor = slotted.tensor
    with left_as_it_was(None, slotted):
        slotted.write()
    assert slotted.tensor is tensor
    assert slotted.hidden() == 1
    assert not hasattr(slotted, "later")


def test_frozen_dataclasses_methods_and_partial_calls_are_walked_through() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pair:
        first: torch.Tensor
        box: Box

    pair, bound, partly = Pair(torch.zeros(2), Box()), Box(), Box()
    before = [state_of(b) for b in (pair.box, bound, partly)]
    called = functools.partial(print, partly)
    with left_as_it_was(bound.write, (pair, called)):
        pair.first.add_(1)
        for box in (pair.box, bound, partly):
            box.write(torch.ones(3))
    assert not pair.first.any()
    assert [state_of(b) for b in (pair.box, bound, partly)] == before


def test_arrays_and_generators_are_set_back() -> None:
    array, generator = np.zeros(3), torch.Generator()
    state = generator.get_state()
    with left_as_it_was(None, {"array": array, "generator": generator}):
        array += 1
        torch.rand(2, generator=generator)
    assert not array.any()
    assert torch.equal(generator.get_state(), state)


def test_a_tensor_that_gets_other_memory_or_sizes_is_set_back() -> None:
    grown, moved = torch.zeros(2), torch.zeros(2, requires_grad=True)
    memory = moved.data_ptr()
    with left_as_it_was(None, (grown, moved)):
        grown.resize_(5).fill_(1)
        moved.data = torch.ones(3)
    assert grown.tolist() == [0, 0]
    assert moved.tolist() == [0, 0]
    assert moved.data_ptr() == memory


def test_a_tensor_of_inference_mode_is_set_back_outside_of_it() -> None:
    with torch.inference_mode():
        x = torch.zeros(2)
    with left_as_it_was(None, x), torch.inference_mode():
        x += 1
    assert x.tolist() == [0, 0]


class Counting(nn.Module):
    """A module that keeps its state in attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.total = torch.zeros(3)
        self.kept = [torch.zeros(3)]
        self.calls = 0
        self.box = Box()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(1)
        self.kept[0].add_(1)
        self.calls += 1
        self.box.total.add_(1)
        self.latest = x + 1
        return self.norm(self.linear(x + self.total + self.kept[0]))


def check_untouched(module: Counting) -> None:
    assert not module.total.any()
    assert not module.kept[0].any()
    assert module.calls == 0
    assert not module.box.total.any()
    assert not hasattr(module, "latest")
    assert int(module.norm.num_batches_tracked) == 0
    assert not module.norm.running_mean.any()


@pytest.mark.parametrize("times", [False, True])
def test_explain_leaves_the_model_and_its_arguments_as_they_were(times: bool) -> None:
    module = Counting()
    dort_rewriter.explain(module, torch.ones(2, 3), times=times)
    check_untouched(module)
    box = Box()
    dort_rewriter.explain(lambda b: b.total.add_(1) * 2, box, times=times)
    assert not box.total.any()


def test_a_warm_up_leaves_attributes_of_modules_as_they_were() -> None:
    module = Counting()
    compiled = torch.compile(module, backend=OrtBackend())
    dort_rewriter.warm_up(compiled, [((2, 3),), ((4, 3),)])
    check_untouched(module)


def test_what_belongs_to_torch_is_left_alone() -> None:
    lazy = nn.LazyLinear(2)
    wrapped = nn.Sequential(lazy, nn.Linear(2, 2))
    weight = torch.nn.utils.parametrizations.weight_norm(wrapped[1])
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1, momentum=0.9)
    with left_as_it_was(wrapped, (optimizer, iter([1]), torch, print, weakref.proxy(lazy))):
        wrapped(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert optimizer.state
    assert isinstance(lazy, nn.Linear)
    assert wrapped(torch.ones(2, 3)).shape == (2, 2)


def test_a_module_that_a_call_adds_is_taken_away() -> None:
    class Growing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner = nn.Linear(3, 3)
            self.register_buffer("latest", x, persistent=False)
            return self.inner(x)

    module = Growing()
    with left_as_it_was(module, ()):
        module(torch.ones(2, 3))
    assert not list(module.children())
    assert not list(module.buffers())
    module.latest = torch.ones(1)


def test_parameters_are_not_copied() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.listed = [self.weight]

    model = Model()
    assert Reachable((), model).tensors == []
    assert Reachable(model.weight, model).tensors == [model.weight]


@dataclasses.dataclass
class Chain:
    """One object behind another."""

    inner: Any


def test_there_is_a_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restoring, "MAX_OBJECTS", 5)
    near, far = torch.zeros(1), torch.zeros(1)
    chain = Chain(Chain(Chain(Chain(far))))
    with caplog.at_level(logging.INFO, "dort_rewriter"), left_as_it_was(None, [near, chain]):
        near += 1
        far += 1
    assert (float(near), float(far)) == (0, 1)
    assert "More than 5 objects" in caplog.text
