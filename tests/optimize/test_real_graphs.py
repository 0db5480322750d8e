"""The default rules on the graphs of whole models: numbers, rest, what is left."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from functorch.compile import make_boxed_func

from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.interpreter import convert_graph
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.plan.outputs import plan_outputs
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.export.models import MODELS, Factory, Named
from tests.optimize.rewrites import make_session, run_onnxruntime

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Graph:
    """One exported graph and what it was called with."""

    model: ir.Model
    inputs: Arrays

    def optimized(self, patterns: str) -> tuple[ir.Model, OptimizeReport]:
        """An optimized copy, which knows the symbols of sizes as the original does."""
        model = ir.from_proto(ir.to_proto(self.model))
        symbols = {v.name: v.meta["size"] for v in _values(self.model) if "size" in v.meta}
        for value in _values(model):
            if value.name in symbols:
                value.meta["size"] = symbols[value.name]
        return model, _optimize(model, patterns)


def _values(model: ir.Model) -> list[ir.Value]:
    return [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]


def _optimize(model: ir.Model, patterns: str) -> OptimizeReport:
    options = OptimizationOptions(patterns=patterns, check_rules=True)
    return optimize(model, options, has_kernel=kernel_query(), make_session=make_session)


class Recorder:
    """Exports the graphs of AOTAutograd as the backend does, and runs them in torch."""

    def __init__(self) -> None:
        self.dispatcher = OxsDispatcher()
        self.graphs: list[Graph] = []

    def __call__(self, graph: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        plan = plan_outputs(graph)
        exported = convert_graph(
            graph,
            self.dispatcher,
            results=[(o.node, o.order) for o in plan.model_outputs],
            output_names=[f"output_{i}" for i in range(len(plan.model_outputs))],
            keep_unused_inputs=False,
        )
        execute = torch.fx.Interpreter(graph).run

        def run(*args: Any) -> Any:
            pairs = zip(exported.signature.inputs, args, strict=True)
            inputs = {s.name: _to_numpy(a) for s, a in pairs if s.name is not None}
            self.graphs.append(Graph(exported.model, inputs))
            return execute(*args)

        return make_boxed_func(run)


def _to_numpy(value: Any) -> np.ndarray[Any, Any]:
    return value.detach().numpy().copy() if isinstance(value, torch.Tensor) else np.array(value)


def llama_step() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """Hidden 256, two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        vocab_size=256,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    ids = torch.randint(0, 256, (2, 32))
    model = Named(LlamaForCausalLM(config), {"use_cache": False})
    return model, {"input_ids": ids, "labels": ids.clone()}


@functools.cache
def graphs_of(factory: Factory, dynamic: bool) -> Sequence[Graph]:
    """The forward and the backward graph of a training step."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, inputs = factory()
    recorder = Recorder()
    table = get_decomposition_table(recorder.dispatcher)

    def backend(graph: torch.fx.GraphModule, args: Sequence[Any]) -> Callable[..., Any]:
        return compile_with_aot(graph, args, compile_graph=recorder, decompositions=table)

    compiled = torch.compile(model.train(), backend=backend, dynamic=dynamic, fullgraph=True)
    outputs = compiled(**inputs)
    loss = outputs[0] if isinstance(outputs, tuple) else outputs
    loss.sum().backward()
    assert len(recorder.graphs) == 2
    return recorder.graphs


CASES = [
    *((name, False) for name in ("mlp", "cnn", "llama-eager", "gpt2-eager", "bert-eager", "vit")),
    ("mlp", True),
    ("llama-eager", True),
]


@pytest.mark.alternating
@pytest.mark.parametrize(("name", "dynamic"), CASES)
def test_numbers_stay_and_nothing_is_left_to_do(name: str, dynamic: bool) -> None:
    """A second application finds nothing, even from the stored model."""
    for graph in graphs_of(MODELS[name], dynamic):
        model, report = graph.optimized("default")
        assert report.nodes_after < report.nodes_before
        proto = ir.to_proto(model)
        onnx.checker.check_model(proto)
        expected = run_onnxruntime(ir.to_proto(graph.model), graph.inputs)
        for got, wanted in zip(run_onnxruntime(proto, graph.inputs), expected, strict=True):
            assert got.shape == wanted.shape
            scale = np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0)
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * float(scale))
        again = _optimize(model, "default")
        assert not any(r.matches for r in again.rules.values()), again


@functools.cache
def _llama_nodes(patterns: str) -> Sequence[tuple[ir.Node, list[ir.Node]]]:
    """Each node of an optimized training step, and those it reads."""
    found = []
    for graph in graphs_of(llama_step, False):
        for node in graph.optimized(patterns)[0].graph:
            producers = [v.producer() for v in node.inputs if v is not None]
            found.append((node, [p for p in producers if p is not None]))
    return found


def test_llama_has_no_wasted_nodes() -> None:
    """No copies, no powers, no pairs of casts, no Expand before what broadcasts."""
    for node, read in _llama_nodes("default"):
        sources = {p.op_type for p in read}
        assert node.op_type not in ("Identity", "Pow")
        assert (node.op_type, sources) != ("Cast", {"Cast"})
        assert not (node.op_type in ("Mul", "Add", "Div") and "Expand" in sources)
        assert not (node.op_type == "Gemm" and "Transpose" in sources)


def test_llama_transposes_no_operand_of_a_product() -> None:
    """Matrices are read transposed by Gemm, stacks of them by FusedMatMul.

    What moves heads in front of tokens stays.
    """
    for node, read in _llama_nodes("default+onnxruntime"):
        if node.op_type in ("MatMul", "FusedMatMul", "Gemm"):
            perms = [
                list(p.attributes["perm"].as_ints()) for p in read if p.op_type == "Transpose"
            ]
            assert all(perm[-1] == len(perm) - 1 for perm in perms)


def test_llama_norms_are_fused_in_the_forward_graph() -> None:
    """Two in each of two layers and one at the end, the saved deviations with them."""
    kinds = [node.op_type for node, _ in _llama_nodes("default+onnxruntime")]
    assert kinds.count("SimplifiedLayerNormalization") == 5
    assert not {"Sqrt", "ReduceMean", "Identity", "Pow"} & set(kinds)


def test_llama_casts_nothing_twice() -> None:
    """With the kernels of onnxruntime too."""
    for node, read in _llama_nodes("default+onnxruntime"):
        assert node.op_type != "Cast" or "Cast" not in {p.op_type for p in read}


def test_time_is_linear_in_layers() -> None:
    """Rules are tried about as often for a node of a large graph as for one of a small graph."""
    tried = []
    for factory in (MODELS["llama-eager"], llama_step):
        reports = [g.optimized("default")[1] for g in graphs_of(factory, False)]
        tries = sum(r.tried for report in reports for r in report.rules.values())
        tried.append(tries / sum(report.nodes_before for report in reports))
        assert all(report.rounds <= 8 for report in reports)
    assert tried[1] < 1.5 * tried[0]
