"""assert_rewrites and assert_refuses: a rule on a model written as ONNX text.

``before`` and ``after`` are the text of a graph: ``"(float[2,N] x) => (float[2,N] y) {...}"``,
with initializers between the outputs and the nodes as ONNX text has them. Numbers are compared on
ONNX's reference evaluator and on onnxruntime with its own optimizations off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx.reference import ReferenceEvaluator

from dort_rewriter.graph.schemas import UNLISTED
from dort_rewriter.kernels.loading import register
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.optimize.patterns.base import GraphPass, Rule
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.kernel_query import kernel_query
from dort_rewriter.runtime.providers import CPU
from dort_rewriter.runtime.session import try_session

Arrays = Mapping[str, np.ndarray[Any, Any]]
SIZES = {"N": 3, "M": 4, "B": 2, "S": 5}
"""What symbolic dimensions stand for when a model runs; any other is 2."""


def model_of(text: str, opset: int = 18) -> ir.Model:
    """Parse the text of a graph, its intermediate types and shapes inferred."""
    own = f', "{OWN_DOMAIN}": 1' if f"{OWN_DOMAIN}." in text else ""
    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1{own}]>\n'
    proto = onnx.parser.parse_model(f"{header} test {text}")
    check(proto)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def check(model: onnx.ModelProto) -> None:
    """Check a model, except one with operators that onnxruntime adds to the domain of ONNX."""
    if not any(node.op_type in UNLISTED and not node.domain for node in model.graph.node):
        onnx.checker.check_model(model)


def apply(
    rule: type[Rule] | type[GraphPass] | Rule | GraphPass, model: ir.Model, kernels: bool = True
) -> OptimizeReport:
    """Apply one rule to its fixed point, and what no output needs is removed; each application
    is checked.

    ``kernels=False`` is a provider that has none.
    """
    options = OptimizationOptions(patterns=[rule], check_rules=True)
    query = kernel_query() if kernels else lambda *args, **kwargs: False
    return optimize(model, options, has_kernel=query, make_session=make_session)


def make_session(model: ir.Model) -> None:
    """Make a session of a model as it stands, as rules that are checked ask for it."""
    try_session(model, CPU)


def assert_rewrites(
    rule: type[Rule] | type[GraphPass] | Rule | GraphPass,
    before: str,
    after: str,
    count: int = 1,
    *,
    opset: int = 18,
    inputs: Arrays | None = None,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    reference: bool = True,
) -> None:
    """Check that a rule applies ``count`` times, what comes out, and that the numbers stay.

    ``reference=False`` leaves ONNX's evaluator out, for operators it does not have.
    """
    model, wanted = model_of(before, opset), model_of(after, opset)
    original = ir.to_proto(model)
    report = apply(rule, model)
    name = (rule if isinstance(rule, type) else type(rule)).__name__
    changed = ir.to_proto(model)
    assert report.rules[name].matches == count, report
    assert describe(changed) == describe(ir.to_proto(wanted)), f"\n{onnx.printer.to_text(changed)}"
    check(changed)
    if isinstance(rule, type) and issubclass(rule, Rule) and rule.lowers == "nodes":
        assert len(changed.graph.node) < len(original.graph.node)
    assert apply(rule, model).rules[name].matches == 0, "applying it twice changes something"
    feeds = inputs or random_inputs(original)
    expected = run_onnxruntime(original, feeds)
    _compare(run_onnxruntime(changed, feeds), expected, rtol, atol)
    if reference:
        _compare(ReferenceEvaluator(changed).run(None, dict(feeds)), expected, rtol, atol)


def assert_refuses(
    rule: type[Rule] | type[GraphPass] | Rule | GraphPass,
    before: str,
    reason: str | None = None,
    *,
    opset: int = 18,
    kernels: bool = True,
) -> None:
    """Check that a rule leaves a model alone, for the reason it gives (None: it gives none)."""
    model = model_of(before, opset)
    text = describe(ir.to_proto(model))
    report = apply(rule, model, kernels)
    (entry,) = report.rules.values()
    assert entry.matches == 0, report
    assert describe(ir.to_proto(model)) == text
    reasons = list(entry.refusals)
    assert reasons == ([] if reason is None else [reason])


def describe(model: onnx.ModelProto) -> list[str]:
    """The graph as lines that do not depend on the names of what is inside."""
    graph = model.graph
    names = {v.name: v.name for v in graph.input}
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        names[tensor.name] = f"{array.dtype}{list(array.shape)}{array.ravel()[:20].tolist()}"
    outputs = {v.name for v in graph.output}
    lines = []
    for node in graph.node:
        for name in node.output:
            names[name] = name if name in outputs or not name else f"%{len(names)}"
        attributes = sorted(f"{a.name}={_attribute(a)}" for a in node.attribute)
        results = ", ".join(n if n in outputs else "%" for n in node.output)
        inputs = ", ".join(_source(n, names, graph) for n in node.input)
        lines.append(f"{results} = {node.domain}::{node.op_type}({inputs}){attributes}")
    return sorted(lines)


def _source(name: str, names: Mapping[str, str], graph: onnx.GraphProto) -> str:
    """What a name stands for: an input, a constant, an output, or the node behind it."""
    if not name or not names.get(name, "").startswith("%"):
        return names.get(name, name)
    producer = next(n for n in graph.node if name in n.output)
    inside = ", ".join(_source(n, names, graph) for n in producer.input)
    return f"{producer.op_type}({inside}):{list(producer.output).index(name)}"


def _attribute(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value).tolist()
    return list(value) if not isinstance(value, bytes | int | float) else value


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of the declared types and sizes, positive and negative, without zeros."""
    generator = np.random.default_rng(0)
    given = {i.name for i in model.graph.initializer}
    return {v.name: _random(v, generator) for v in model.graph.input if v.name not in given}


def _random(value: onnx.ValueInfoProto, generator: np.random.Generator) -> Any:
    tensor = value.type.tensor_type
    sizes = [
        d.dim_value if d.HasField("dim_value") else SIZES.get(d.dim_param, 2)
        for d in tensor.shape.dim
    ]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind == "f":
        return generator.normal(size=sizes).astype(dtype)
    if dtype.kind == "b":
        return generator.integers(0, 2, size=sizes).astype(dtype)
    return generator.integers(1, 5, size=sizes).astype(dtype)


def run_onnxruntime(model: onnx.ModelProto, feeds: Arrays) -> Sequence[Any]:
    """Run a model as it stands, onnxruntime's own optimizations off."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    if any(node.domain == OWN_DOMAIN for node in model.graph.node):
        register(options)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(feeds))


def _compare(got: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)
