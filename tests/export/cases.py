"""Rows of the operator tables: one ATen operator, called as it is, against eager.

The operator is traced alone (decomposed only where it has no converter), converted, run by ONNX
Runtime with its own optimizations off, and compared with torch: values, types, shapes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.capture.tracing import keep_resizing
from dort_rewriter.compiler.building import add_casts, add_casts_of_standard
from dort_rewriter.export.decompositions import get_decomposition_table
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.interpreter import OPSETS, ExportedGraph, convert_graph
from dort_rewriter.export.registry import op_name
from dort_rewriter.optimize.older_opsets import lower_opset
from dort_rewriter.torch_defects.count_types import correct_count_types

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-9, torch.float16: 2e-3}


@dataclasses.dataclass(frozen=True)
class Case:
    """A row: ``Case("aten::add.Tensor", (T(2, 3), T(3)), {"alpha": 2})``."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    dynamic: bool = True
    """Checked with symbolic sizes too."""
    static: bool = True
    """Checked with known sizes too: not for a result whose size the data decide."""
    atol: float | None = None
    """A tolerance looser than the dtype's; `reason` says why."""
    reason: str = ""
    outputs: tuple[int, ...] | None = None
    """The results to compare, when some hold nothing (`reason` says why)."""
    target_opset: int = 18
    reference: Callable[..., Any] | None = None
    """Computes what is expected, for an operator without a kernel on CPU."""
    untraced: bool = False
    """Not traced but written by hand: some torch makes it of other operators when called alone."""
    pre_dispatch: bool = False
    """Traced above autograd, as torch.export does: operators made of others stay whole."""

    def __str__(self) -> str:
        shapes = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in self.args]
        return f"{self.op}-{shapes}-{self.kwargs}".replace(" ", "")


def T(
    *shape: int, dtype: torch.dtype = torch.float32, low: int = -5, high: int = 5
) -> torch.Tensor:
    """A tensor of a few distinct numbers, the same at each run."""
    generator = torch.Generator().manual_seed(len(shape) * 1000 + sum(shape))
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        low = max(low, 0) if dtype is torch.uint8 else low
        return torch.randint(low, high, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def overload(name: str) -> Any:
    """The overload that a name stands for."""
    namespace, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")


def table_test(cases: Sequence[Case], *, static: bool = True) -> Callable[..., None]:
    """The test of a table: each row with known sizes and with symbolic ones, where it says so."""
    params = [
        pytest.param(case, dynamic, id=f"{case}-{'dynamic' if dynamic else 'static'}")
        for case in cases
        for dynamic in (False, True)
        if (case.dynamic if dynamic else case.static and static)
    ]

    @pytest.mark.by_value
    @pytest.mark.parametrize(("case", "dynamic"), params)
    def test_op(case: Case, dynamic: bool) -> None:
        check(case, dynamic=dynamic)

    return test_op


def check(case: Case, *, dynamic: bool = False) -> None:
    """Compare an operator, converted and run, with torch."""
    with torch.no_grad():
        expected = expect(case)
        traced, tensors = trace(case, dynamic=dynamic)
    compare(run(traced, tensors, case.target_opset), expected, case)


def expect(case: Case) -> Any:
    """What torch makes of a row."""
    if case.reference is not None:
        return case.reference(*case.args, **case.kwargs)
    leaves, spec = torch.utils._pytree.tree_flatten((case.args, case.kwargs))
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in leaves]
    args, kwargs = torch.utils._pytree.tree_unflatten(copies, spec)
    return without_warnings(overload(case.op), *args, **kwargs)


def without_warnings(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an operator of torch makes: from 2.15 on it warns in Python when called as it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return op(*args, **kwargs)


def trace(case: Case, *, dynamic: bool = False) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph of a row's operator, alone in it, and its inputs."""
    function = overload(case.op)
    leaves, spec = torch.utils._pytree.tree_flatten((case.args, case.kwargs))
    where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        full = list(leaves)
        for i, tensor in zip(where, tensors, strict=True):
            full[i] = tensor
        args, kwargs = torch.utils._pytree.tree_unflatten(full, spec)
        return function(*args, **kwargs)

    tensors = [leaves[i].clone() for i in where]
    mode = "symbolic" if dynamic else "fake"
    if case.untraced:
        traced = _single_node(function, leaves, spec, where, expect(case))
    else:
        # Tracing replaces the operators that resize, unless it is told not to.
        keep = contextlib.nullcontext() if case.pre_dispatch else keep_resizing({})
        is_whole = Dispatcher().converts(case.op)
        make = make_fx(
            call,
            decomposition_table={} if is_whole else get_decomposition_table(),
            tracing_mode=mode,
            pre_dispatch=case.pre_dispatch,
        )
        with torch.no_grad(), keep, correct_count_types():
            traced = make(*tensors)
        called = [op_name(n.target) for n in traced.graph.nodes if n.op == "call_function"]
        assert (case.op in called) == is_whole, f"{case.op}: {called}"
    return traced, tensors


def _single_node(
    function: Any, leaves: list[Any], spec: Any, where: list[int], expected: Any
) -> torch.fx.GraphModule:
    """A graph of one call with one result, written by hand."""
    graph = torch.fx.Graph()
    full = list(leaves)
    for i in where:
        full[i] = graph.placeholder(f"x{i}")
        full[i].meta["val"] = leaves[i]
    args, kwargs = torch.utils._pytree.tree_unflatten(full, spec)
    node = graph.call_function(function, tuple(args), kwargs)
    node.meta["val"] = expected
    graph.output((node,))
    return torch.fx.GraphModule({}, graph)


def convert(traced: torch.fx.GraphModule, opset: int) -> ExportedGraph:
    """Convert a traced graph as `to_onnx` does: to opset 18 first, where it is to be older."""
    exported = convert_graph(traced, Dispatcher(), opset=max(opset, OPSETS.start))
    if opset < OPSETS.start:
        lower_opset(exported.model, opset)
        add_casts_of_standard(exported.model)
    return exported


def run(traced: torch.fx.GraphModule, tensors: list[torch.Tensor], opset: int) -> list[Any]:
    """Convert a traced graph and run it."""
    exported = convert(traced, opset)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    providers = ["CPUExecutionProvider"]
    try:
        model = ir.to_proto(exported.model).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=providers)
    except NotImplemented:
        add_casts(exported.model, provider=providers[0])
        model = ir.to_proto(exported.model).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=providers)
    feed = {
        slot.name: np.ascontiguousarray(tensor.numpy()).reshape(tuple(tensor.shape))
        for slot, tensor in zip(exported.signature.inputs, tensors, strict=True)
    }
    computed = session.run(None, feed) if exported.output_names else []
    return [
        None if slot.source == "constant" else _to_torch(np.asarray(computed[slot.index]))
        for slot in exported.signature.outputs
    ]


def _to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if array.dtype.kind == "u":  # numpy has two types of 8 bytes, torch knows one of them
        array = array.view(f"u{array.dtype.itemsize}")
    return torch.from_numpy(array)


def compare(got: list[Any], expected: Any, case: Case) -> None:
    """Compare values, types and shapes."""
    flat = list(expected) if isinstance(expected, list | tuple) else [expected]
    if case.outputs is not None and case.reference is not None:
        got = [got[i] for i in case.outputs]
    assert len(got) == len(flat)
    for i, (a, b) in enumerate(zip(got, flat, strict=True)):
        if case.outputs is not None and i not in case.outputs:
            assert case.reason
            continue
        if b is None:
            assert a is None
            continue
        if not isinstance(b, torch.Tensor):
            assert a.item() == b
            continue
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert case.atol is None or case.reason, "a looser tolerance needs a reason"
        tolerance = case.atol or TOLERANCE.get(b.dtype, 0)
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, equal_nan=True)
