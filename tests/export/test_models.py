"""Whole models, forward and backward: each graph that AOTAutograd makes runs in ONNX Runtime."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd

from dort_rewriter.capture.tracing import keep_resizing
from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.interpreter import convert_graph
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from tests.export.models import MODELS, Factory

TOLERANCE = 2e-5


class Compiler:
    """Runs the graphs of AOTAutograd in ONNX Runtime, and counts them."""

    def __init__(self) -> None:
        self.dispatcher = OxsDispatcher()
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        exported = convert_graph(graph, self.dispatcher)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(
            ir.to_proto(exported.model).SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )
        self.graphs += 1

        def run(*args: Any) -> list[Any]:
            feed = {
                slot.name: _to_numpy(arg)
                for slot, arg in zip(exported.signature.inputs, args, strict=True)
                if slot.name is not None
            }
            results = session.run(None, feed)
            return [
                _to_torch(results[slot.index], slot.kind) if slot.source == "model" else None
                for slot in exported.signature.outputs
            ]

        return make_boxed_func(run)


def _to_numpy(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, torch.Tensor):
        array = value.detach().numpy()
        return np.ascontiguousarray(array).reshape(array.shape)
    return np.asarray(value)


def _to_torch(array: np.ndarray[Any, Any], kind: str) -> Any:
    return torch.from_numpy(array) if kind == "tensor" else array.item()


def step(model: torch.nn.Module, call: Callable[..., Any], inputs: dict[str, Any]) -> list[Any]:
    """Outputs, gradients and buffers of one training step."""
    outputs = call(**inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    loss = sum((o * o).sum() if o.dim() else o for o in outputs if o.requires_grad)
    loss.backward()  # type: ignore[union-attr]
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return [[o.detach() for o in outputs], gradients, dict(model.named_buffers())]


def check(factory: Factory, *, dynamic: bool) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = factory()
    model.train()
    reference = copy.deepcopy(model)
    expected = step(reference, reference, inputs)
    compiler = Compiler()
    table = get_decomposition_table(compiler.dispatcher)
    backend = aot_autograd(
        fw_compiler=compiler,
        bw_compiler=compiler,
        decompositions=table,
        partition_fn=min_cut_rematerialization_partition,
    )
    compiled = torch.compile(model, backend=backend, dynamic=dynamic, fullgraph=True)
    with torch._dynamo.config.patch(allow_rnn=True), keep_resizing(table):
        got = step(model, compiled, inputs)
    assert compiler.graphs == 2
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.alternating
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", MODELS)
def test_training_step(name: str, dynamic: bool) -> None:
    check(MODELS[name], dynamic=dynamic)
