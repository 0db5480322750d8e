"""Steps of torch's optimizers, which are bound by memory: the program of each is run as one loop.

What the loop computes is compared with the instructions one by one, also where the operands are
none that the loop takes.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from dort_rewriter.kernels.loading import custom_ops_library
from tests.backends.ways import compile_strictly
from tests.kernels.test_custom_kernels import Array, _run
from tests.runtime.test_programs import _computed

Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd-decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "momentum-decay": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "nesterov-decay": (
        torch.optim.SGD,
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "rmsprop": (torch.optim.RMSprop, {}),
    "rmsprop-momentum": (torch.optim.RMSprop, {"momentum": 0.5}),
    "rmsprop-centered": (torch.optim.RMSprop, {"momentum": 0.5, "centered": True}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adam": (torch.optim.Adam, {}),
    "adam-amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "adam-decay": (torch.optim.Adam, {"weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw-amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "nadam": (torch.optim.NAdam, {}),
    "adamax": (torch.optim.Adamax, {}),
}


@dataclass(frozen=True)
class _Step:
    """The program of a step, and which of its inputs are numbers."""

    program: list[int]
    results: list[int]
    numbers: list[bool]

    def is_loop(self) -> bool:
        ask = ctypes.CDLL(custom_ops_library()).is_loop
        code, registers = ((ctypes.c_int64 * len(v))(*v) for v in (self.program, self.results))
        sizes = ctypes.c_size_t(len(code)), ctypes.c_size_t(len(registers))
        return bool(ask(code, sizes[0], registers, sizes[1]))


@functools.cache
def _step(name: str) -> _Step:
    """What is computed for each parameter, once there is a state."""
    make, arguments = OPTIMIZERS[name]
    parameters = [torch.nn.Parameter(torch.randn(3, 5)) for _ in range(3)]
    optimizer = make(parameters, **arguments)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONNXRT_DUMP_PATH", f"{folder}/step")
        step, _ = compile_strictly(optimizer.step, fullgraph=False)
        for _ in range(3):
            for p in parameters:
                p.grad = torch.randn_like(p)
            step()
        *_, latest = sorted(Path(folder).glob("*.onnx"), key=lambda path: path.stat().st_mtime_ns)
        graph = onnx.load(latest).graph
    known = {v.name: v.type.tensor_type.shape.dim for v in (*graph.input, *graph.value_info)}
    known |= {t.name: t.dims for t in graph.initializer}
    lists = [n for n in graph.node if n.op_type == "ElementwiseList" and len(known[n.input[0]])]
    (node,) = lists
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    count, shared = found["count"], found["shared"]
    own = (len(node.input) - shared) // count
    inputs = [*node.input[:own], *node.input[own * count :]]
    return _Step(found["program"], found["results"], [not len(known[i]) for i in inputs])


def _inputs(step: _Step, size: int, only_tensors: bool = False) -> list[Array]:
    special = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e-30, 3.0], np.float32)
    found = []
    for place, number in enumerate(step.numbers):
        values = np.random.default_rng(place).normal(size=size).astype(np.float32)
        values[: len(special)] = np.roll(special, place)[:size]
        values[values < 0] *= 1 if place % 2 else -1
        found.append(np.asarray(values[-1]) if number and not only_tensors else values)
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_program_of_an_optimizer_is_a_loop(name: str) -> None:
    assert _step(name).is_loop()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_signs_of_zeros_are_those_of_the_instructions(name: str) -> None:
    """The same numbers as tensors are what the loop does not take."""
    step, size = _step(name), 600
    numbers = [i for i, is_number in enumerate(step.numbers) if is_number]
    for special in (-0.0, 0.0, 1.0, 1e30, np.inf):
        inputs = _inputs(step, size)
        inputs[numbers[0]] = np.asarray(special, np.float32)
        filled = [np.full(size, v) if v.ndim == 0 else v for v in inputs]
        for mine, other in zip(_run_step(step, inputs), _run_step(step, filled), strict=True):
            bits = [np.where(np.isnan(v), np.float32(np.nan), v) for v in (mine, other)]
            np.testing.assert_array_equal(*(b.view(np.uint32) for b in bits))


@pytest.mark.parametrize("size", [1, 17, 600, 40_000])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_bits_are_those_of_the_instructions(name: str, size: int) -> None:
    step = _step(name)
    _check(step, _inputs(step, size))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_a_loop_does_not_take_runs_by_instructions(name: str) -> None:
    """Tensors for numbers, rows that repeat, numbers for tensors, another type."""
    step = _step(name)
    _check(step, _inputs(step, 600, only_tensors=True))
    rows = [v.reshape(20, 30) if v.ndim else v for v in _inputs(step, 600)]
    for place in range(2):
        repeated = rows.copy()
        repeated[place] = repeated[place][:1]
        _check(step, repeated)
        repeated[place] = np.asarray(repeated[place][0, 0])
        _check(step, repeated)
    _check(step, [v.astype(np.float64) for v in _inputs(step, 600)])


def test_other_programs_are_no_loops() -> None:
    """One instruction less, another order of a difference, another result."""
    step = _step("adam")
    program, results = step.program, step.results
    assert not _Step(program[:-5], results, []).is_loop()
    turned = [1, program[1], program[3], program[2], program[4], *program[5:]]
    assert program[0] == 1
    assert not _Step(turned, results, []).is_loop()
    assert not _Step(program, results[::-1], []).is_loop()
    assert not _Step(program, results[:1], []).is_loop()
    product, program = _step("sgd").program, [*_step("sgd").program]
    program[2:4] = product[3], product[2]
    assert _Step(program, _step("sgd").results, []).is_loop()


def _run_step(step: _Step, inputs: list[Array]) -> list[Array]:
    ranks = [max(v.ndim for v in inputs)] * len(step.results)
    attributes = {"program": step.program, "results": step.results}
    results: list[Array] = _run("Elementwise", *inputs, ranks=ranks, **attributes)
    return results


def _check(step: _Step, inputs: list[Array]) -> None:
    got = _run_step(step, inputs)
    alone = _computed(step.program, step.results, inputs)
    for mine, expected in zip(got, np.broadcast_arrays(*alone, got[0])[: len(got)], strict=True):
        np.testing.assert_array_equal(mine, expected)
