"""Which types of arguments torch's kernels take, and graphs with an operator that they refuse.

A converter casts or promotes where torch raises an exception, and so does a decomposition. So each
operator that is traced, as the program has it, is looked at; a graph with one that torch refuses
runs in eager mode, which raises what it raises, where it does, with what was written before.

The types are those of a table, or torch is asked. The table is of the samples of torch's own tests
(``scripts/taken_types.py``). For other types an operator is called on tiny tensors, once in a
process: what torch refuses for its types it refuses whatever is in them.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import torch
from torch._dispatch.python import no_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import _disable_current_modes

from dort_rewriter.aten import hint_of
from dort_rewriter.torch_defects.python_kernels import AUTOGRAD_KEYS, KERNELS_LOCK, replaced

logger = logging.getLogger(__name__)

_SMALL = 8
"""What a larger size is taken for."""
_FEW, _MANY = 2**12, 2**16
"""Arguments of so few elements are as large as in the program; of so many, where torch refuses
smaller ones of any type."""
_MOST_KINDS = 3
"""So many arguments are given every type, each on its own, to find one that torch takes."""
_KINDS = (torch.float32, torch.int64, torch.bool, torch.complex64)
_PLAIN = (FakeTensor, FunctionalTensor, torch.Tensor, torch.nn.Parameter)

_BELIEVING = (
    *("linalg_", "_linalg_", "lu_", "_lu_", "_ctc_loss", "_embedding_bag", "segment_reduce"),
    *("_pack_padded", "_pad_packed", "_segment_reduce", "_jagged", "_padded_dense_to_jagged"),
    *("_nested", "_convert_indices", "_sparse", "sparse_", "_weight_int", "_dyn_quant"),
)
"""How operators begin that read and write wherever integers say, as pivots, which count from one,
offsets, the last of which is the size, or weights that are packed.
They are not asked about those: torch runs them in any case, and refuses them itself."""

_OF_NUMBERS = frozenset({"aten::linalg_cross", "aten::linalg_vector_norm"})
"""Those of them that compute with the integers they are given."""

_EARLY = (
    *("hardshrink", "max_pool1d", "multi_margin_loss", "multilabel_margin_loss_forward"),
    *("one_hot", "softshrink"),
)
"""Operators that are decomposed before a table of decompositions is asked, into ones that take
more types."""

_PLACES = frozenset({"device", "layout", "memory_format", "pin_memory"})
"""Arguments that say where a result lies."""

_NAMES = {
    torch.float32: "f4",
    torch.float64: "f8",
    torch.float16: "f2",
    torch.bfloat16: "bf",
    torch.int64: "i8",
    torch.int32: "i4",
    torch.int16: "i2",
    torch.int8: "i1",
    torch.uint8: "u1",
    torch.bool: "b1",
    torch.complex64: "c8",
    torch.complex128: "c16",
}

_EDGES = sorted(
    {
        *(sign * 2**bits for bits in (7, 15, 31, 63) for sign in (-1, 1)),
        *(0, 2**8, 2**16, 2**32, 2**64),
        *(math.nextafter(torch.finfo(t).max, math.inf) for t in (torch.float16, torch.float32)),
        *(-torch.finfo(t).max for t in (torch.float16, torch.float32)),
    }
)
"""Where the numbers begin and end that a type has."""


_known: dict[str, Exception | None] = {}
"""What torch raised when it was asked, by operators and the types of their arguments."""


def refusal_of(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """What torch raises for an operator with arguments of such types; None where it takes them."""
    if not isinstance(op, torch._ops.OpOverload) or not _has_types(op):
        return None
    question = _Question(op, args, kwargs)
    try:
        types = question.describe()
    except _UnknownArgumentError:
        return None
    if types in _accepted().get(op.name(), ""):
        return None
    key = f"{op.name()}{types}"
    if key not in _known and question.has_places():
        return None
    if key not in _known:
        _known[key] = question.ask()
    return _known[key]


@functools.cache
def _has_types(op: torch._ops.OpOverload) -> bool:
    """Whether types decide about an operator of torch: it makes no views, which take all.

    Random operators are left out: torch runs them in any case. Attention is random in its dropout
    alone.
    """
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    drops = any(a.name == "dropout_p" for a in op._schema.arguments)
    if op.namespace != "aten" or (seeded and not drops):
        return False
    return all(r.alias_info is None or r.alias_info.is_write for r in op._schema.returns)


@functools.cache
def _accepted() -> Mapping[str, str]:
    """What every supported torch takes, by operators: lists of types, each between blanks."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return dict(line.split("\t") for line in text.splitlines())


def is_tested(op: Any) -> bool:
    """Whether torch's tests call an operator, in one overload or another."""
    return isinstance(op, torch._ops.OpOverload) and op._schema.name in _tested()


@functools.cache
def _tested() -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in _accepted())


class _UnknownArgumentError(Exception):
    """An argument of an operator has nothing like it that torch could be asked with."""


def _describe(value: Any, is_element: bool) -> str:
    """What of an argument decides whether torch takes it."""
    if isinstance(value, torch.fx.Node):
        if "val" not in value.meta:
            raise _UnknownArgumentError
        value = value.meta["val"]
    if isinstance(value, torch.Tensor):
        known = type(value) in _PLAIN and value.layout is torch.strided
        if not known or value.device.type != "cpu" or value.is_quantized:
            raise _UnknownArgumentError
        empty = any(isinstance(size, int) and not size for size in value.shape)
        return f"{_name(value.dtype)}{'' if value.dim() else '0'}{'~' * empty}"
    if isinstance(value, list | tuple):
        if all(type(v) in (int, bool) for v in value):
            return "[n]" if value else "[]"
        return f"[{','.join(dict.fromkeys(_describe(v, is_element) for v in value))}]"
    if isinstance(value, torch.dtype):
        return _name(value)
    if isinstance(value, bool):
        return "bool" if is_element else "n"
    if value is None or isinstance(value, str):
        return repr(value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | complex):
        return type(value).__name__
    if isinstance(value, int) and not is_element:
        return f"{max(-1, min(value, 2))}"
    if isinstance(value, int | float):
        place = bisect.bisect(_EDGES, value) if value and math.isfinite(value) else value
        return f"{type(value).__name__}{place}"
    if isinstance(value, torch.device) and value.type == "cpu":
        return "cpu"
    if isinstance(value, torch.layout | torch.memory_format):
        return ""
    raise _UnknownArgumentError


def _name(dtype: torch.dtype) -> str:
    """A type in few letters."""
    return _NAMES.get(dtype) or str(dtype).removeprefix("torch.")


class _Question:
    """Whether torch takes the types of the arguments of an operator."""

    def __init__(
        self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.op = op
        self.names = [*kwargs]
        ordered, named = _elements(op)
        self.given = [
            *zip(args, ordered, strict=False),
            *((value, named[name]) for name, value in kwargs.items()),
        ]
        """The arguments, and whether each is a number that becomes an element."""

    def describe(self) -> str:
        """The types of the arguments, between blanks."""
        found = [_describe(value, is_element) for value, is_element in self.given]
        ordered = len(found) - len(self.names)
        by_name = zip(self.names, found[ordered:], strict=True)
        named = [f"{name}={types}" for name, types in by_name if name not in _PLACES]
        return f" {'|'.join((*found[:ordered], *named))} "

    def has_places(self) -> bool:
        """Whether the operator trusts integers in tensors, and is given some."""
        name = self.op.name()
        if name in _OF_NUMBERS or not name.removeprefix("aten::").startswith(_BELIEVING):
            return False
        given = _tensors_in([value for value, _ in self.given])
        return any(not (t.is_floating_point() or t.is_complex()) for t in given)

    def ask(self) -> Exception | None:
        """Call the operator on tiny tensors of these types: what it raises for them.

        What is refused of any other types too is refused for something else.
        """
        tensors = [*_tensors_in([value for value, _ in self.given])]
        elements = sum(math.prod(map(hint_of, t.shape)) for t in tensors)
        sizes = [_SMALL] if elements > _FEW else []
        sizes += [max(elements, _SMALL)] if elements <= _MANY else []
        with _undisturbed():
            raised: list[tuple[int, Exception]] = []
            for largest, integer in itertools.product(sizes, (0, 1)):
                if integer and "ZeroDivision" not in str(raised[-1][1]):
                    continue
                if (error := self.call(_Maker(largest, integer=integer))) is None:
                    return None
                raised.append((largest, error))
            # What torch may take in the place of these types, in the same call.
            types = _assignments([t.dtype for t in tensors])
            others = [*itertools.product(types, (None, 1, 1.0), (None, torch.float32))]
            for largest, error in raised:
                if any(self.call(_Maker(largest, *other)) is None for other in others):
                    return error
        return None

    def call(self, make: _Maker) -> Exception | None:
        """What a call raises."""
        made = [make(value, is_element) for value, is_element in self.given]
        ordered = len(made) - len(self.names)
        try:
            self.op(*made[:ordered], **dict(zip(self.names, made[ordered:], strict=True)))
        except Exception as error:  # what torch raises is the answer
            return error.with_traceback(None)
        return None


@functools.cache
def _elements(op: torch._ops.OpOverload) -> tuple[list[bool], dict[str, bool]]:
    """Which arguments of an operator are numbers that become elements, in order and by name."""
    named = {a.name: "number" in str(a.type) for a in op._schema.arguments}
    return [*named.values()], named


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.fx.Node):
        value = value.meta["val"]
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Run kernels of torch as if nothing was traced, and leave the random generator as it is."""
    with (
        _disable_current_modes(),
        no_python_dispatcher(),
        torch._C.DisableTorchFunction(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._DisableAutocast(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        before = torch.default_generator.get_state()
        try:
            yield
        finally:
            if not torch.equal(before, torch.default_generator.get_state()):
                torch.default_generator.set_state(before)


class _Maker:
    """Makes arguments to ask with.

    No size is above ``largest``. Integers in tensors are zero, a place in any tensor: some kernels
    do not look. In the place of what the program has the tensors have these ``types``, in turn,
    numbers that become elements are ``number``, and types that are arguments ``dtype``.
    """

    def __init__(
        self,
        largest: int,
        types: Sequence[torch.dtype] = (),
        number: float | None = None,
        dtype: torch.dtype | None = None,
        *,
        integer: int = 0,
    ) -> None:
        self.largest = largest
        self.integer = integer
        self.types = iter(types)
        self.number = number
        self.dtype = dtype

    def __call__(self, value: Any, is_element: bool) -> Any:
        """An argument like one of the program."""
        if isinstance(value, torch.fx.Node):
            value = value.meta["val"]
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, list | tuple):
            return [self(v, is_element) for v in value]
        if isinstance(value, torch.SymBool):
            return True
        if isinstance(value, torch.SymFloat):
            return 1.0
        if is_element and isinstance(value, int | float | complex) and self.number is not None:
            return self.number
        if isinstance(value, torch.dtype) and self.dtype is not None:
            return self.dtype
        if isinstance(value, torch.SymInt) or (type(value) is int and not is_element):
            return min(hint_of(value), self.largest)
        return value

    def tensor(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor of ones, or of integers."""
        dtype = next(self.types, like.dtype)
        shape = [min(hint_of(size), self.largest) for size in like.shape]
        has_ones = dtype.is_floating_point or dtype.is_complex or dtype is torch.bool
        return torch.full(shape, 1 if has_ones else self.integer, dtype=dtype, device="cpu")


def _assignments(dtypes: Sequence[torch.dtype]) -> Iterator[Sequence[torch.dtype]]:
    """Other types in the place of some."""
    distinct = [*dict.fromkeys(dtypes)]
    for chosen in itertools.product(*map(_alike, distinct)):
        replaced = dict(zip(distinct, chosen, strict=True))
        yield [replaced[t] for t in dtypes]
    if len(dtypes) <= _MOST_KINDS:
        yield from itertools.product(_KINDS, repeat=len(dtypes))


def _alike(dtype: torch.dtype) -> Sequence[torch.dtype]:
    if dtype.is_floating_point:
        return (torch.float32,)
    if dtype.is_complex:
        return (torch.float32, dtype)
    return (torch.float32, torch.int64, dtype)


P = ParamSpec("P")
Decompositions = Mapping[Any, Callable[..., Any]]

_NO_KERNEL = re.compile(r'"(\w+)" not implemented for \'')
"""How torch's kernels begin that look at the type last."""


class RefusedByTorch(Exception):
    """An operator of a graph has types that torch's kernel does not take."""

    def __init__(self, op: str, error: Exception, stack: str = "") -> None:
        first = str(error).strip().partition("\n")[0]
        super().__init__(f"{op}: {type(error).__name__}: {first}")
        self.op = op
        self.stack = stack
        """The lines of Python that call it, as in a traceback; empty where they are not known."""

    @staticmethod
    def in_tracing(error: NotImplementedError) -> RefusedByTorch:
        """What torch raised while it traced: some of its formulas refuse types there already.

        Anything else that was not implemented is raised again.
        """
        found = _NO_KERNEL.match(str(error))
        if found is None:
            raise error
        return RefusedByTorch(found[1], error)


class TypeCheck:
    """Looks at the operators of one compilation while they are traced."""

    def __init__(self, decompositions: Decompositions) -> None:
        self.decompositions = {
            op: functools.partial(self._decompose, op, made) for op, made in decompositions.items()
        }
        """The same, which raise :class:`RefusedByTorch` for what torch refuses."""
        self._decomposed: set[str] = set()
        self._is_inside = False

    def _decompose(
        self, op: Any, decomposition: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        if self._is_inside:  # what an operator is made of is not the program's
            return decomposition(*args, **kwargs)
        if (error := refusal_of(op, args, kwargs)) is not None:
            stack = torch.fx.traceback.get_current_meta().get("stack_trace") or ""
            raise RefusedByTorch(op.name(), error, stack)
        self._decomposed.add(op.name())
        self._is_inside = True
        try:
            return decomposition(*args, **kwargs)
        finally:
            self._is_inside = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise :class:`RefusedByTorch` for operators that are decomposed early, too."""
        early = [getattr(torch.ops.aten, name).default for name in _EARLY]
        kernels = {
            op: functools.partial(self._decompose, op, made)
            for op in early
            if (made := _decomposition_of(op)) is not None
        }
        with KERNELS_LOCK, replaced(kernels):
            yield

    def check(self, graph_module: torch.fx.GraphModule) -> None:
        """Raise :class:`RefusedByTorch` for an operator that was not decomposed."""
        for module in graph_module.modules():
            if not isinstance(module, torch.fx.GraphModule):
                continue
            for node in module.graph.nodes:
                # NOTE: by names, because torch copies operators with the graphs.
                original = node.meta.get("original_aten")
                if original is not None and original.name() in self._decomposed:
                    continue
                if not is_tested(node.target):  # torch runs it, or nothing is known of it
                    continue
                if (error := refusal_of(node.target, node.args, node.kwargs)) is not None:
                    stack = node.meta.get("stack_trace") or ""
                    raise RefusedByTorch(node.target.name(), error, stack)


def _decomposition_of(op: torch._ops.OpOverload) -> Callable[..., Any] | None:
    """What computes an operator out of others before a table is asked; None where nothing does."""
    for key in AUTOGRAD_KEYS:
        if key in op.py_kernels:
            return op.py_kernels[key]
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    known = op.has_kernel_for_dispatch_key(composite)
    return functools.partial(op._op_dk, composite) if known else None


def in_eager_mode_if_refused(
    compile_graph: Callable[P, Callable[..., Any]],
) -> Callable[P, Callable[..., Any]]:
    """Have eager mode run a graph of Dynamo, the first argument, if torch refuses some of it."""

    @functools.wraps(compile_graph)
    def compile_or_leave(*args: P.args, **kwargs: P.kwargs) -> Callable[..., Any]:
        try:
            return compile_graph(*args, **kwargs)
        except RefusedByTorch as error:
            refused = error
        except NotImplementedError as error:
            refused = RefusedByTorch.in_tracing(error)
        graph_module: Any = args[0]
        return _in_eager_mode(graph_module, refused)

    return compile_or_leave


def _in_eager_mode(
    graph_module: torch.fx.GraphModule, refused: RefusedByTorch
) -> Callable[..., Any]:
    """What runs Dynamo's graph as eager mode does; what it raises has the Python line."""
    logger.info("A graph runs in eager mode, which refuses %s", refused)
    # Dynamo's graphs get their code when they are called, which would print what they raise.
    _LazyGraphModule.force_recompile(graph_module)
    op, stack = refused.op, refused.stack.rstrip()

    def call(*given: Any) -> Any:
        try:
            return graph_module.forward(*given)
        except Exception as error:  # eager mode's, whatever it is
            if stack and hasattr(error, "add_note"):
                error.add_note(f"raised by {op}, called at\n{stack}")
            raise

    return call
