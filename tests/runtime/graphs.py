"""Small models in ONNX text, with the signature a compiler would give them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.parser
import torch

from dort_rewriter.ort_module import max_ir_version
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session
from dort_rewriter.signature import Dim, GraphSignature, InputSlot, OutputSlot, ViewStep

F32 = torch.float32


def parse(body: str, opset: int = 18) -> onnx.ModelProto:
    header = f'<ir_version: {max_ir_version()}, opset_import: ["": {opset}, "com.microsoft": 1]>'
    return onnx.parser.parse_model(f"{header} graph {body}")


def tensor(name: str | None, dtype: torch.dtype = F32, shape: Sequence[Dim] = ("N",)) -> InputSlot:
    return InputSlot(name=name, kind="tensor", dtype=dtype, shape=tuple(shape))


def number(name: str | None, kind: str) -> InputSlot:
    dtypes = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
    return InputSlot(name=name, kind=kind, dtype=dtypes[kind])


def result(
    name: str,
    index: int = 0,
    dtype: torch.dtype = F32,
    kind: str = "tensor",
    views: Sequence[ViewStep] = (),
) -> OutputSlot:
    return OutputSlot(
        kind=kind, source="model", name=name, index=index, dtype=dtype, views=tuple(views)
    )


def signature(inputs: Sequence[InputSlot], outputs: Sequence[OutputSlot]) -> GraphSignature:
    return GraphSignature(inputs=tuple(inputs), outputs=tuple(outputs))


def executor(
    body: str, inputs: Sequence[InputSlot], outputs: Sequence[OutputSlot], opset: int = 18
) -> Executor:
    return Executor(create_session(parse(body, opset)), signature(inputs, outputs))


def add_one(shape: Sequence[Dim] = ("N",)) -> Executor:
    """``y = x + 1`` on float32."""
    dims = ",".join(str(d) for d in shape)
    return executor(
        f"(float[{dims}] x) => (float[{dims}] y) <float one = {{1}}> {{ y = Add(x, one) }}",
        [tensor("x", shape=shape)],
        [result("y")],
    )
