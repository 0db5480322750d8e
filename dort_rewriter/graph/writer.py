"""Writer: calling `op.Add(a, b)` puts a node into a graph, its type and shape inferred.

Inputs may be Python numbers, lists (of numbers and of results mixed: they are concatenated), or
None; their element type follows the operator's type variables. Equal nodes are recorded once,
constants are shared, and what depends on small constants only is computed on the spot.

NOTE: it does not stand on onnxscript's evaluator: importing onnxscript and torchlib costs more
than converting a model. ``oxs_dispatcher`` adapts this class to torchlib when it is needed.

NOTE: only exact operations are computed on the spot. Floating-point arithmetic is left to the
runtime, so that a folded graph gives the same bits as an unfolded one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.errors import ExportError
from dort_rewriter.graph import defects, shapes
from dort_rewriter.graph.schemas import UNLISTED, OpInfo, Slot, op_info
from dort_rewriter.graph.values import Value

_PYTHON_TYPES: dict[type, ir.DataType] = {
    bool: ir.DataType.BOOL,
    int: ir.DataType.INT64,
    float: ir.DataType.FLOAT,
}
_SHARED = 64
"""Constants of at most this many elements are shared between nodes."""

_BY_DTYPE_ATTRIBUTE = frozenset({"EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"})


class Writer:
    """Appends nodes to a graph."""

    def __init__(self, graph: ir.Graph, opset: int) -> None:
        self.graph = graph
        self.opset = opset
        self.provenance: Mapping[str, str] = {}
        """Written on every node recorded from now on."""
        self._constants: dict[Any, Value] = {}
        self._recorded: dict[Any, tuple[Value, ...]] = {}

    # -- nodes ---------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name[:1].isupper():
            raise AttributeError(f"Writer has no attribute {name!r}")
        method = functools.partial(self.call, name)
        self.__dict__[name] = method
        return method

    def call(
        self,
        name: str,
        /,
        *inputs: Any,
        domain: str = "",
        outputs: int | None = None,
        **attributes: Any,
    ) -> Any:
        """Record a node and return its result, or a tuple when it has several.

        `outputs` is the number of results, needed for operators with a variable number of them and
        for those of another domain.
        """
        attributes = {k: v for k, v in attributes.items() if v is not None}
        domain = "" if domain == "ai.onnx" else domain  # the standard one has two names
        if name == "Constant" and not domain:
            return self._constant_node(attributes)
        info = None if domain or name in UNLISTED else op_info(name, self.opset)
        values, types = self._as_values(info, inputs)
        if not domain:
            if name == "CastLike" and (like := values[1]) is not None and like.dtype is not None:
                name, values, attributes = "Cast", values[:1], {"to": like.dtype}
                info = op_info(name, self.opset)
            if (known := self._known(name, values, attributes)) is not None:
                return known
            if name == "Cast" and values[0] is not None:
                wide = defects.merged_casts(values[0], ir.DataType(int(attributes["to"])))
                if wide is not None:
                    values = [self.call("Max", self.cast(values[0], wide))]
        key = self._key(domain, name, values, attributes)
        if key is not None and (found := self._recorded.get(key)) is not None:
            return found if len(found) > 1 else found[0]
        results = self._append(domain, name, info, values, types, attributes, outputs)
        if key is not None:
            self._recorded[key] = results
        return results if len(results) > 1 else results[0]

    def again(self, node: ir.Node, *inputs: Any, **changed: Any) -> Any:
        """Record a node like another one, of as many results, with other inputs."""
        attributes = {name: a.value for name, a in node.attributes.items()}
        how = {"outputs": len(node.outputs), **attributes, **changed}
        return self.call(node.op_type, *inputs, domain=node.domain, **how)

    def _append(
        self,
        domain: str,
        name: str,
        info: OpInfo | None,
        values: list[ir.Value | None],
        types: dict[str, ir.DataType],
        attributes: dict[str, Any],
        outputs: int | None,
    ) -> tuple[Value, ...]:
        try:
            converted = ir.convenience.convert_attributes(attributes)
        except TypeError as e:  # a result, where ONNX wants what is known when the model is made
            raise ExportError(f"{name} has no such attributes: {e}") from e
        count = outputs or self._count_outputs(name, info, values, attributes)
        results = tuple([Value(self) for _ in range(count)])
        node = ir.Node(
            domain,
            name,
            values,
            converted,
            outputs=results,
            version=info.version if info else None,
            metadata_props=dict(self.provenance),
        )
        self._place(node)
        if domain:
            self.graph.opset_imports.setdefault(domain, 1)
        if info is not None:
            for i, result in enumerate(results):
                if (dtype := _result_type(name, info, i, types, attributes)) is not None:
                    result.type = ir.TensorType(dtype)
            dims = shapes.infer_shape(name, values, attributes)
            if dims is not None:
                for result in results if name == "Split" else results[:1]:
                    result.shape = ir.Shape(dims)
        return results

    def _place(self, node: ir.Node) -> None:
        self.graph.append(node)

    def _key(
        self,
        domain: str,
        name: str,
        values: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
    ) -> Any:
        """What identifies a node among its equals; None for one that is never shared."""
        if domain or name.startswith(("Random", "Bernoulli", "Multinomial", "Dropout")):
            return None
        try:
            items = tuple(
                (k, tuple(v) if isinstance(v, list) else v) for k, v in sorted(attributes.items())
            )
            hash(items)
        except TypeError:  # a tensor or a graph
            return None
        return name, tuple(map(id, values)), items

    def _known(
        self, name: str, values: Sequence[ir.Value | None], attributes: Mapping[str, Any]
    ) -> Value | None:
        """The result of a node that need not be recorded."""
        first = values[0] if values else None
        if first is not None and _is_identity(name, first, values, attributes):
            return cast(Value, first)  # of a loaded model: see adopt
        if name == "Shape" and first is not None and first.shape is not None:
            part = tuple(first.shape)[slice(attributes.get("start", 0), attributes.get("end"))]
            if all(isinstance(d, int) for d in part):
                return self.constant(list(part), ir.DataType.INT64)
        if (folded := _fold(name, values, attributes)) is not None:
            return self.tensor(folded)
        if name not in defects.OVER_NOTHING or first is None:
            return None
        nothing = defects.over_nothing(name, values, attributes)
        return None if nothing is None else self._filled(*nothing, first.dtype)

    def _filled(
        self, number: float, axes: Sequence[defects.Axis | None], dtype: ir.DataType | None
    ) -> Value:
        """A number in each element; a size is that of an axis of another value, or one."""
        sizes = [1 if a is None else self.size(cast(Value, a[0]), a[1]) for a in axes]
        result = self.constant(number, dtype)
        return cast(Value, self.call("Expand", result, self.vector(sizes))) if sizes else result

    @staticmethod
    def _count_outputs(
        name: str,
        info: OpInfo | None,
        values: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
    ) -> int:
        if info is None:
            return 1
        if name == "Split":
            sizes = values[1].shape if len(values) > 1 and values[1] is not None else None
            count = attributes.get("num_outputs") or (sizes[0] if sizes is not None else None)
            if not isinstance(count, int):
                raise ExportError("Split needs a known number of outputs.")
            return count
        if name == "BatchNormalization" and not attributes.get("training_mode"):
            return 1
        if name in ("Dropout", "LayerNormalization", "MaxPool"):  # optional outputs: ask for them
            return 1
        return len(info.outputs)

    # -- constants -----------------------------------------------------------------------------

    def constant(self, value: Any, dtype: ir.DataType | torch.dtype | None = None) -> Value:
        """A constant made of a number or a list of numbers."""
        if isinstance(dtype, torch.dtype):
            dtype = to_onnx_type(dtype)
        if dtype is None:
            dtype = _guess_type(value)
        with np.errstate(over="ignore"):  # too large a number is infinite, as in torch
            array = np.asarray(value).astype(dtype.numpy())
        return self.tensor(ir.Tensor(array, dtype=dtype))

    def tensor(self, tensor: ir.TensorProtocol, name: str | None = None) -> Value:
        """An initializer; small unnamed ones are shared."""
        key = _constant_key(tensor) if name is None else None
        if key is not None and (found := self._constants.get(key)) is not None:
            return found
        value = Value(
            self,
            name=name or self._constant_name(),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape([d for d in tensor.shape if isinstance(d, int)]),
            const_value=tensor,
        )
        self.graph.register_initializer(value)
        self._constants[key if key is not None else (id(value),)] = value
        return value

    def adopt(self, value: ir.Value) -> None:
        """Let an initializer of the graph serve as a constant.

        NOTE: that of a loaded model has no Python operators: rules write ``op.Add(a, b)``.
        """
        assert value.const_value is not None
        if (key := _constant_key(value.const_value)) is not None:
            self._constants.setdefault(key, cast(Value, value))

    def _constant_name(self) -> str:
        return f"constant_{len(self._constants)}"

    def _constant_node(self, attributes: Mapping[str, Any]) -> Value:
        ((kind, value),) = attributes.items()
        if isinstance(value, ir.Attr):
            value = value.value
        if kind == "value":
            return self.tensor(value if isinstance(value, ir.TensorProtocol) else ir.tensor(value))
        types = {"value_float": ir.DataType.FLOAT, "value_floats": ir.DataType.FLOAT}
        return self.constant(value, types.get(kind, ir.DataType.INT64))

    # -- inputs --------------------------------------------------------------------------------

    def _as_values(
        self, info: OpInfo | None, inputs: Sequence[Any]
    ) -> tuple[list[ir.Value | None], dict[str, ir.DataType]]:
        """Turn arguments into values, Python numbers taking the type of their neighbours."""
        types: dict[str, ir.DataType] = {}
        slots = info.input_slots(len(inputs)) if info else [None] * len(inputs)
        for slot, value in zip(slots, inputs, strict=True):
            if slot is not None and isinstance(value, ir.Value) and value.dtype is not None:
                types.setdefault(slot.variable, value.dtype)
        values = []
        for slot, value in zip(slots, inputs, strict=True):
            dtype = (types.get(slot.variable) or slot.only) if slot is not None else None
            result = self._as_value(value, slot, dtype)
            values.append(result)
            if slot is not None and result is not None and result.dtype is not None:
                types.setdefault(slot.variable, result.dtype)
        while values and values[-1] is None:
            values.pop()
        return values, types

    def _as_value(
        self, value: Any, slot: Slot | None, dtype: ir.DataType | None
    ) -> ir.Value | None:
        if value is None or isinstance(value, ir.Value):
            return value
        if isinstance(value, ir.TensorProtocol):
            return self.tensor(value)
        if isinstance(value, list | tuple) and any(isinstance(v, ir.Value) for v in value):
            if slot is not None and slot.is_sequence:
                return self.call("SequenceConstruct", *value)
            return self.vector(value)
        return self.constant(value, dtype)

    def vector(self, items: Sequence[int | ir.Value]) -> Value:
        """A 1-D int64 result made of numbers and of rank-0 or rank-1 results: a shape."""
        parts: list[Any] = []
        for item in items:
            if isinstance(item, ir.Value):
                is_flat = item.shape is not None and len(item.shape) == 1
                parts.append(item if is_flat else self.call("Reshape", item, [-1]))
            elif parts and isinstance(parts[-1], list):
                parts[-1].append(int(item))
            else:
                parts.append([int(item)])
        values = [self.constant(p, ir.DataType.INT64) if isinstance(p, list) else p for p in parts]
        if not values:
            return self.constant([], ir.DataType.INT64)
        return values[0] if len(values) == 1 else self.call("Concat", *values, axis=0)

    # -- conveniences --------------------------------------------------------------------------

    def cast(self, value: Any, dtype: ir.DataType | torch.dtype) -> Value:
        """The value (or number) with another element type, if it has not got it yet."""
        if isinstance(dtype, torch.dtype):
            dtype = to_onnx_type(dtype)
        if not isinstance(value, ir.Value):
            return self.constant(value, dtype)
        return self.call("Cast", value, to=dtype)

    def copy(self, value: Value) -> Value:
        """A new result equal to the value: an Identity node that nothing removes."""
        return self._append("", "Identity", op_info("Identity", self.opset), [value], {}, {}, 1)[0]

    def size(self, value: Value, axis: int) -> int | Value:
        """A size: a number when it is static, a rank-1 result otherwise."""
        axis = axis % value.rank
        dim = value.dims[axis]
        if isinstance(dim, int):
            return dim
        return self.call("Shape", value, start=axis, end=axis + 1)

    def sizes(self, value: Value, axes: Sequence[int] | None = None) -> Value:
        """Sizes as a 1-D result (a constant when they are static)."""
        if axes is None:
            return self.call("Shape", value)
        return self.vector([self.size(value, axis) for axis in axes])


def _is_identity(
    name: str, first: ir.Value, values: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> bool:
    """Whether a node would return its first input as it is."""
    if name == "Identity" or (name == "Concat" and len(values) == 1):
        return True
    if name == "Cast":
        return first.dtype is not None and first.dtype == int(attributes["to"])
    if name == "Transpose":
        # NOTE: onnxruntime 1.19 computes an identity Transpose + MatMul + Add wrongly.
        perm = attributes.get("perm")
        return perm is not None and list(perm) == sorted(perm)
    if name in ("Reshape", "Expand") and first.shape is not None:
        target = values[1].const_value if values[1] is not None else None
        return target is not None and list(first.shape) == [int(d) for d in target.numpy()]
    return False


def _constant_key(tensor: ir.TensorProtocol) -> Any:
    """What equal constants have in common; None for one too large to compare."""
    if tensor.size > _SHARED:
        return None
    return tensor.numpy().tobytes(), tuple(tensor.shape), tensor.dtype


def _guess_type(value: Any) -> ir.DataType:
    if isinstance(value, list | tuple):
        if any(isinstance(v, float) for v in value):
            return ir.DataType.FLOAT
        value = value[0] if value else 0
    return _PYTHON_TYPES.get(type(value), ir.DataType.INT64)


def _result_type(
    name: str,
    info: OpInfo,
    index: int,
    types: Mapping[str, ir.DataType],
    attributes: Mapping[str, Any],
) -> ir.DataType | None:
    if name == "Cast":
        return ir.DataType(int(attributes["to"]))
    if name == "ConstantOfShape":
        return attributes["value"].dtype if "value" in attributes else ir.DataType.FLOAT
    if name in ("RandomNormal", "RandomUniform"):
        return ir.DataType(int(attributes.get("dtype", ir.DataType.FLOAT)))
    if name in _BY_DTYPE_ATTRIBUTE and attributes.get("dtype"):
        return ir.DataType(int(attributes["dtype"]))
    if name == "LayerNormalization" and index:
        return ir.DataType(int(attributes.get("stash_type", ir.DataType.FLOAT)))
    slot = info.outputs[min(index, len(info.outputs) - 1)]
    return types.get(slot.variable) or slot.only


def is_negative(op: Writer, x: ir.Value) -> Value:
    """Where the sign bit is set, minus zero included (the sign of a NaN is out of reach)."""
    return op.Less(op.Min(x, op.Reciprocal(x)), 0)


def signed_one(op: Writer, x: ir.Value) -> Value:
    """1 with the sign of each number, of zeros too.

    NOTE: ORT's Where makes 0.0 of each -0.0: what may be one is made by a product.
    """
    assert x.dtype is not None
    return op.Where(is_negative(op, x), op.cast(-1, x.dtype), 1)


_FOLDED = 64
"""Elements above which a constant is left alone."""

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]


def _axes(xs: Sequence[Array]) -> tuple[int, ...] | None:
    return tuple(int(a) for a in xs[1].ravel()) if len(xs) > 1 else None


def _reshape(xs: Sequence[Array], attributes: Attributes) -> Array | None:
    target = [int(d) for d in xs[1].ravel()]
    if 0 in target:
        return None
    return xs[0].reshape(target)


def _integers(
    function: Callable[..., Any],
) -> Callable[[Sequence[Array], Attributes], Array | None]:
    def compute(xs: Sequence[Array], attributes: Attributes) -> Array | None:
        if any(x.dtype != np.int64 for x in xs):
            return None
        return np.asarray(function(*xs))

    return compute


def _divide(a: Array, b: Array) -> Array:
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(np.int64)  # truncates


def _slice(xs: Sequence[Array], attributes: Attributes) -> Array | None:
    axes = [int(a) for a in xs[3].ravel()] if len(xs) > 3 else list(range(len(xs[1])))
    steps = [int(s) for s in xs[4].ravel()] if len(xs) > 4 else [1] * len(axes)
    if any(s < 0 for s in steps):
        return None
    index = [slice(None)] * xs[0].ndim
    for axis, start, end, step in zip(axes, xs[1].ravel(), xs[2].ravel(), steps, strict=True):
        index[axis] = slice(int(start), int(end), step)
    return xs[0][tuple(index)]


FOLDABLE: dict[str, Callable[[Sequence[Array], Attributes], Array | None]] = {
    "Identity": lambda xs, a: xs[0],
    "Reshape": _reshape,
    "Concat": lambda xs, a: np.concatenate(xs, a["axis"]),
    "Squeeze": lambda xs, a: np.squeeze(xs[0], _axes(xs)),
    "Unsqueeze": lambda xs, a: np.expand_dims(xs[0], _axes(xs) or ()),
    "Gather": lambda xs, a: np.take(xs[0], xs[1], axis=a.get("axis", 0)),
    "Slice": _slice,
    "Size": lambda xs, a: np.asarray(xs[0].size, dtype=np.int64),
    "Add": _integers(np.add),
    "Sub": _integers(np.subtract),
    "Mul": _integers(np.multiply),
    "Neg": _integers(np.negative),
    "Min": _integers(np.minimum),
    "Max": _integers(np.maximum),
    "Div": _integers(_divide),
}


def _fold(
    op: str, inputs: Sequence[ir.Value | None], attributes: Attributes
) -> ir.Tensor[Any] | None:
    """The constant result of a node, or None when it is not one or not worth it."""
    if (compute := FOLDABLE.get(op)) is None and op != "Cast":
        return None
    constants = [None if v is None else v.const_value for v in inputs]
    if not constants or any(c is None or c.size > _FOLDED for c in constants):
        return None
    arrays = [c.numpy() for c in constants if c is not None]
    first = constants[0]
    assert first is not None
    if op == "Cast":
        dtype = ir.DataType(int(attributes["to"]))
        if (arrays[0].dtype.kind == "f" and not dtype.is_floating_point()) or dtype.bitwidth < 8:
            return None  # out-of-range conversions are the runtime's to define
        return ir.Tensor(np.asarray(arrays[0].astype(dtype.numpy())), dtype=dtype)
    assert compute is not None
    result = compute(arrays, attributes)
    if result is None or result.size > _FOLDED:
        return None
    dtype = ir.DataType.INT64 if op == "Size" else first.dtype
    return ir.Tensor(np.ascontiguousarray(result).reshape(result.shape), dtype=dtype)


def hides_all(op: Any, scores: Any, axis: int = -1) -> Any:
    """The rows of scores that are minus infinity throughout, NaN nowhere; the axis is kept.

    NOTE: ORT's maximum keeps or loses a NaN by its position, its sum has each.
    """
    highest = op.ReduceMax(scores, [axis], keepdims=1)
    total = op.ReduceSum(scores, [axis], keepdims=1)
    return op.And(op.Equal(highest, -math.inf), op.Equal(total, -math.inf))
