"""Arguments like those of an earlier call are recognized, all others are looked at as before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime import recognition
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.recognition import KnownArguments
from tests.runtime.graphs import executor, number, result, tensor


def add() -> Executor:
    return executor(
        "(float[M, N] x, float[M, N] y) => (float[M, N] z) { z = Add(x, y) }",
        [tensor("x", shape=("M", "N")), tensor("y", shape=("M", "N"))],
        [result("z")],
    )


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often Python looks at the arguments."""
    found: list[int] = []
    learn = KnownArguments.learn
    monkeypatch.setattr(
        KnownArguments, "learn", lambda known, given: found.append(1) or learn(known, given)
    )
    return found


def test_the_like_of_earlier_arguments_is_recognized(looks: list[int]) -> None:
    run = add()
    weight = torch.nn.Parameter(torch.randn(3, 3))
    for _ in range(5):
        x = torch.randn(3, 3)
        (z,) = run(x, weight)
        assert torch.equal(z, x + weight)
    assert len(looks) == 1


def negated(x: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(x)


def inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


STRANGE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "with a negation bit": negated,
    "expanded": lambda x: x[:1].expand(3, 3),
    "every other column": lambda x: torch.cat([x, x], 1)[:, ::2],
    "smaller": lambda x: x[:2, :2],
    "empty": lambda x: x[:0],
    "a parameter": torch.nn.Parameter,
    "of inference mode": inference,
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE.keys())
def test_others_are_looked_at(
    change: Callable[[torch.Tensor], torch.Tensor], looks: list[int]
) -> None:
    run = add()
    for turn in range(3):
        usual = torch.randn(3, 3)
        run(usual, usual)
        looks.clear()
        x = change(usual)
        (z,) = run(x, x)
        assert torch.equal(z, x + x)
        assert turn or looks, "it was taken for what it is not"


def test_what_cannot_go_in_is_refused_after_calls_that_went_well() -> None:
    run = add()
    x = torch.randn(3, 3)
    run(x, x)
    for strange in (x.double(), x.to_sparse(), x.to("meta")):
        with pytest.raises(ExecutionError):
            run(x, strange)
    freed = torch.randn(3, 3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ExecutionError, match="no memory"):
        run(x, freed)


def test_numbers_keep_their_places_beside_recognized_tensors() -> None:
    run = executor(
        "(float[N] x, int64 n, double a) => (float[N] z) "
        "{ m = Cast<to=1>(n)  b = Cast<to=1>(a)  y = Mul(x, m)  z = Add(y, b) }",
        [tensor("x"), number("n", "int"), number("a", "float")],
        [result("z")],
    )
    for n in range(4):
        x = torch.randn(5)
        (z,) = run(x, n, 0.5 * n)
        torch.testing.assert_close(z, x * n + 0.5 * n)


def test_sizes_that_always_vary_are_learnt_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    check = recognition._check
    monkeypatch.setattr(
        recognition, "_check", lambda guards, given: built.append(1) or check(guards, given)
    )
    recognition._tensor_guards()
    built.clear()
    run = add()
    for rows in range(1, 101):
        x = torch.randn(rows, 2)
        (z,) = run(x, x)
        assert torch.equal(z, x + x)
    assert len(built) == 7  # 1, 2, 4 ... 64


def test_classes_that_may_go_are_not_kept(looks: list[int]) -> None:
    class Own(torch.Tensor):
        pass

    run = add()
    x = torch.randn(2, 2).as_subclass(Own)
    for _ in range(2):
        run(x, x)
    assert len(looks) == 2


@pytest.mark.parametrize("guards", [None, "always yes", "no such keywords"])
def test_without_the_guards_of_torch_python_looks(
    guards: str | None, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Yes:
        def __init__(self, *tensors: object, **keywords: object) -> None:
            if guards != "always yes":
                raise TypeError("unexpected keyword")

        def check(self, *tensors: object) -> bool:
            return True

    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", None if guards is None else Yes)
    recognition._tensor_guards.cache_clear()
    try:
        run = add()
        x = torch.randn(2, 3)
        for y in (x, x, torch.randn(3, 2).t()):
            (z,) = run(x, y)
            assert torch.equal(z, x + y)
        assert len(looks) == 3
    finally:
        recognition._tensor_guards.cache_clear()


def test_this_torch_has_the_guards() -> None:
    assert recognition._tensor_guards() is not None
