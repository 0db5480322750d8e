"""Whether the installed onnxruntime can run an operator on given types: it is asked.

A model of one node is given to a session with optimizations off. The answer is about what a
model needs around the node: True means that it runs as it is. NOTE: on the CPU onnxruntime itself
casts float16 nodes without a kernel to float32 and back, so the answer is True for them; for
bfloat16 and float64 it does no such thing.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from google.protobuf.message import Message
from onnx import helper
from packaging.version import Version

from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.graph.schemas import in_standard
from dort_rewriter.kernels.loading import is_available, register
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.ort_module import (
    bindings,
    describe,
    load_onnxruntime,
    max_ir_version,
    max_opset,
    quiet_options,
)
from dort_rewriter.runtime.providers import CPU, CUDA, OPENVINO, available, is_plug_in

logger = logging.getLogger(__name__)

_Frozen = tuple[tuple[str, Any], ...]


def has_kernel(
    op_type: str,
    domain: str,
    version: int,
    input_dtypes: Sequence[ir.DataType | int | None],
    *,
    attributes: Mapping[str, Any] | None = None,
    outputs: int | Sequence[ir.DataType | None] = 1,
    shapes: Sequence[Sequence[int] | None] | None = None,
    provider: str = CPU,
) -> bool:
    """Whether a node runs with inputs of these types, without casts around it.

    ``version`` is the opset of ``domain``; an input left out is None; ``attributes`` are those the
    operator requires, as Python values; ``outputs`` the number of results, or the types they must
    have. ``shapes`` asks for more: that the kernel accepts inputs
    of such shapes, which are best small. Raises :class:`ExecutionError` if a required one is
    missing, since the answer would mean nothing.
    """
    if any(_is_graph(v) for v in (attributes or {}).values()):
        raise ExecutionError(f"{op_type} has subgraphs: ask about the nodes inside.")
    if domain == OWN_DOMAIN and not (provider == CPU and is_available()):
        return False
    if provider == OPENVINO or is_plug_in(provider):
        # It takes what it can of standard operators, and the CPU, in the same session, the rest.
        if domain:
            return False
        provider = CPU
    types = tuple(None if t is None else int(t) for t in input_dtypes)
    if provider == CPU and _refuses_to_run(op_type, types, attributes or {}):
        return False
    frozen = tuple(sorted((k, _freeze(v)) for k, v in (attributes or {}).items()))
    sizes = None if shapes is None else tuple(None if x is None else tuple(x) for x in shapes)
    results = [None] * outputs if isinstance(outputs, int) else outputs
    wanted = tuple(None if t is None else int(t) for t in results)
    return _ask(op_type, domain, version, types, frozen, wanted, sizes, provider)


def _refuses_to_run(
    op_type: str, types: Sequence[int | None], attributes: Mapping[str, Any]
) -> bool:
    """Tell of a kernel that a session takes and that fails at each run: there is one for the type,
    and none for its reduction (1.19, 1.31)."""
    reduction = attributes.get("reduction", "none")
    if op_type not in ("ScatterND", "ScatterElements") or reduction == "none":
        return False
    unreduced = [ir.DataType.FLOAT16, ir.DataType.BFLOAT16]
    return types[0] in (
        unreduced if reduction in ("add", "mul") else [*unreduced, ir.DataType.BOOL]
    )


_SLOW_ON_CPU: Mapping[str, Callable[[tuple[int, ...]], bool]] = {
    "RotaryEmbedding": lambda version: version < (1, 20),
    "SkipLayerNormalization": lambda version: True,
    "SkipSimplifiedLayerNormalization": lambda version: version >= (1, 20),
}
"""Kernels of ``com.microsoft`` that were measured slower than the nodes they stand for, and in
which versions: 4 times the rotary embedding of 1.19; of 1.31, 5 times the skip and layer norm and
twice the skip and RMS norm, which 1.19 computes in nine tenths of the time."""


def _is_slow(op_type: str, domain: str, provider: str) -> bool:
    slow = _SLOW_ON_CPU.get(op_type)
    if slow is None or domain != "com.microsoft" or provider != CPU:
        return False
    return slow(Version(load_onnxruntime().__version__).release)


def kernel_query(provider: str = CPU) -> Callable[..., bool]:
    """:func:`has_kernel` for one provider, less the kernels that are slower than what they
    would replace; a provider that is not installed has none.

    A model of an opset that this onnxruntime does not load is for another one: there ONNX's own
    word counts.
    """
    present: list[bool] = []

    def query(op_type: str, domain: str, version: int, types: Any, **kwargs: Any) -> bool:
        if not domain and version > max_opset():
            return in_standard(op_type, domain, version, types)
        if not present:  # onnxruntime is needed once a rule asks, not before
            present.append(provider in available())
            if not present[0]:
                logger.info("%s is not here to ask: no rule that needs it applies.", provider)
        if not present[0] or _is_slow(op_type, domain, provider):
            return False
        return has_kernel(op_type, domain, version, types, provider=provider, **kwargs)

    return query


_KEPT: Mapping[str, tuple[float, ...]] = {
    "Ceil": (-0.0,),
    "Erf": (math.nan,),
    "Floor": (-0.0,),
    "Max": (math.nan,),
    "Min": (math.nan,),
    "PRelu": (math.inf, -math.inf),
    "Relu": (math.nan,),
    "Sqrt": (math.inf, -0.0),
}
"""Operators, and numbers that they leave as they are: not every kernel does."""

_UP_TO_ONE: Mapping[str, tuple[float, ...]] = {
    "Sigmoid": (17.844, -17.0, -30.0),
    "Tanh": tuple(8.25 + i / 256 for i in range(192)),
}
"""Operators that give a number above 0 and up to 1, and numbers where not every kernel does: what
is beyond 1 has no root of ``1 - y * y``, and what is 0 no logarithm."""

_TRIED = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
"""The types of which there are wrong kernels; a few are of float64."""


@functools.cache
def is_wrong(op_type: str, dtype: ir.DataType) -> bool:
    """Whether the CPU's kernel of an operator loses such a number, of one element or more."""
    full = functools.partial(np.full, dtype=dtype.numpy())
    if op_type in _UP_TO_ONE and dtype == ir.DataType.FLOAT:
        y = _computed(op_type, np.array(_UP_TO_ONE[op_type], np.float32))
        return not ((y > 0) & (y <= 1)).all()
    wide = dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    if op_type == "Log" and wide:  # some take a number below the normal ones for one of them
        tiny = full(33, np.finfo(dtype.numpy()).tiny / 16)
        return not np.allclose(_computed(op_type, tiny), np.log(tiny), rtol=1e-3)
    if op_type in ("Exp", "Softmax") and dtype == ir.DataType.DOUBLE:  # of some nothing is zero
        return bool(_computed(op_type, np.array([0.0] + [-1000.0] * 33))[1:].any())
    if op_type == "Where" and wide:  # some make 0.0 of -0.0
        y = _computed(op_type, np.ones(3, bool), full(3, -0.0), full(3, 1.0))
        return not np.signbit(y).all()
    types = (*_TRIED, ir.DataType.DOUBLE) if op_type in ("Ceil", "Floor") else _TRIED
    if op_type not in _KEPT or dtype not in types:
        return False
    if op_type == "PRelu" and dtype == ir.DataType.FLOAT16:  # onnxruntime computes it in float32
        return is_wrong(op_type, ir.DataType.FLOAT)
    beside = {"Max": [full((1, 3), 0.0)], "Min": [full((1, 3), 0.0)], "PRelu": [full((1, 1), 1.0)]}
    others = beside.get(op_type, [])
    for number in _KEPT[op_type]:
        for count in (1, 33):  # the last ones of a vector have a kernel of their own
            x = full((count, 1) if others else count, number)
            y = _computed(op_type, x, *others)
            x = np.broadcast_to(x, y.shape)
            kept = np.array_equal(x, y, equal_nan=True)
            if not kept or (np.signbit(x) != np.signbit(y))[~np.isnan(x)].any():
                return True
    return False


def _computed(op_type: str, *inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the CPU's kernel of an operator gives for inputs, in the type of the last of them."""
    session = _of_one_node(
        op_type, tuple(helper.np_dtype_to_tensor_dtype(x.dtype) for x in inputs)
    )
    (result,) = session.run(None, {f"x{i}": x for i, x in enumerate(inputs)})
    return np.asarray(result)


@functools.cache
def _of_one_node(op_type: str, types: tuple[int, ...]) -> Any:
    return _trial(_one_node(op_type, "", 18, types, {}, types[-1:]))


def _trial(model: onnx.ModelProto) -> Any:
    """A session of a model that tries a kernel of the CPU."""
    return load_onnxruntime().InferenceSession(
        model.SerializeToString(), quiet_options(), providers=[CPU]
    )


@functools.cache
def loses_factors() -> bool:
    """Whether onnxruntime fails at the product of a transposed value with itself."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        square (float16[2,2] x) => (float[2,2] y)
        { t = Transpose<perm = [1, 0]>(x) c = Cast<to = 1>(t) y = MatMul(c, c) }"""
    )
    session = _trial(model)
    try:
        session.run(None, {"x": np.zeros((2, 2), np.float16)})
    except bindings().RuntimeException:
        return True
    return False


def _is_graph(value: Any) -> bool:
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, (onnx.GraphProto, ir.Graph))


@dataclass(frozen=True)
class _Message:
    """A tensor among the attributes of a node: equal where its bytes are."""

    kind: type[Any]
    data: bytes

    def thaw(self) -> Any:
        return self.kind.FromString(self.data)


def _freeze(value: Any) -> Any:
    if isinstance(value, ir.TensorProtocol):
        value = ir.to_proto(value)
    if isinstance(value, Message):
        return _Message(type(value), value.SerializeToString())
    return tuple(map(_freeze, value)) if isinstance(value, (list, tuple)) else value


def _thaw(value: Any) -> Any:
    if isinstance(value, _Message):
        return value.thaw()
    return [_thaw(v) for v in value] if isinstance(value, tuple) else value


@functools.cache
def _ask(
    op_type: str,
    domain: str,
    version: int,
    types: tuple[int | None, ...],
    attributes: _Frozen,
    outputs: tuple[int | None, ...],
    shapes: tuple[tuple[int, ...] | None, ...] | None,
    provider: str,
) -> bool:
    restored = {name: _thaw(value) for name, value in attributes}
    model = _one_node(op_type, domain, version, types, restored, outputs)
    ort, state, options = load_onnxruntime(), bindings(), quiet_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if domain == OWN_DOMAIN:
        register(options)
    if provider != CPU:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    refusals = [state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented]
    if domain:
        refusals.append(state.RuntimeException)  # how onnxruntime passes on that a kernel refuses
    try:
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=[provider], enable_fallback=False
        )
        if shapes is not None:
            session.run(None, _zeros(types, shapes))
            if provider == CUDA:
                torch.cuda.synchronize()  # or the session ends before its run does
    except tuple(refusals) as error:
        if "Required attribute" in str(error) or "Missing attribute" in str(error):
            raise ExecutionError(
                f"has_kernel({op_type!r}) needs its attributes: {error}"
            ) from error
        return False
    return True


def _zeros(
    types: Sequence[int | None], shapes: Sequence[tuple[int, ...] | None]
) -> dict[str, np.ndarray[Any, Any]]:
    return {
        f"x{i}": np.zeros(shape or (), helper.tensor_dtype_to_np_dtype(t))
        for i, (t, shape) in enumerate(zip(types, shapes, strict=True))
        if t is not None
    }


def _result(name: str, dtype: int | None) -> onnx.ValueInfoProto:
    """Describe a result of one type, or of the one that onnxruntime infers."""
    if dtype is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, dtype, None)


def _one_node(
    op_type: str,
    domain: str,
    version: int,
    types: tuple[int | None, ...],
    attributes: dict[str, Any],
    outputs: tuple[int | None, ...],
) -> onnx.ModelProto:
    names = ["" if t is None else f"x{i}" for i, t in enumerate(types)]
    results = [f"y{i}" for i in range(len(outputs))]
    node = helper.make_node(op_type, names, results, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "probe",
        [
            helper.make_tensor_value_info(name, t, None)
            for name, t in zip(names, types, strict=True)
            if t is not None
        ],
        [_result(name, t) for name, t in zip(results, outputs, strict=True)],
    )
    opsets = {"": version} if not domain else {"": min(18, max_opset()), domain: version}
    return helper.make_model(
        graph,
        ir_version=max_ir_version(),
        opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
    )


BITS = {"int8": 8, "int4": 4}
"""The bits of what the option ``weights`` may be."""


def has_low_bit_products(bits: int) -> bool:
    """Whether a session takes a product by a weight of so many bits."""
    sizes = {"K": 32, "N": 16, "block_size": 32, "bits": bits, "accuracy_level": 4}
    types = (ir.DataType.FLOAT, ir.DataType.UINT8, ir.DataType.FLOAT)
    return has_kernel("MatMulNBits", "com.microsoft", 1, types, attributes=sizes)


def require_low_bit_products(weights: str) -> None:
    """Raise :class:`OptionError` when products by such weights have no kernel."""
    if has_low_bit_products(BITS[weights]):
        return
    others = [name for name, bits in BITS.items() if has_low_bit_products(bits)]
    advice = f"weights={others[0]!r} has one." if others else "leave the option weights out."
    raise OptionError(
        f"{describe()} has no kernel for products by weights of {BITS[weights]} bits "
        f"(MatMulNBits), which weights={weights!r} asks for; {advice}"
    )
