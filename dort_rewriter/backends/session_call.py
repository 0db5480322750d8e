"""What ``OrtBackend.run`` was in torch: one session, called on tensors without its graph.

The runs of compiled graphs do not pass here (:mod:`dort_rewriter.runtime.executor`): this is for
programs that hold a session and what ``ExecutionInfo`` tells about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
import torch

from dort_rewriter.dtypes import to_torch
from dort_rewriter.ort_module import bindings, load_onnxruntime
from dort_rewriter.runtime.ort_values import dense, from_ort, to_ort
from dort_rewriter.signature import Scalar, describe_value

__all__ = ["run_session"]


def run_session(
    sess: Any,
    input_names: Sequence[str],
    inputs: Sequence[torch.Tensor | Scalar],
    input_devices: Sequence[Any],
    output_names: Sequence[str],
    outputs: Sequence[Any],
    output_devices: Sequence[Any],
    preallocate_output: bool,
    input_value_infos: Sequence[onnx.ValueInfoProto],
    normalized_prim_outputs: Sequence[Any],
) -> tuple[Any, ...]:
    """Run a session; return its results, as numbers where the examples of them are numbers.

    The examples, ``normalized_prim_outputs``, may be fake tensors; with ``preallocate_output``
    torch makes tensors like ``outputs`` for the session to write to, if all are tensors.
    """
    given = [_as_input(v, i) for v, i in zip(inputs, input_value_infos, strict=True)]
    for device in {t.device for t in given if t.is_cuda}:
        torch.cuda.synchronize(device)  # the session reads on a stream of its own
    feeds, fetches = to_ort(given), bindings().OrtValueVector()
    prepared: list[torch.Tensor] = []
    if preallocate_output and all(isinstance(o, torch.Tensor) for o in outputs):
        # NOTE: made anew also where these are real tensors: an earlier run may have given them.
        prepared = [torch.empty(o.shape, dtype=o.dtype, device=o.device) for o in outputs]
        fetches = to_ort(prepared)
    sess.run_with_ortvaluevector(
        load_onnxruntime().RunOptions(),
        list(input_names),
        feeds,
        list(output_names),
        fetches,
        list(output_devices),
    )
    expected = [describe_value(o) for o in normalized_prim_outputs]
    results = prepared or from_ort(fetches, [e["dtype"] for e in expected])
    return tuple(
        result if wanted["kind"] == "tensor" else result.item()
        for result, wanted in zip(results, expected, strict=True)
    )


def _as_input(value: torch.Tensor | Scalar, info: onnx.ValueInfoProto) -> torch.Tensor:
    dtype = to_torch(info.type.tensor_type.elem_type)
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=dtype)
    return dense(value, info.name, dtype, value.device)
