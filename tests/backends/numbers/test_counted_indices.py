"""Indices that are counted: onnxruntime takes a Gather by a Range for a Slice."""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime
import pytest
import torch

from dort_rewriter import to_onnx

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "backwards": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "through zero, backwards": lambda x: x[torch.arange(2, -x.shape[0] - 1, -1)],
    "through zero": lambda x: x[torch.arange(-x.shape[0], x.shape[0], 2)],
    "from below zero": lambda x: x[torch.arange(-3, x.shape[0])],
    "below zero": lambda x: x[torch.arange(0, -x.shape[0], -1)],
    "from a size": lambda x: x[torch.arange(x.shape[0] - 2, x.shape[0])],
    "selected": lambda x: x.index_select(1, torch.arange(x.shape[1] - 1, -1, -2)),
    "rows of a table": lambda x: torch.nn.functional.embedding(
        torch.arange(x.shape[0] - 1, -1, -1), x
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_elements_are_those_of_eager(name: str, dynamic: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return PROGRAMS[name](x) * 2

    compiled = torch.compile(program, backend="onnxrt", dynamic=dynamic)
    for x in (torch.randn(7, 4), torch.randn(9, 4)):
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


def test_a_place_behind_the_last_is_an_error() -> None:
    compiled = torch.compile(
        lambda x, y: x[torch.arange(y.shape[0])] * 2, backend="onnxrt", dynamic=True
    )
    assert compiled(torch.randn(5), torch.randn(4)).shape == (4,)
    with pytest.raises(IndexError):
        compiled(torch.randn(5), torch.randn(6))


@pytest.mark.parametrize("name", PROGRAMS)
def test_files_are_right_with_every_optimizer_of_onnxruntime(name: str) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return PROGRAMS[name](x) * 2

    x = torch.randn(7, 4)
    size = torch.export.Dim("rows", min=4)
    model = to_onnx(Module(), (x,), dynamic_shapes={"x": {0: size}})
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for given in (x, torch.randn(12, 4)):
        (got,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), Module()(given), rtol=0, atol=0)
