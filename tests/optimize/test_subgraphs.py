"""Bodies of If, Loop and Scan that read values of the graph around them: all keep their names and
numbers, whatever is done to the graph around them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.random_graphs import SELECTIONS, completed, random_graph
from tests.optimize.rewrites import make_session, random_inputs, run_onnxruntime

COUNT = 5
FLOAT = TensorProto.FLOAT


def _info(name: str, dtype: int, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def _read(names: list[str], prefix: str, start: str) -> tuple[list[onnx.NodeProto], str]:
    """Nodes that fold sums of outer values into a number."""
    nodes, last = [], start
    for i, name in enumerate(names):
        total, added = f"{prefix}total{i}", f"{prefix}added{i}"
        nodes += [
            helper.make_node("ReduceSum", [name], [total], keepdims=0),
            helper.make_node("Add", [last, total], [added]),
        ]
        last = added
    return nodes, last


def if_node(names: list[str], chosen: random.Random) -> list[onnx.NodeProto]:
    branches = {}
    for branch in ("then_branch", "else_branch"):
        prefix = f"{branch}."
        picked = chosen.sample(names, min(len(names), 3))
        zero = helper.make_node("Constant", [], [f"{prefix}zero"], value_float=float(len(prefix)))
        nodes, last = _read(picked, prefix, f"{prefix}zero")
        branches[branch] = helper.make_graph([zero, *nodes], branch, [], [_info(last, FLOAT, [])])
    return [helper.make_node("If", ["cf_condition"], ["cf_result"], **branches)]


def loop_node(names: list[str], chosen: random.Random) -> list[onnx.NodeProto]:
    picked = chosen.sample(names, min(len(names), 3))
    nodes, last = _read(picked, "body.", "body.state")
    body = helper.make_graph(
        [helper.make_node("Identity", ["body.go"], ["body.on"]), *nodes],
        "body",
        [
            _info("body.i", TensorProto.INT64, []),
            _info("body.go", TensorProto.BOOL, []),
            _info("body.state", FLOAT, []),
        ],
        [_info("body.on", TensorProto.BOOL, []), _info(last, FLOAT, [])],
    )
    return [
        helper.make_node("Constant", [], ["cf_trips"], value_int=2),
        helper.make_node("Constant", [], ["cf_start"], value_float=0.5),
        helper.make_node("Loop", ["cf_trips", "", "cf_start"], ["cf_state"], body=body),
        helper.make_node("Constant", [], ["cf_shape"], value_ints=[1]),
        # ONNX takes the state of a loop for one of any shape.
        helper.make_node("Reshape", ["cf_state", "cf_shape"], ["cf_result"]),
    ]


def scan_node(names: list[str], chosen: random.Random) -> list[onnx.NodeProto]:
    picked = chosen.sample(names, min(len(names), 3))
    nodes, last = _read(picked, "body.", "body.x")
    state = helper.make_node("Add", ["body.state", last], ["body.next"])
    body = helper.make_graph(
        [*nodes, state],
        "body",
        [_info("body.state", FLOAT, []), _info("body.x", FLOAT, [])],
        [_info("body.next", FLOAT, [])],
    )
    return [
        helper.make_node("Constant", [], ["cf_start"], value_float=0.5),
        helper.make_node("Constant", [], ["cf_xs"], value_floats=[1.0, 2.0]),
        helper.make_node(
            "Scan", ["cf_start", "cf_xs"], ["cf_result"], body=body, num_scan_inputs=1
        ),
    ]


NODES: dict[str, Callable[[list[str], random.Random], list[onnx.NodeProto]]] = {
    "If": if_node,
    "Loop": loop_node,
    "Scan": scan_node,
}


def with_body(seed: int, name: str) -> onnx.ModelProto | None:
    """A random graph with a node in its midst whose body reads what stands before it."""
    model = random_graph(seed)
    if (found := completed(model)) is None:
        return None
    known = {v.name: v.type.tensor_type for v in [*found.graph.value_info, *found.graph.output]}
    chosen = random.Random(seed)
    nodes = list(model.graph.node)
    at = chosen.randint(max(1, len(nodes) // 2), len(nodes))
    before = [o for n in nodes[:at] for o in n.output]
    names = [n for n in before if n in known and known[n].elem_type == FLOAT]
    if not names:
        return None
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:at], *NODES[name](names, chosen), *nodes[at:]])
    model.graph.output.append(_info("cf_result", FLOAT, [1] if name == "Loop" else []))
    if name == "If":
        model.graph.input.append(_info("cf_condition", TensorProto.BOOL, []))
    return completed(model)


def names_of(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield every name that a graph defines, its bodies included."""
    yield from (v.name for v in graph.input)
    yield from (t.name for t in graph.initializer if t.name not in {v.name for v in graph.input})
    for node in graph.node:
        yield from (o for o in node.output if o)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from names_of(attribute.g)


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("name", NODES)
def test_what_a_body_reads_stays(name: str, selection: str) -> None:
    ran = 0
    for seed in range(1, 3 * COUNT):
        if (model := with_body(seed, name)) is None:
            continue
        feeds = random_inputs(model)
        with np.errstate(all="ignore"):
            expected = run_onnxruntime(model, feeds)
            changed = ir.from_proto(model)
            options = OptimizationOptions(
                patterns=selection, constant_folding=True, order="memory", check_rules=True
            )
            optimize(changed, options, has_kernel=kernel_query(), make_session=make_session)
            proto = ir.to_proto(changed)
            results = run_onnxruntime(proto, feeds)
        names = list(names_of(proto.graph))
        assert len(names) == len(set(names)), f"seed {seed}"
        for got, wanted in zip(results, expected, strict=True):
            scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=1.0))
            np.testing.assert_allclose(
                got, wanted, rtol=1e-3, atol=1e-4 * scale, err_msg=f"seed {seed}"
            )
        ran += 1
        if ran == COUNT:
            break
    assert ran == COUNT
