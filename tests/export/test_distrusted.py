"""Each torchlib function that is not used is wrong in the way that is said of it."""

from __future__ import annotations

import functools
from typing import Any
from unittest import mock

import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.errors import UnsupportedOpError
from dort_rewriter.export import oxs_dispatcher
from dort_rewriter.export.interpreter import ExportedGraph, convert_graph
from dort_rewriter.export.oxs_dispatcher import DISTRUSTED, OxsDispatcher
from dort_rewriter.ort_module import max_opset
from tests.export.cases import T, overload

LINE, IMAGE, VOLUME = T(1, 2, 6), T(1, 2, 6, 6), T(1, 2, 6, 6, 6)
ONES, ZEROS = torch.ones(2), torch.zeros(2)
QUERY = T(1, 2, 4, 8)
BOOL = T(3, 4, dtype=torch.bool)
NORM = (IMAGE, ONES, ZEROS, ZEROS.clone(), ONES.clone())

POOL: dict[int, tuple[Any, ...]] = {
    rank: (x, [3] * rank, [2] * rank, [1] * rank)
    for rank, x in ((1, LINE), (2, IMAGE), (3, VOLUME))
}
MAX_POOL: dict[int, tuple[Any, ...]] = {
    rank: (T(1, 2, *[5] * rank), [2] * rank, [2] * rank, [1] * rank, [1] * rank, True)
    for rank in (1, 2, 3)
}
CALLS: dict[str, tuple[Any, ...]] = {
    "aten::_linalg_det": (T(3, 3),),
    "aten::_native_batch_norm_legit": (*NORM, True, 0.1, 1e-5),
    "aten::_native_batch_norm_legit_functional": (*NORM, True, 0.1, 1e-5),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (QUERY, QUERY, QUERY),
    "aten::_upsample_bilinear2d_aa": (IMAGE, [3, 3], True),
    "aten::avg_pool1d": (*POOL[1], True),
    "aten::avg_pool2d": (*POOL[2], False, True, 5),
    "aten::avg_pool3d": (*POOL[3], False, True, 5),
    "aten::cumsum": (BOOL, 0),
    **{f"aten::max_pool{rank}d": args for rank, args in MAX_POOL.items()},
    **{f"aten::max_pool{rank}d_with_indices": args for rank, args in MAX_POOL.items()},
    "aten::native_batch_norm": (*NORM, True, 0.1, 1e-5),
    "aten::nll_loss_forward": (T(3, 4), torch.tensor([0, 3, 1]), None, 0, -100),
    "aten::scatter_reduce.two": (T(3), 0, torch.tensor([0, 0, 1]), T(3) + 1, "mean"),
    "aten::split.Tensor": (T(4, 4), 2),
    "aten::sum": (BOOL,),
}
"""Arguments on which torchlib's function shows what is said of it."""


def trace(name: str) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """A graph of the call alone."""
    args = CALLS[name]
    where = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]
    tensors = [args[i].clone() for i in where]

    def call(*given: torch.Tensor) -> Any:
        full = list(args)
        for i, tensor in zip(where, given, strict=True):
            full[i] = tensor
        return overload(name)(*full)

    with torch.no_grad():
        return make_fx(call, tracing_mode="fake", pre_dispatch=True)(*tensors), tensors


def convert_by_torchlib(traced: torch.fx.GraphModule) -> ExportedGraph:
    without_list = functools.cache(oxs_dispatcher._torchlib_converter.__wrapped__)
    with (
        mock.patch.dict(DISTRUSTED, clear=True),
        mock.patch.object(oxs_dispatcher, "_torchlib_converter", without_list),
        mock.patch("dort_rewriter.export.dispatcher._unconvertible", return_value=None),
    ):
        return convert_graph(traced, OxsDispatcher(own_converters=False))


def is_right(exported: ExportedGraph, tensors: list[torch.Tensor], expected: Any) -> bool:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        ir.to_proto(exported.model).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    feed = dict(zip(exported.input_names, (t.numpy() for t in tensors), strict=True))
    got = [torch.from_numpy(r) for r in session.run(None, feed)]
    flat = list(expected) if isinstance(expected, list | tuple) else [expected]
    numbers = [e for e in flat if isinstance(e, torch.Tensor)]
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-4)
        for a, b in zip(got, numbers, strict=False)
    )


@pytest.mark.parametrize("name", CALLS)
def test_torchlib_is_as_bad_as_said(name: str) -> None:
    traced, tensors = trace(name)
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in CALLS[name]]
    expected = overload(name)(*copies)
    said = DISTRUSTED[name]
    if "fails" in said:
        with pytest.raises(UnsupportedOpError, match=name):
            convert_by_torchlib(traced)
        return
    exported = convert_by_torchlib(traced)
    if "invalid graph" in said:
        with pytest.raises(InvalidGraph):
            is_right(exported, tensors, expected)
        return
    is_of_old_kernels = "onnxruntime 1.19" in said and max_opset() > 21
    assert is_right(exported, tensors, expected) == is_of_old_kernels


def test_what_is_not_shown_here() -> None:
    """The forms of attention for CUDA do not run on CPU."""
    assert set(DISTRUSTED) - set(CALLS) == {
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_flash_attention",
    }
