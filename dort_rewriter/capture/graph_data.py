"""A graph of ATen operators as plain data, and back: what another process needs of it.

The data are tuples of names, numbers and sizes (expressions of symbols, as sympy has them): no
code, no weight. Values (``meta["val"]``) keep their sizes, strides and which of them share memory.
Their text is the same in each process: keys are made of it.
NOTE: the data are of the same package and the same torch: their keys say so, nothing here does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.aten import LAYOUT_IS_FREE
from dort_rewriter.capture.updates import UPDATES
from dort_rewriter.errors import CaptureError
from dort_rewriter.signature import find_operator

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_MAX_CONSTANT = 2**16
"""Bytes of a constant that a description holds, or the key of a model."""

_KEPT = ("stack_trace", LAYOUT_IS_FREE, UPDATES)
"""What is kept of a node besides its value: data, all of it."""

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
_FUNCTIONS = ("_operator", "math", "builtins", "torch")
"""Modules whose functions are found again by their names: those of sizes."""


class _Reference(int):
    """The place of a node among those of its graph, in an argument."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


class _Number(tuple[str, Any]):
    """A symbolic number: its kind, and its expression."""


@dataclass(frozen=True)
class GraphData:
    """A graph."""

    nodes: tuple[tuple[Any, ...], ...]
    """Operation, name, target, arguments and notes (the value is one) of each node."""
    constants: Mapping[str, tuple[torch.dtype, tuple[int, ...], bytes]]
    """The tensors that the graph holds, by name."""


def describe_graph(graph_module: torch.fx.GraphModule) -> GraphData:
    """The data of a graph; :class:`CaptureError` with the reason for one that data cannot say."""
    described, nodes = Description(), list(graph_module.graph.nodes)
    with _disable_current_modes():
        return GraphData(
            tuple(map(described.node, nodes)),
            {n.target: constant(graph_module, n.target) for n in nodes if n.op == "get_attr"},
        )


def restore_graph(data: GraphData, mode: FakeTensorMode) -> torch.fx.GraphModule:
    """The graph of some data, its values those of a mode, whose symbols it has."""
    # NOTE: what holds of sizes was found when it was traced; torch checks it for who finds it.
    quiet = (
        contextlib.nullcontext() if mode.shape_env is None else mode.shape_env.suppress_guards()
    )
    with _disable_current_modes(), quiet:
        restored = _Restoration(mode)
        for described in data.nodes:
            restored.node(*described)
        if not any(n.op == "output" for n in restored.graph.nodes):
            raise CaptureError("the graph has no results")
        constants = {name: _tensor(*constant) for name, constant in data.constants.items()}
        return torch.fx.GraphModule(constants, restored.graph)


# -- to data ------------------------------------------------------------------------------------


class Description:
    """What was described so far of a graph.

    Unless it is to be restored, it may have what only a key of it needs: views that change
    numbers, sizes that are known at run time only.
    """

    def __init__(self, *, restored: bool = True) -> None:
        self.sizes: dict[Any, Any] = {}
        """The symbolic numbers by their expressions, as torch has them."""
        self._restored = restored
        self._nodes: dict[torch.fx.Node, _Reference] = {}
        self._storages: dict[int, int] = {}

    def node(self, node: torch.fx.Node) -> tuple[Any, ...]:
        """A node, after those that it reads."""
        notes = {key: node.meta[key] for key in _KEPT if key in node.meta}
        if "val" in node.meta:
            notes["val"] = self.value(node.meta["val"])
        arguments = self.argument(node.args), self.argument(node.kwargs)
        described = (node.op, node.name, _name_of(node), *arguments, notes)
        self._nodes[node] = _Reference(len(self._nodes))
        return described

    def argument(self, argument: Any) -> Any:
        """An argument of a node."""
        if isinstance(argument, torch.fx.Node):
            return self._nodes[argument]
        if isinstance(argument, list | tuple):
            return (type(argument) is tuple, [self.argument(a) for a in argument])
        if isinstance(argument, Mapping):
            return {k: self.argument(v) for k, v in argument.items()}
        if isinstance(argument, slice):
            parts = (argument.start, argument.stop, argument.step)
            return slice(*map(self.argument, parts))
        if argument is None or isinstance(argument, (*_PLAIN, torch.memory_format)):
            return argument
        raise CaptureError(f"an argument is a {type(argument).__name__}")

    def value(self, value: Any) -> Any:
        """The value of a node."""
        if isinstance(value, list | tuple):
            return (type(value) is tuple, [self.value(v) for v in value])
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._number(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        raise CaptureError(f"a value is a {type(value).__name__}")

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        is_fake = type(tensor) is torch._subclasses.FakeTensor or not self._restored
        if not is_fake or tensor.layout != torch.strided:
            raise CaptureError(f"a value is a {type(tensor).__name__} of {tensor.layout}")
        bits = tensor.is_conj(), tensor.is_neg()
        if any(bits) and self._restored:
            raise CaptureError("a value is a view that changes numbers (conjugated, negated)")
        storage = tensor.untyped_storage()._cdata
        return {
            "dtype": tensor.dtype,
            "device": tensor.device,
            "storage": self._storages.setdefault(storage, len(self._storages)),
            "offset": self._size(tensor.storage_offset()),
            "shape": tuple(map(self._size, tensor.shape)),
            "stride": tuple(map(self._size, tensor.stride())),
            "bits": bits,
        }

    def _size(self, size: Any) -> Any:
        return size if isinstance(size, int) else self._number(size)

    def _number(self, number: Any) -> _Number:
        if self._restored and free_unbacked_symbols(number):
            raise CaptureError("a size is known at run time only")
        expression = number.node.expr
        self.sizes.setdefault(expression, number.node)
        return _Number((type(number).__name__, expression))


def _name_of(node: torch.fx.Node) -> tuple[str, ...]:
    """How what a node calls is found again."""
    target: Any = node.target
    if node.op != "call_function":
        if node.op not in ("placeholder", "get_attr", "output"):
            raise CaptureError(f"a node is a {node.op}")
        return ("name", str(target))
    if isinstance(target, torch._ops.OpOverload):
        return ("operator", target.name())
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if module in _FUNCTIONS and _function(module, name) is target:
        return ("function", module, name)
    raise CaptureError(f"a node calls {target}")


def constant(
    graph_module: torch.fx.GraphModule, path: str, *, restored: bool = True
) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """A small tensor that a graph holds; :class:`CaptureError` for any other."""
    value: Any = functools.reduce(getattr, path.split("."), graph_module)
    plain = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    is_held = "." not in path and plain and value.is_contiguous()
    if not plain or value.device.type != "cpu" or (restored and not is_held):
        raise CaptureError(f"{path} is no plain tensor on the CPU")
    if value.nbytes > _MAX_CONSTANT or value.is_conj() or value.is_neg():
        raise CaptureError(f"{path} is a large constant")
    content = value.detach().reshape(-1).view(torch.uint8) if value.numel() else torch.empty(0)
    return value.dtype, tuple(value.shape), bytes(content.tolist())


# -- from data ----------------------------------------------------------------------------------


class _Restoration:
    """What was restored so far of a graph."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.graph = torch.fx.Graph()
        self._nodes: list[torch.fx.Node] = []
        self._mode = mode
        self._storages: dict[int, Any] = {}
        self._numbers: dict[_Number, Any] = {}

    def node(
        self,
        op: str,
        name: str,
        target: tuple[str, ...],
        args: Any,
        kwargs: Any,
        notes: Mapping[str, Any],
    ) -> None:
        """Append a node to those before it."""
        arguments = self.argument(args), self.argument(kwargs)
        node = self.graph.create_node(op, _target(target), *arguments, name)
        if node.name != name:
            raise CaptureError(f"a node is named {node.name}, not {name}")
        node.meta.update(notes)
        if "val" in notes:
            node.meta["val"] = self.value(notes["val"])
        self._nodes.append(node)

    def argument(self, data: Any) -> Any:
        """An argument of a node."""
        if isinstance(data, _Reference):
            return self._nodes[data]
        if isinstance(data, tuple):
            is_tuple, items = data
            found = [self.argument(d) for d in items]
            return tuple(found) if is_tuple else found
        if isinstance(data, Mapping):
            return {k: self.argument(v) for k, v in data.items()}
        if isinstance(data, slice):
            return slice(*(self.argument(p) for p in (data.start, data.stop, data.step)))
        return data

    def value(self, data: Any) -> Any:
        """The value of a node."""
        if isinstance(data, _Number):
            return self._number(data)
        if isinstance(data, dict):
            return self._tensor(data)
        if isinstance(data, tuple):
            is_tuple, items = data
            found = [self.value(d) for d in items]
            return tuple(found) if is_tuple else found
        return data

    def _tensor(self, data: Mapping[str, Any]) -> torch.Tensor:
        shape, stride = (tuple(map(self.value, data[k])) for k in ("shape", "stride"))
        storage, offset = self._storages.get(data["storage"]), self.value(data["offset"])
        if storage is None and isinstance(offset, int) and offset == 0:
            meta = torch.empty_strided(shape, stride, dtype=data["dtype"], device="meta")
        else:
            meta = torch.empty(0, dtype=data["dtype"], device="meta")
            owner = meta.untyped_storage() if storage is None else storage
            meta.set_(owner, offset, shape, stride)
        self._storages.setdefault(data["storage"], meta.untyped_storage())
        return torch._subclasses.FakeTensor(self._mode, meta, data["device"])

    def _number(self, data: _Number) -> Any:
        if data not in self._numbers:
            self._numbers[data] = self._make_number(data)
        return self._numbers[data]

    def _make_number(self, data: _Number) -> Any:
        kind, expression = data
        environment: ShapeEnv | None = self._mode.shape_env
        known = {} if environment is None else environment.var_to_range
        if environment is None or not all(s in known for s in expression.free_symbols):
            raise CaptureError(f"nothing here is of the size {expression}")
        make: Mapping[str, Callable[..., Any]] = {
            "SymInt": functools.partial(environment.create_symintnode, hint=None),
            "SymFloat": functools.partial(environment.create_symfloatnode, hint=None),
            "SymBool": environment.create_symboolnode,
        }
        return make[kind](expression)


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], content: bytes) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _target(name: tuple[str, ...]) -> Any:
    kind, *rest = name
    if kind == "name":
        return rest[0]
    found = find_operator(rest[0]) if kind == "operator" else _function(*rest)
    if found is None:
        raise CaptureError(f"torch has no {rest[-1]}")
    return found


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name, None)
