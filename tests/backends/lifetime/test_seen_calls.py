"""What is kept of the calls that models were compiled for."""

from __future__ import annotations

import gc
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from dort_rewriter import OrtBackend
from dort_rewriter.backends.seen_calls import SeenCall, TensorLike, latest_call


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


class Choosy(nn.Module):
    """A module that cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("do not compare me")

    def forward(self, x: torch.Tensor, *, by: float = 2.0) -> torch.Tensor:
        return x * by


def like(*shape: int, dynamic: frozenset[int] = frozenset()) -> TensorLike:
    tensor = torch.empty(shape)
    return TensorLike(shape, tensor.stride(), torch.float32, torch.device("cpu"), dynamic)


def seen_of(target: Any, *args: Any, **kwargs: Any) -> SeenCall | None:
    compiled = torch.compile(target, backend=OrtBackend(), dynamic=kwargs.pop("dynamic", None))
    with torch.no_grad():
        compiled(*args, **kwargs)
    return latest_call(target)


@pytest.mark.parametrize("module", [nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 2), nn.ReLU())])
def test_of_a_module_of_torch(module: nn.Module) -> None:
    assert seen_of(module, torch.randn(4, 3)) == SeenCall((like(4, 3),), {})


def test_of_a_function() -> None:
    def function(x: torch.Tensor, pair: Pair, *more: Any, flag: bool = False, **rest: Any) -> Any:
        return x + pair.first + more[0]["y"] + rest["z"]

    x, y = torch.randn(2, 3), torch.randn(3)
    seen = seen_of(function, x, Pair(x, 2), {"y": y}, z=y)
    assert seen is not None
    assert seen.args == (like(2, 3), Pair(like(2, 3), 2), {"y": like(3)})  # type: ignore[arg-type]
    assert seen.kwargs == {"flag": False, "z": like(3)}
    assert seen.args[0] is seen.args[1].first


def test_sizes_that_vary() -> None:
    seen = seen_of(nn.GELU(), torch.randn(4, 1), dynamic=True)
    assert seen == SeenCall((like(4, 1, dynamic=frozenset({0})),), {})


def test_a_module_need_not_compare() -> None:
    module = Choosy()
    seen = seen_of(module, torch.randn(3))
    assert seen == SeenCall((like(3),), {"by": 2.0})


def test_of_a_call_with_a_break_the_beginning_is_kept() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    assert seen_of(function, torch.randn(5)) == SeenCall((like(5),), {})


def test_tensors_of_other_classes_are_not_described() -> None:
    x = torch.randn(3).to_sparse()
    assert seen_of(lambda x, y: (x.to_dense() + 1, y * 2), x, torch.randn(3)) is None


@dataclass
class Cache:
    keys: torch.Tensor


def test_objects_that_may_hold_tensors_are_not_kept() -> None:
    def function(x: torch.Tensor, cache: Cache) -> torch.Tensor:
        return x + cache.keys

    assert seen_of(function, torch.randn(3), Cache(torch.randn(3))) is None


def test_ordered_dictionaries_are_described() -> None:
    given = OrderedDict(x=torch.randn(3))
    assert seen_of(lambda d: d["x"] + 1, given) == SeenCall((OrderedDict(x=like(3)),), {})


def test_nothing_holds_a_module_or_a_tensor() -> None:
    import weakref

    module, x = nn.Linear(3, 2), torch.randn(4, 3)
    seen_of(module, x)
    gone = [weakref.ref(module), weakref.ref(x)]
    del module, x
    torch._dynamo.reset()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
