"""What programs read of torch's ``OrtBackend`` is on ours as well, with the same meaning."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.backends import onnxrt
from tests.backends.ways import HAS_ORT_BACKEND

LEFT_OUT = {
    "_partitioner_cache": "what it keeps alive belongs to the compiled functions",
    "_OrtBackend__instance_cache": "private to its class",
    "_OrtBackend__instance_cache_max_count": "private to its class",
}


@pytest.mark.skipif(not HAS_ORT_BACKEND, reason="this torch has no class to compare with")
def test_nothing_of_torchs_class_is_missing() -> None:
    from torch.onnx._internal import onnxruntime as of_torch

    theirs = of_torch.OrtBackend()
    assert theirs._partitioner_cache == {}  # asked for, it comes with all that torch sets
    names = {*vars(theirs), *vars(type(theirs))} - {"__annotations__", "__getattr__"}
    names.discard("__slotnames__")  # of whoever copied an instance before
    assert {n for n in names if not hasattr(OrtBackend(), n)} == set(LEFT_OUT)
    for name in of_torch.__all__:
        assert hasattr(onnxrt, name)
    tables = (of_torch.OrtExecutionInfoForAllGraphModules, onnxrt.ExecutionInfoTable)
    assert {n for n in vars(tables[0]) if n[0] != "_"} <= set(vars(tables[1]))


def _run(function: Any, *args: Any, preallocate: bool = False) -> tuple[Any, ...]:
    """Compile by hand, then run the session as torch's class did."""
    backend = OrtBackend(OrtBackendOptions(use_aot_autograd=False, fallback=False))
    graph = make_fx(function)(*args)
    backend._ort_acclerated_call(graph, *args)
    assert backend.execution_count == 1
    (info,) = backend._all_ort_execution_info.execution_info_per_graph_module[graph]
    examples = function(*args)
    with FakeTensorMode() as mode:
        fake = tuple(mode.from_tensor(e) for e in examples)
    return backend.run(
        info.session,
        info.input_names,
        args,
        info.input_devices,
        info.output_names,
        fake,
        info.output_devices,
        preallocate,
        info.input_value_infos,
        fake,
    )


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_session_runs_on_tensors(preallocate: bool) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ y, x > 0, x.sum()

    x, y = torch.randn(4, 3), torch.randn(2, 3).t()
    got = _run(function, x, y, preallocate=preallocate)
    torch.testing.assert_close(got, function(x, y))


@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("example", [3, 2.5, True])
def test_numbers_go_in_and_out(example: Any, preallocate: bool) -> None:
    backend = OrtBackend(OrtBackendOptions(use_aot_autograd=False, fallback=False))
    value = torch.tensor(example)
    graph = make_fx(lambda x: torch.ops.aten.clone.default(x))(value)
    backend._ort_acclerated_call(graph, value)
    (info,) = backend._all_ort_execution_info.execution_info_per_graph_module[graph]
    (got,) = backend.run(
        info.session,
        info.input_names,
        (example,),
        info.input_devices,
        info.output_names,
        (example,),
        info.output_devices,
        preallocate,
        info.input_value_infos,
        (example,),
    )
    assert type(got) is type(example)
    assert got == example


def test_aot_autograd_by_hand() -> None:
    from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    backend = OrtBackend(OrtBackendOptions(use_aot_autograd=False, fallback=False))
    compiler = aot_autograd(
        fw_compiler=lambda graph, args: make_boxed_func(backend(graph, args)),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=backend._resolved_onnx_exporter_options.decomposition_table,
    )
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU())
    x = torch.randn(2, 3)
    want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    compiled = torch.compile(model, backend=compiler, fullgraph=True)
    got = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
    torch.testing.assert_close(got, want)
    assert backend.execution_count == 2
