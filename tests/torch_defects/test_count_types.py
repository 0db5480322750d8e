"""Indices, counts and bins have the types that kernels give them, whatever torch 2.8 records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnxruntime
import pytest
import torch

from dort_rewriter import OrtBackend, to_onnx

DTYPES = (torch.int32, torch.uint8, torch.bool, torch.float32)
ROWS = torch.tensor([[1, 1], [1, 1], [0, 2], [0, 2], [1, 1]])


def _all(x: torch.Tensor) -> Any:
    return torch.unique(x, return_inverse=True, return_counts=True)


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "unique": _all,
    "runs": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "slices": lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
    "slices from the last": lambda x: torch.unique(x, dim=-1, return_counts=True),
    "runs of slices": lambda x: torch.unique_consecutive(x, True, True, dim=0),
    "runs from the last": lambda x: torch.unique_consecutive(x, True, True, dim=-1),
    "computed": lambda x: [t * 2 for t in _all(x)[1:]],
    "divided": lambda x: [t / 2 for t in _all(x)[1:]],
    "cast to the same": lambda x: [t.to(x.dtype) for t in _all(x)[1:]],
    "summed": lambda x: [t.sum() for t in _all(x)[1:]],
    "joined": lambda x: torch.cat([t.flatten() for t in _all(x)[1:]]),
}
"""NOTE: none asks for a type in Python: Dynamo's own records are torch's."""


def _agree(results: Any, expected: Any) -> None:
    torch.testing.assert_close(tuple(results), tuple(expected), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    x = ROWS.to(dtype)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        results = torch.compile(PROGRAMS[name], backend=OrtBackend(), fullgraph=True)(x)
    _agree(results, PROGRAMS[name](x))


class Model(torch.nn.Module):
    def __init__(self, program: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.program = program

    def forward(self, x: torch.Tensor) -> Any:
        return self.program(x)


FILES = {**PROGRAMS, "an index": lambda x: (lambda r: [r[0][r[1]]])(_all(x))}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FILES)
def test_files(name: str, dtype: torch.dtype) -> None:
    x = ROWS.to(dtype)
    _check_file(Model(FILES[name]), FILES[name], x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["unique", "runs", "slices", "computed", "divided", "joined"])
def test_files_of_programs(name: str, dtype: torch.dtype) -> None:
    x = ROWS.to(dtype)
    _check_file(torch.export.export(Model(FILES[name]), (x,)), FILES[name], x)


def _check_file(model: Any, program: Callable[[torch.Tensor], Any], x: torch.Tensor) -> None:
    session = onnxruntime.InferenceSession(
        to_onnx(model, (x,)).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    results = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    expected = program(x)
    _agree(map(torch.from_numpy, results), [expected] if torch.is_tensor(expected) else expected)


@pytest.mark.parametrize("weights", [None, torch.float32, torch.float16, torch.int32], ids=str)
def test_bins(weights: torch.dtype | None) -> None:
    torch._dynamo.reset()

    def bins(x: torch.Tensor, w: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        counts = torch.bincount(x, w)
        return counts, counts * 2

    x = ROWS.flatten().int()
    w = None if weights is None else torch.ones(10).to(weights)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        _agree(torch.compile(bins, backend=OrtBackend(), fullgraph=True)(x, w), bins(x, w))
