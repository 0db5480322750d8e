"""What every backend of the package must do, whatever it is for: a row each."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend, make_aot_ort, onnx_custom_backend, onnx_debug_backend

BACKENDS: dict[str, Callable[[], Any]] = {
    "onnxrt.py": OrtBackend,
    "custom.py": lambda: onnx_custom_backend,
    "debug.py": lambda: onnx_debug_backend,
}
"""By file: a backend that is ready for ``torch.compile``."""
EVERY_BACKEND = pytest.mark.parametrize(
    "make",
    [*BACKENDS.values(), lambda: make_aot_ort()[0]],
    ids=[*BACKENDS, "make_aot_ort"],
)


@pytest.fixture(autouse=True)
def reset() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@EVERY_BACKEND
def test_a_training_step_is_that_of_eager_mode(make: Callable[[], Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend=make())
    for rows in (2, 5):
        x = torch.randn(rows, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        compiled(x).square().sum().backward()
        twin(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@EVERY_BACKEND
def test_compiled_modules_are_copied_and_pickled(make: Callable[[], Any]) -> None:
    """Before they run and after, as trainers do that average weights."""
    compiled: Any = torch.compile(torch.nn.Linear(4, 3), backend=make())
    x = torch.randn(2, 4)
    fresh = copy.deepcopy(compiled)
    expected = compiled(x)
    copies = [fresh, copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))]
    with torch.no_grad():
        compiled.weight.zero_()
    for other in copies:
        torch.testing.assert_close(other(x), expected)


@EVERY_BACKEND
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_results_that_are_inputs_views_numbers_and_none(
    make: Callable[[], Any], dynamic: bool
) -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        return x, x.T, x + 1, x.shape[0], None

    compiled = torch.compile(function, backend=make(), dynamic=dynamic)
    with torch.no_grad():
        for rows in (2, 3):
            x = torch.randn(rows, 4)
            found, expected = compiled(x), function(x)
            assert found[0] is x
            assert found[1].data_ptr() == x.data_ptr()
            torch.testing.assert_close(found[1:3], expected[1:3])
            assert found[3:] == expected[3:]
