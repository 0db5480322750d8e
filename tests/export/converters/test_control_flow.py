"""If, Loop and Scan: in files, in the backend, in training, within each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch._higher_order_ops.map import map as control_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from dort_rewriter import OrtBackend, to_onnx

Program = Callable[..., Any]


def branches(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.exp() + y
    taken = torch.cond(x.sum() > 0, lambda a: a * z + 1, lambda a: (a - z).sin(), (z * 2,))
    return taken.relu() + z


def nested(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    def inner(a: torch.Tensor) -> torch.Tensor:
        return torch.cond(a.max() > 1, lambda b: b.clone(), lambda b: b * y, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: a + y, (x.sin() * 2,)).exp()


def loop(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    count, scale = torch.zeros((), dtype=torch.int64), y.cos()
    count, x = while_loop(
        lambda i, a: (i < 5) & (a.sum() < 20),
        lambda i, a: (i + 1, (a * scale).exp()),
        (count, x.sigmoid()),
    )
    return count, x.relu() + scale


def recurrence(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x[0].cos()
    last, all_of_them = scan(
        lambda h, a: (h * 0.5 + a, (h + a * scale).sin()), y[0].exp(), x.exp(), dim=0
    )
    return last.relu() + 1, all_of_them * 2 + 1


def mapped(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return control_map(lambda a, b: (a * b).sin(), x.exp(), y[0]).relu() + 1


PROGRAMS: dict[str, tuple[Program, str]] = {
    "cond": (branches, "If"),
    "nested cond": (nested, "If"),
    "while_loop": (loop, "Loop"),
    "scan": (recurrence, "Scan"),
    "map": (mapped, "Scan"),
}


class Call(torch.nn.Module):
    def __init__(self, function: Program) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.function(x, y)


def arguments(scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(4, 3, generator=generator) for _ in range(2))
    return x * scale, y


def ops(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_file_has_a_node_for_it(name: str) -> None:
    function, op = PROGRAMS[name]
    model = to_onnx(Call(function), arguments(1.0))
    onnx.checker.check_model(model, full_check=True)
    assert op in ops(model)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in session.get_inputs()]
    for scale in (-1.0, 0.1, 1.0):
        given = arguments(scale)
        got = session.run(None, {n: t.numpy() for n, t in zip(names, given, strict=True)})
        expected = function(*given)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(a), b)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_backend_runs_it_in_one_model(name: str) -> None:
    torch._dynamo.reset()
    function, _ = PROGRAMS[name]
    backend = OrtBackend({"fallback": False})
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for runs, scale in enumerate((-1.0, 0.1, 1.0), 1):
        torch.testing.assert_close(compiled(*arguments(scale)), function(*arguments(scale)))
        assert backend.execution_count == runs


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch.cond in eager mode
def test_branches_are_trained() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(branches, backend=OrtBackend({"fallback": True}))
    for scale in (-1.0, 1.0):
        found = []
        for function in (branches, compiled):
            given = [a.requires_grad_() for a in arguments(scale)]
            function(*given).sum().backward()
            found.append([a.grad for a in given])
        torch.testing.assert_close(found[1], found[0])


def test_a_region_compiled_once_is_part_of_the_model() -> None:
    region = torch.compiler.nested_compile_region(lambda a: (a * 2).sin())
    torch._dynamo.reset()
    backend = OrtBackend({"fallback": False})
    compiled = torch.compile(lambda x: region(region(x.exp())).relu() + 1, backend=backend)
    x, _ = arguments(1.0)
    torch.testing.assert_close(compiled(x), ((x.exp() * 2).sin() * 2).sin().relu() + 1)
    assert backend.execution_count == 1


def test_a_body_with_an_operator_that_nobody_converts_stays_in_torch() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = torch.cond(x.sum() > 0, torch.linalg.svdvals, lambda a: a.sum(0), (x.exp(),))
        return (z.sin() + 1) * y.sum()

    torch._dynamo.reset()
    backend = OrtBackend({"fallback": True, "min_block_size": 1})
    compiled = torch.compile(program, backend=backend)
    for scale in (-1.0, 1.0):
        torch.testing.assert_close(compiled(*arguments(scale)), program(*arguments(scale)))
    assert backend.execution_count > 0
