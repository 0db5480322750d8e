"""Arguments that torch refuses: its error, and a graph that runs in ONNX Runtime afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.backends.ways import compile_strictly

X = torch.arange(20.0).reshape(4, 5) / 7
ROWS = torch.ones(4, 2)
ROWS5 = torch.arange(10.0).reshape(2, 5)


def I(*numbers: int) -> torch.Tensor:  # noqa: E743
    return torch.tensor(numbers)


def _column(*numbers: int) -> torch.Tensor:
    return torch.tensor([numbers])


Function = Callable[..., torch.Tensor]

INDEXED: dict[str, tuple[Function, torch.Tensor, torch.Tensor]] = {
    "cross_entropy": (
        lambda x, i: functional.cross_entropy(x, i),
        I(0, 4, 2, -100),
        I(0, -1, 2, 4),
    ),
    "cross_entropy_ignored": (
        lambda x, i: functional.cross_entropy(x, i, ignore_index=-1),
        I(0, -1, 2, 4),
        I(0, -1, 2, -2),
    ),
    "cross_entropy_large": (
        lambda x, i: functional.cross_entropy(x, i),
        I(0, 1, 2, 3),
        I(0, 5, 2, 3),
    ),
    "nll_loss": (lambda x, i: functional.nll_loss(x, i), I(0, 1, 2, 3), I(0, -3, 2, 3)),
    "multi_margin_loss": (
        lambda x, i: functional.multi_margin_loss(x, i),
        I(0, 1, 2, 3),
        I(0, -1, 2, 3),
    ),
    "embedding": (lambda x, i: functional.embedding(i, x), I(0, 3), I(0, -1)),
    "embedding_bag": (
        lambda x, i: functional.embedding_bag(i, x, torch.tensor([0, 1])),
        I(0, 3),
        I(0, -1),
    ),
    "gather": (lambda x, i: x.gather(1, i), _column(0, 4), _column(0, -1)),
    "index_select": (lambda x, i: x.index_select(0, i), I(0, 3), I(0, -1)),
    "take": (lambda x, i: x.take(i), I(-20, 19), I(-21, 0)),
    "index": (lambda x, i: x[i], I(-4, 3), I(-5, 3)),
    "index_beside": (lambda x, i: x[:, i], I(-5, 4), I(-6, 4)),
    "index_pairs": (lambda x, i: x[i, i], I(-4, 3), I(0, 4)),
    "index_pairs_behind": (
        lambda x, i: (x * torch.ones(3, 1, 1))[:, i, torch.zeros_like(i)],
        I(-4, 3),
        I(0, 4),
    ),
    "index_put": (lambda x, i: x.index_put((i,), torch.ones(5)), I(-4, 3), I(0, 4)),
    "index_put_sum": (
        lambda x, i: x.index_put((i, i), torch.ones(2), accumulate=True),
        I(-4, 3),
        I(0, 4),
    ),
    "index_put_too_few": (lambda x, i: x.index_put((i > 0,), ROWS5), I(0, 1, 0, 1), I(1, 1, 0, 1)),
    "index_put_too_many": (
        lambda x, i: x.index_put((i > 0,), ROWS5),
        I(0, 1, 0, 1),
        I(0, 0, 0, 1),
    ),
    "scatter": (lambda x, i: x.scatter(1, i, torch.ones(1, 2)), _column(0, 4), _column(0, -1)),
    "scatter_value": (lambda x, i: x.scatter(1, i, 2.0), _column(0, 4), _column(0, -1)),
    "scatter_add": (
        lambda x, i: x.scatter_add(1, i, torch.ones(1, 2)),
        _column(0, 4),
        _column(0, -1),
    ),
    "scatter_reduce": (
        lambda x, i: x.scatter_reduce(1, i, torch.ones(1, 2), "amax"),
        _column(0, 4),
        _column(0, -1),
    ),
    "index_add": (lambda x, i: x.index_add(1, i, ROWS), I(0, 4), I(0, -1)),
    "index_copy": (lambda x, i: x.index_copy(1, i, ROWS), I(0, 4), I(0, -1)),
    "index_fill": (lambda x, i: x.index_fill(1, i, 2.0), I(-5, 4), I(0, 5)),
    "repeat_interleave": (
        lambda x, i: x.sin().repeat_interleave(i, 0, output_size=5).exp(),
        I(2, 0, 2, 1),
        I(2, 0, 2, 2),
    ),
    "repeat_interleave_negative": (
        lambda x, i: x.sin().repeat_interleave(i, 1, output_size=3).exp(),
        I(2, 0, 0, 1, 0),
        I(-1, 2, 0, 2, 0),
    ),
    "floor_divide": (lambda x, i: x + 7 // i, I(3, -1, 2, 1, 4), I(3, 0, 2, 1, 4)),
    "remainder": (lambda x, i: x + 7 % i, I(3, -1, 2, 1, 4), I(3, 0, 2, 1, 4)),
    "fmod": (lambda x, i: x + torch.fmod(i, i), I(3, -1, 2, 1, 4), I(3, 0, 2, 1, 4)),
}


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_the_error_is_that_of_torch_and_the_session_stays(
    name: str, grad: bool, caplog: pytest.LogCaptureFixture
) -> None:
    function, good, bad = INDEXED[name]
    torch._dynamo.reset()
    compiled, backend = compile_strictly(function, fallback=True)

    def results(run: Function, index: torch.Tensor) -> list[torch.Tensor]:
        x = X.clone().requires_grad_(grad)
        result = run(x, index)
        return [result.detach(), *(torch.autograd.grad(result.sum(), x) if grad else ())]

    for index in (good, bad, good):
        before = backend.execution_count
        if index is bad:
            with pytest.raises((IndexError, RuntimeError)) as wanted:
                results(function, bad)
            with pytest.raises((IndexError, RuntimeError)) as raised:
                results(compiled, bad)
            assert type(raised.value) is type(wanted.value)
            assert str(raised.value) == str(wanted.value)
            continue
        torch.testing.assert_close(results(compiled, index), results(function, index))
        assert backend.execution_count == before + 1 + grad
    assert "runs in torch" not in caplog.text


def test_places_of_another_plane_are_no_places(caplog: pytest.LogCaptureFixture) -> None:
    """What is put back after pooling is checked in its own plane, also beyond what is there."""

    def unpool(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return functional.max_unpool1d(x, i, 2) * 2

    compiled, backend = compile_strictly(unpool, fallback=True)
    x = torch.arange(1.0, 7).reshape(1, 2, 3)
    for last in (5, 6, -1, 12, 1 << 40, 4):
        places = torch.tensor([[[0, 2, last], [1, 2, 5]]])
        if last in (4, 5):
            torch.testing.assert_close(compiled(x, places), unpool(x, places))
            continue
        with pytest.raises(RuntimeError, match="Found an invalid max index"):
            compiled(x, places)
    assert backend.execution_count == 2
    assert "runs in torch" not in caplog.text


@pytest.mark.parametrize("first", [True, False], ids=["drawn before", "not drawn yet"])
def test_what_was_drawn_before_an_error_is_drawn_once(first: bool) -> None:
    """The generator stands where eager mode leaves it when a call raises."""

    def step(x: torch.Tensor, i: torch.Tensor) -> Any:
        if first:
            return functional.dropout(x, 0.5), functional.embedding(i, x) * 2
        return functional.embedding(i, x) * 2, functional.dropout(x, 0.5)

    compiled, backend = compile_strictly(step, fallback=True)
    compiled(X, I(0, 1))
    states = []
    for run in (step, compiled):
        torch.manual_seed(0)
        with pytest.raises(IndexError):
            run(X, I(0, 9))
        states.append(torch.rand(3))
    assert torch.equal(*states)
    torch.manual_seed(0)
    got = compiled(X, I(0, 1))
    torch.manual_seed(0)
    torch.testing.assert_close(got, step(X, I(0, 1)))
    assert backend.execution_count == 2


def test_strict_mode_raises_the_error_of_torch_too() -> None:
    compiled, backend = compile_strictly(lambda x, i: functional.embedding(i, x) + 1)
    for index in (I(0, 1), I(0, -1), I(0, 2)):
        if index.min() < 0:
            with pytest.raises(IndexError, match="index out of range in self"):
                compiled(X, index)
        else:
            compiled(X, index)
    assert backend.execution_count == 2


def test_the_arguments_are_there_after_an_error() -> None:
    """A buffer written to by the program keeps its numbers when its batch is refused."""

    def step(x: torch.Tensor, i: torch.Tensor) -> Any:
        result = x.gather(1, i)
        x.add_(1)
        return result

    compiled, _ = compile_strictly(step, fallback=True)
    x = X.clone()
    compiled(x, _column(0, 1))
    torch.testing.assert_close(x, X + 1)
    with pytest.raises(RuntimeError, match="out of bounds"):
        compiled(x, _column(0, -1))
    torch.testing.assert_close(x, X + 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.softmax(x, 2),
        lambda x: functional.log_softmax(x, -3),
        lambda x: functional.log_softmax(x, 2),
        lambda x: functional.log_softmax(x.double(), 2),
        lambda x: functional.softmin(x, 4),
        lambda x: functional.softmax(x, 5, dtype=torch.float64),
        lambda x: x.sort(2)[0],
        lambda x: x.sort(stable=True, dim=2)[0],
        lambda x: x.argsort(-3),
    ],
)
def test_a_dimension_that_a_tensor_has_not(function: Function) -> None:
    """torch traces it as if it were there; 2.8 sees some of them."""
    compiled, _ = compile_strictly(lambda x: function(x + 1) * 2, fallback=True)
    with pytest.raises((IndexError, RuntimeError), match="Dimension out of range"):
        compiled(X)
