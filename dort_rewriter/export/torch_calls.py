"""Calls of torch inside a session: operators without a converter, and that would cut the graph.

The plan of a graph asks which nodes may be called, and marks them; the nodes of a graph that is
exported to a file are never marked. A model with such calls runs only in the process that made it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from dort_rewriter.aten import hint_of, is_contiguous, source_line
from dort_rewriter.export.complex_numbers import has_complex
from dort_rewriter.export.recorder import Recorder
from dort_rewriter.export.registry import Converter, Refused, python_name
from dort_rewriter.graph.values import Value
from dort_rewriter.kernels.operators import OWN_DOMAIN, OWN_MOST_AXES, TORCH_CALL
from dort_rewriter.signature import Given, Result, TorchCall

_MARK = "dort_torch_call"
"""In the metadata of a node that is to be called: None, then its call, which the graph keeps for
the sessions made of it."""

_TYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    }
)
"""Those of ``kernels/cpp/torch_call.h``, and pairs of them."""

_STATEFUL = ("c10d", "_c10d", "_dtensor", "fsdp", "symm_mem", "rngprims", "streams", "_inductor")
"""How the namespaces begin whose operators know tensors by their memory, or change the process."""


_BY_STRIDES = ("as_strided", "resize", "set")
"""Prefixes of operators that see the layout of an argument, which is another one in a model."""

_CHECKS = frozenset({"aten::_linalg_check_errors"})
"""Operators that raise an exception or do nothing; in an order that AOTAutograd keeps."""


def may_be_called(node: torch.fx.Node, *, draws: bool = False) -> bool:
    """Whether a session may call what a node calls: a function of dense tensors on the CPU
    to new ones, which mutates nothing, and is random only where ``draws`` allows it."""
    target = node.target
    if _ordered_check(node) is None and not _is_function(target, views=has_complex(node)):
        return False
    if not draws and _is_random(target):
        return False
    results = node.meta.get("val")
    made = results if isinstance(results, list | tuple) else [results]
    if not any(isinstance(m, torch.Tensor) for m in made):
        return False
    known = [n.meta for n in node.all_input_nodes]
    return all("val" in m and _is_plain(m["val"]) for m in (node.meta, *known))


def _ordered_check(node: torch.fx.Node) -> torch._ops.OpOverload | None:
    """The check that a node makes, after a token and before the arguments of the check."""
    target = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or target.name() != "with_effects":
        return None
    check = node.args[1]
    known = isinstance(check, torch._ops.OpOverload) and check.name() in _CHECKS
    return check if known else None  # type: ignore[return-value]  # it is one


def _is_function(target: Any, *, views: bool) -> bool:
    """Whether an operator returns new tensors, and has no other effect.

    With ``views``, also some of its arguments: results are copied in any case. What makes views of
    reals has a converter, or costs nothing outside of a session; complex numbers would leave it.
    """
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target.name().rpartition("::")[2]
    if target.namespace.startswith(_STATEFUL) or name.startswith(_BY_STRIDES):
        return False
    schema = target._schema
    aliases = [*(a.alias_info for a in schema.arguments), *(r.alias_info for r in schema.returns)]
    if schema.is_mutable or (not views and any(a is not None for a in aliases)):
        return False
    kinds = [str(r.type) for r in schema.returns]
    return kinds == ["List[Tensor]"] or (bool(kinds) and set(kinds) == {"Tensor"})


def _is_random(target: Any) -> bool:
    """Whether an operator may draw random numbers."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    names = {a.name for a in target._schema.arguments}
    return torch.Tag.nondeterministic_seeded in target.tags or "dropout_p" in names


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor that a model can hold, a number, nothing, or a list of these."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if not isinstance(value, torch.Tensor):
        numbers = (bool, int, float, torch.SymBool, torch.SymInt, torch.SymFloat)
        return value is None or isinstance(value, numbers)
    return (
        value.layout is torch.strided
        and value.device.type == "cpu"
        and value.dtype in _TYPES
        and value.ndim + value.is_complex() <= OWN_MOST_AXES
    )


def mark_called(node: torch.fx.Node, called: bool = True) -> None:
    """Say whether sessions are to call what a node calls."""
    if called:
        node.meta[_MARK] = None
    else:
        node.meta.pop(_MARK, None)


def is_called(node: torch.fx.Node) -> bool:
    """Whether sessions are to call what a node calls."""
    return _MARK in node.meta


_TOKEN = Result(torch.float32, (0,))
"""What a draw gives for the next one to wait for."""


Register = Callable[[TorchCall], int]
"""Gives the number of a call."""


def call_converter(name: str, register: Register) -> Converter:
    """What writes the call of a node that is marked."""
    return Converter(name, functools.partial(_record_call, register))


def _record_call(register: Register, op: Recorder, *args: Any, **kwargs: Any) -> list[Any] | Any:
    node = op.fx_node
    inputs: list[Value] = []
    metas = node.meta["val"]
    listed = metas if isinstance(metas, list | tuple) else [metas]
    check = _ordered_check(node)
    given, values = node.args, args
    if check is not None:
        token: Any = given[0]
        if token.op != "placeholder":  # AOTAutograd calls graphs with None for the first one
            inputs.append(args[0])  # it waits for the check that the token comes from
        given, values = given[2:], values[2:]
    draws = _is_random(node.target)
    if draws and op.drawn is not None:
        inputs.append(op.drawn)  # it waits for the draw before it
    if listed is metas:  # torch may record other sizes for what is unused
        read = {u.args[1] for u in node.users if u.target is operator.getitem}
        listed = [m if i in read or not read else None for i, m in enumerate(listed)]
    results_of_call = [None if m is None else _result(m) for m in listed]
    call = TorchCall(
        target=check or node.target,  # type: ignore[arg-type]  # what is marked is one
        args=tuple(_arguments(given, values, inputs)),
        kwargs={
            key: _argument(value, kwargs[python_name(key)], inputs)
            for key, value in node.kwargs.items()
        },
        results=(*([_TOKEN] if draws else []), *results_of_call),
        where=source_line(node),
        ordered=draws or check is not None,
    )
    number = register(call)
    node.meta[_MARK] = call
    made = [i for i, m in enumerate(listed) if m is not None]
    results = op.call(
        TORCH_CALL,
        *(inputs or [op.constant(0)]),
        domain=OWN_DOMAIN,
        outputs=len(made) + draws,
        operator=call.name,
        call=number,
    )
    results = results if isinstance(results, tuple) else (results,)
    if draws:
        op.drawn, *results = results
        op.drawn.type, op.drawn.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([0])
    all_results: list[Value | None] = [None] * len(listed)
    for i, value in zip(made, results, strict=True):
        all_results[i] = value
    return all_results if isinstance(metas, list | tuple) else all_results[0]


def _arguments(given: Sequence[Any], values: Sequence[Any], inputs: list[Value]) -> list[Any]:
    return [_argument(g, v, inputs) for g, v in zip(given, values, strict=True)]


def _argument(given: Any, value: Any, inputs: list[Value]) -> Any:
    """An argument of a node for its call; what the model computes of it becomes an input."""
    if isinstance(given, list | tuple):
        return _arguments(given, value, inputs)
    if not isinstance(given, torch.fx.Node):
        return given
    return _computed(value, given.meta.get("val"), inputs)


def _computed(value: Any, meta: Any, inputs: list[Value]) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, list | tuple) and isinstance(meta, list | tuple):
        return [_computed(v, m, inputs) for v, m in zip(value, meta, strict=True)]
    if not isinstance(value, Value):
        raise Refused(f"it is called with a {type(value).__name__}")
    inputs.append(value)
    index = len(inputs) - 1
    if isinstance(meta, torch.Tensor):
        order = _order(meta)
        dense = is_contiguous(meta if order is None else meta.permute(order))
        return Given(
            index, "complex" if meta.is_complex() else "tensor", order=order, has_gaps=not dense
        )
    if isinstance(meta, bool | torch.SymBool):
        return Given(index, "bool")
    return Given(index, "int" if isinstance(meta, int | torch.SymInt) else "float")


def _order(meta: torch.Tensor) -> tuple[int, ...] | None:
    """The axes of a tensor from the largest stride to the smallest; None for their own order."""
    steps = [hint_of(s) for s in meta.stride()]
    order = tuple(sorted(range(meta.ndim), key=lambda d: -steps[d]))
    return None if order == tuple(range(meta.ndim)) else order


def _result(meta: torch.Tensor) -> Result:
    return Result(meta.dtype, tuple(d if isinstance(d, int) else None for d in meta.shape))
