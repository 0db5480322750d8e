"""Calls of torch as nodes of a session."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import onnxruntime
import pytest
import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.torch_calls import (
    _MOST_FAILURES,
    _failures,
    calls_of,
    register_call,
    take_failure,
)
from dort_rewriter.runtime.model_files import uses_torch_kernels
from dort_rewriter.runtime.session import create_session, ort_errors
from dort_rewriter.signature import Given, Result, TorchCall
from tests.kernels.test_torch_kernels import model_of, run

TYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
]


@torch.library.custom_op("dort_tests::raises", mutates_args=())
def raises(x: torch.Tensor, how: str) -> torch.Tensor:
    if how == "interrupted":
        signal.raise_signal(signal.SIGINT)
    raise ValueError(how)


def call_of(target: Any, *args: Any, results: list[Result | None]) -> TorchCall:
    return TorchCall(target=target, args=args, kwargs={}, results=tuple(results))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", [(3, 4), (), (0, 4), (1,)])
def test_tensors_go_in_and_out(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    """Of all types and sizes, nothing included; results that are not dense too."""
    target = torch.ops.aten.cat.default if sizes else torch.ops.aten.stack.default
    result = Result(dtype, (None,) * (len(sizes) or 1))
    call = call_of(target, [Given(0), Given(1), Given(0)], 0, results=[result])
    model = model_of("TorchCall", [dtype, dtype], [dtype], call=register_call(call))
    a, b = (torch.randint(0, 2, sizes).to(dtype) for _ in range(2))
    (got,) = run(model, a, b)
    assert torch.equal(got.view(dtype), target([a, b, a], 0))


def test_numbers_and_results_that_nobody_makes() -> None:
    target = torch.ops.aten.native_group_norm_backward.default
    x, grad = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    mean, rstd = torch.zeros(2, 2), torch.ones(2, 2)
    result = Result(torch.float32, (2, 4, None))
    numbers = (Given(4, "int"), 4, 3, 2, [True, False, Given(5, "bool")])
    given = [Given(i) for i in range(4)]
    call = call_of(target, *given, None, *numbers, results=[result, None, None])
    types = [torch.float32] * 4 + [torch.int64, torch.bool]
    model = model_of("TorchCall", types, [torch.float32], call=register_call(call))
    (got,) = run(model, grad, x, mean, rstd, torch.tensor(2), torch.tensor(False))
    expected = target(grad, x, mean, rstd, None, 2, 4, 3, 2, [True, False, False])[0]
    assert torch.equal(got, expected)


def test_a_call_is_kept_by_the_session() -> None:
    call = call_of(torch.ops.aten.sin.default, Given(0), results=[Result(torch.float32, (None,))])
    number = register_call(call)
    model = model_of("TorchCall", [torch.float32], [torch.float32], call=number)
    session = create_session(model)
    assert session.calls == (call,)
    assert session.beside_torch
    assert uses_torch_kernels(model)
    del call
    assert len(calls_of([number])) == 1
    del session
    assert calls_of([number]) == ()
    with pytest.raises(ExecutionError, match="only in the process that made its model"):
        create_session(model)


@pytest.mark.parametrize("number", [0, 1, -1, 2**62])
def test_a_number_that_nobody_gave_is_refused(number: int) -> None:
    model = model_of("TorchCall", [torch.float32], [torch.float32], call=number)
    with pytest.raises(ExecutionError, match="only in the process that made its model"):
        create_session(model)


def test_another_type_than_the_model_says_is_refused() -> None:
    """The memory is that of the model."""
    call = call_of(torch.ops.aten.sin.default, Given(0), results=[Result(torch.float32, (None,))])
    model = model_of("TorchCall", [torch.float32], [torch.float64], call=register_call(call))
    with pytest.raises(ort_errors(), match="a result of another type"):
        run(model, torch.ones(3))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell may have started the tests with SIGINT ignored, which is inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("how", "kind"), [("bad", ValueError), ("interrupted", KeyboardInterrupt)]
)
def test_what_is_raised_can_be_had_once(how: str, kind: type[BaseException]) -> None:
    target = torch.ops.dort_tests.raises.default
    call = call_of(target, Given(0), how, results=[Result(torch.float32, (None,))])
    model = model_of("TorchCall", [torch.float32], [torch.float32], call=register_call(call))
    session = create_session(model).ort
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    with pytest.raises(ort_errors()) as info:
        session.run(None, {"x0": torch.ones(3).numpy()}, options)
    raised = take_failure(str(info.value))
    assert isinstance(raised, kind)
    assert take_failure(str(info.value)) is None
    for _ in range(2 * _MOST_FAILURES):
        with pytest.raises(ort_errors()):
            session.run(None, {"x0": torch.ones(3).numpy()}, options)
    assert len(_failures) <= _MOST_FAILURES + 1
    _failures.clear()
