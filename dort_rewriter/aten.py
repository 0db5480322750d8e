"""What a graph of ATen operators says about its values, read without a change and without a guard.

Sizes that may be symbols: one that is counted at run time (``nonzero``, ``x[x > 0]``, ``item``)
has a symbol and no value: whoever asks torch for one, or whether a tensor of such a size is
contiguous, gets an exception. Operators that are random, or mutate an argument. Layouts, by
strides.

Who shares memory with whom, and which results anybody looks at closely: the fake tensors of a
graph share their storages as the tensors of a run will: a node is a view of the input whose
storage it has, whatever operator makes it. Where a node comes from: the Python line, the nodes
before it.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import Max

from dort_rewriter.signature import inverse_order

aten = torch.ops.aten


COUNTED = 8191
"""What a size that is counted at run time is taken for: large, so that it orders strides."""


def hint_of(size: Any, counted: int = COUNTED) -> int:
    """A size; for a symbolic one what it was when it was traced, or would be if what is counted
    at run time was ``counted``."""
    if isinstance(size, int):
        return size
    if not _is_counted(size):
        return int(size.node.hint)
    symbols = free_unbacked_symbols(size.node.expr)
    supposed = size.node.expr.xreplace(dict.fromkeys(symbols, sympy.Integer(counted)))
    hint: Any = SymNode(supposed, size.node.shape_env, int, None).hint
    return int(hint)


def is_same_size(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal, without a guard on them."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(_expression(a) == _expression(b))


def _is_same_stride(a: Any, b: Any) -> bool:
    """Whether two strides are known to be equal for all tensors that have an element.

    torch spells that of a row of counted length ``Max(1, u0)``, or ``u0``.
    """
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(_of_elements(_expression(a)) == _of_elements(_expression(b)))


def is_contiguous(tensor: torch.Tensor) -> bool:
    """Whether a tensor is row-major without gaps, whatever is counted at run time."""
    if not any(map(_is_counted, (*tensor.shape, *tensor.stride()))):
        return tensor.is_contiguous()
    return _is_row_major(tensor.shape, tensor.stride())


def _is_row_major(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    if any(is_same_size(size, 0) for size in shape):
        return True
    step: Any = 1
    for size, stride in reversed([*zip(shape, strides, strict=True)]):
        if is_same_size(size, 1):
            continue
        if not _is_same_stride(stride, step):
            return False
        step = step * size
    return True


def _is_counted(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size.node.expr))


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _of_elements(stride: Any) -> Any:
    """A stride where no size is zero."""
    return stride.replace(Max, lambda *sizes: Max(*(s for s in sizes if s != 1)))


def is_random(node: torch.fx.Node, *, backward: bool = False) -> bool:
    """Whether a node takes random numbers from the generator; attention does if it drops any.

    With ``backward``, also whether it reads those that its forward took.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    names = [a.name for a in target._schema.arguments]
    seeded = torch.Tag.nondeterministic_seeded in target.tags
    if "dropout_p" not in names or not (seeded or backward):
        return seeded
    place = names.index("dropout_p")
    dropped = node.args[place] if place < len(node.args) else node.kwargs.get("dropout_p", 0.0)
    return bool(dropped != 0)


def is_mutation(node: torch.fx.Node) -> bool:
    """Whether an operator mutates one of its arguments."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def written_arguments(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield the arguments that an operator changes."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for i, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name)
        values = value if isinstance(value, list | tuple) else [value]
        yield from (v for v in values if isinstance(v, torch.fx.Node))


def is_dense(value: Any) -> bool:
    """Whether a tensor fills its memory, in some order of its dimensions."""
    if not isinstance(value, torch.Tensor):
        return False
    return is_contiguous(value) or storage_order(value) is not None


def storage_order(value: Any) -> tuple[int, ...] | None:
    """The dimensions from the slowest to the fastest in memory; None when row-major.

    None also when the tensor does not fill its memory.
    """
    if not isinstance(value, torch.Tensor) or is_contiguous(value):
        return None
    strides = [hint_of(s) for s in value.stride()]
    order = tuple(sorted(range(value.dim()), key=lambda i: (-strides[i], i)))
    return order if is_contiguous(value.permute(order)) else None


def input_orders(graph_module: torch.fx.GraphModule) -> dict[str, tuple[int, ...]]:
    """How the arguments of a graph lie in memory that are not row-major, by placeholder."""
    found = {}
    for node in graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        order = storage_order(node.meta.get("val"))
        if order is not None:
            found[node.name] = order
    return found


def lies_as_ordered(value: torch.Tensor, order: Sequence[int] | None) -> bool:
    """Whether a tensor has the strides of one made row-major and permuted back.

    NOTE: the strides of dimensions of size one, and of tensors without an element, may be any.
    """
    shape = value.shape if order is None else [value.shape[i] for i in order]
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * (max(size, 1) if isinstance(size, int) else size)
    if order is not None:
        strides = [strides[i] for i in inverse_order(order)]
    return all(_is_same_stride(a, b) for a, b in zip(value.stride(), strides, strict=True))


def covers(base: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether a view shows as many elements as its base has: returning the base instead
    costs no memory."""
    shown: Any = 1
    for size, stride in zip(view.shape, view.stride(), strict=True):
        if not is_same_size(stride, 0):
            shown = shown * size
    return base.dtype is view.dtype and is_same_size(shown, base.numel())


def overlaps(value: torch.Tensor) -> bool:
    """Whether several elements of a tensor may be one in memory, for the sizes at hand."""
    return overlapping(value.shape, value.stride())


def overlapping(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether several elements may be one in memory, for the sizes at hand."""
    pairs = zip(map(hint_of, strides), map(hint_of, shape), strict=True)
    end = 0
    for stride, size in sorted(p for p in pairs if p[1] != 1):
        if stride <= end:
            return True
        end += stride * (size - 1)
    return False


LAYOUT_IS_FREE = "layout_is_free"

_READ_STORAGE = frozenset(
    {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}
)
"""Operators that say where elements lie in the storage, not in the tensor."""

_WRITE_PART = frozenset(
    {
        aten.as_strided_scatter.default,
        aten.diagonal_scatter.default,
        aten.select_scatter.default,
        aten.slice_scatter.default,
    }
)
"""Operators that copy the whole storage of a tensor, and write to a part of it."""


def results_of(graph: torch.fx.Graph) -> list[Any]:
    """The leaves a graph returns: nodes, None and numbers."""
    results = next(n for n in reversed(graph.nodes) if n.op == "output").args[0]
    return list(results) if isinstance(results, list | tuple) else [results]


def lineage(node: torch.fx.Node) -> list[torch.fx.Node]:
    """A node, what it is a view of, and so on to the argument or operator that owns the memory."""
    found = [node]
    while (base := _base(found[-1])) is not None:
        found.append(base)
    return found


def owners_of(graph: torch.fx.Graph) -> dict[torch.fx.Node, torch.fx.Node]:
    """The argument or operator that owns the memory of each node: the last of its lineage."""
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        base = _base(node)
        found[node] = node if base is None else found[base]
    return found


def exposed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """All that shares its memory with a result through the views it is made by."""
    leaves = (leaf for leaf in results_of(graph) if isinstance(leaf, torch.fx.Node))
    return {node for leaf in leaves for node in lineage(leaf)}


def _base(node: torch.fx.Node) -> torch.fx.Node | None:
    """The input whose memory a node shows."""
    if node.op != "call_function" or not node.args or not _may_be_view(node.target):
        return None
    base = node.args[0]
    if not isinstance(base, torch.fx.Node):
        return None
    if node.target is operator.getitem and _base(base) is None:
        return None  # one of several new tensors
    mine, theirs = (set(_storages(n.meta.get("val"))) for n in (node, base))
    return base if mine and mine <= theirs else None


def rewriting(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The argument that a node is a copy of, but for the parts written, and all from the node up
    to it; nothing if it is no such copy.

    In torch the copy begins in its storage where the argument does, whatever the fake tensors say.
    """
    found = [node]
    while found[-1].target in _WRITE_PART:
        first = found[-1].args[0]
        assert isinstance(first, torch.fx.Node)
        found += lineage(first)
    return found[::-1] if found[-1].op == "placeholder" and len(found) > 1 else []


def is_tracked(node: torch.fx.Node) -> bool:
    """Whether a node is a view for autograd too: in the caller's hands, it has a base."""
    if node.target is operator.getitem:
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        return is_tracked(source)
    assert isinstance(node.target, torch._ops.OpOverload)
    aliases = any(a.alias_info is not None for a in node.target._schema.arguments)
    return aliases and node.target is not aten.detach.default


def _may_be_view(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return not target._schema.is_mutable
    return target is operator.getitem


def _storages(value: Any) -> Iterator[int]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _storages(item)
    elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
        yield value.untyped_storage()._cdata


# -- who looks at layouts ----------------------------------------------------------------------


def let_layouts_vary(graph: torch.fx.Graph, positions: Iterable[int]) -> None:
    """Note that the strides and the memory of these results are unused, only their values are
    read: they need not be views of what is larger.

    A result that is also returned elsewhere stays as it is.
    """
    results, chosen = results_of(graph), set(positions)
    others = {id(r) for i, r in enumerate(results) if i not in chosen}
    for i in chosen:
        if isinstance(results[i], torch.fx.Node) and id(results[i]) not in others:
            results[i].meta[LAYOUT_IS_FREE] = True


def is_layout_free(node: torch.fx.Node) -> bool:
    """Whether only the values of a result matter."""
    return bool(node.meta.get(LAYOUT_IS_FREE))


def reads_storage(node: torch.fx.Node) -> bool:
    """Whether an operator reads its first argument by places in memory."""
    return node.target in _READ_STORAGE


def note_free_layouts(graph_module: torch.fx.GraphModule, blocks: Iterable[str]) -> None:
    """Note for the results of each block of a cut graph whether their layouts are unused."""
    graphs: dict[Any, torch.fx.Graph] = {}
    for name in blocks:
        block = graph_module.get_submodule(name)
        assert isinstance(block, torch.fx.GraphModule)
        graphs[name] = block.graph
    for call in reversed(graph_module.graph.nodes):  # the readers of a result come before it
        if call.op != "call_module" or call.target not in graphs:
            continue
        graph = graphs[call.target]
        output = next(n for n in reversed(graph.nodes) if n.op == "output")
        if isinstance(output.args[0], torch.fx.Node):
            _note_free_layout(output.args[0], [call], graphs)
            continue
        for i, leaf in enumerate(output.args[0]):
            if isinstance(leaf, torch.fx.Node):
                _note_free_layout(leaf, [u for u in call.users if u.args[1] == i], graphs)


def _note_free_layout(
    leaf: torch.fx.Node, outside: Sequence[torch.fx.Node], graphs: Mapping[Any, torch.fx.Graph]
) -> None:
    """Note it for one result of a block, given the nodes that stand for it outside."""
    was_free = is_layout_free(leaf)
    leaf.meta[LAYOUT_IS_FREE] = all(
        _takes_values(user, node, was_free, graphs) for node in outside for user in node.users
    )


def _takes_values(
    user: torch.fx.Node,
    node: torch.fx.Node,
    is_free: bool,
    graphs: Mapping[Any, torch.fx.Graph],
) -> bool:
    """Whether the user of a node would do with the same values in another layout."""
    if user.op == "output":
        return is_free
    if user.op == "call_module" and user.target in graphs:
        graph = graphs[user.target]
        inside = [n for n in graph.nodes if n.op == "placeholder"]
        given = {p for p, a in zip(inside, user.args, strict=True) if a is node}
        leaves = [n for n in results_of(graph) if isinstance(n, torch.fx.Node)]
        return all(is_layout_free(n) or given.isdisjoint(lineage(n)) for n in leaves)
    if reads_storage(user) or is_random(user):  # a random operator fills memory in that order
        return False
    copied = user.target in _WRITE_PART and user.args[0] is node  # with its layout
    if copied or _base(user) is node:
        return all(_takes_values(u, user, is_layout_free(user), graphs) for u in user.users)
    return True


def reads_by_place(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What reads arguments by places counted from the start of their storage.

    Where in its storage an argument begins may change from call to call: no guard looks at it.
    """
    found = []
    for node in graph.nodes:
        if not reads_storage(node) or lineage(node.args[0])[-1].op != "placeholder":
            continue
        geometry = node.args[2:] if "scatter" in node.target.name() else node.args[1:]
        if [*geometry[2:], node.kwargs.get("storage_offset")][0] is not None:
            found.append(node)
    return found


def reads_gaps(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What reads the storage of a rewritten tensor with gaps, and what gives it that storage.

    What lies between the elements of a tensor is copied by torch with them, by no session.
    """
    found: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        source = node
        while reads_storage(source) or source.target in _WRITE_PART:
            chain = lineage(source.args[0])
            if chain[-1].target not in _WRITE_PART or is_dense(chain[-1].meta["val"]):
                break
            found |= dict.fromkeys([source, *chain])
            source = chain[-1]
    return list(found)


def writes_overlapping(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """What writes to a part of a tensor whose elements overlap in memory (of ``unfold``), and the
    views it is written through.

    Torch copies the memory, so that a write shows at each place of an element; no session does.
    """
    found: dict[torch.fx.Node, None] = {}
    for node in graph.nodes:
        if node.target in _WRITE_PART and overlaps(node.meta["val"]):
            found |= dict.fromkeys([node, *lineage(node.args[0])[:-1]])
    return list(found)


def _shown_as(chain: Sequence[torch.fx.Node]) -> torch.fx.Node:
    """What owns the memory of a lineage, or what autograd has in its place that shows all of it.

    ``flatten`` of what is transposed is the base of its views, though it shows what a copy made.
    """
    owner = chain[-1]
    whole = owner.meta["val"]
    for i, node in enumerate(chain):
        value = node.meta["val"]
        if any(is_tracked(n) for n in chain[i:-1]) or value.dtype is not whole.dtype:
            continue
        if is_dense(value) and is_same_size(value.numel(), whole.numel()):
            return node
    return owner


def rebase_strided(graph: torch.fx.Graph) -> int:
    """Let as_strided read what owns the memory, rather than a view of it that may show less.

    A view of an argument stays, or of a copy that torch makes of its storage: where that begins is
    known at run time only. Returns how many nodes read something else now.
    """
    changed = 0
    in_torch = set(reads_gaps(graph))
    for node in graph.nodes:
        if node.target is not aten.as_strided.default or node in in_torch:
            continue
        chain = lineage(node.args[0])
        shown, owner = chain[0], _shown_as(chain)
        offset = [*node.args[3:], node.kwargs.get("storage_offset")][0]
        if offset is None:
            offset = shown.meta["val"].storage_offset()
        known = isinstance(offset, int | torch.fx.Node)
        if owner is shown or chain[-1].op == "placeholder" or not known:
            continue
        if owner.meta["val"].dtype is shown.meta["val"].dtype:
            node.args, node.kwargs = (owner, *node.args[1:3], offset), {}
            changed += 1
    return changed


_TORCH = os.path.dirname(torch.__file__)


def source_line(node: torch.fx.Node) -> str:
    """``file.py:12 in forward: x.sort()``, or an empty text when torch does not know."""
    return last_frame(node.meta.get("stack_trace") or "")


def describe(node: torch.fx.Node) -> str:
    """A node as a line of text, with its source line when there is one."""
    where = source_line(node)
    return f"{node.format_node()}{f' at {where}' if where else ''}"


def first_line(graph_module: torch.fx.GraphModule) -> str:
    """The first Python line that a graph comes from, or an empty text."""
    return next(filter(None, map(source_line, graph_module.graph.nodes)), "")


@functools.lru_cache(maxsize=4096)
def last_frame(stack: str) -> str:
    """The innermost line of a stack's text that is not torch's, or an empty text."""
    lines = [line.strip() for line in stack.splitlines() if line.strip()]
    frames = [i for i, line in enumerate(lines) if line.startswith('File "')]
    if not frames:
        return ""
    # The line of the user's that called into torch says more than the one inside torch.
    outside = [i for i in frames if not lines[i].startswith(f'File "{_TORCH}')]
    at = (outside or frames)[-1]
    file, _, rest = lines[at][len('File "') :].partition('", line ')
    code = lines[at + 1] if at + 1 < len(lines) else ""
    number, _, function = rest.partition(", in ")
    return f"{file}:{number}{f' in {function}' if function else ''}{f': {code}' if code else ''}"


def ancestors(leaves: Iterable[Any], free: Collection[torch.fx.Node] = ()) -> set[torch.fx.Node]:
    """Some results, and the nodes that they are computed from; those that are free are computed
    from nothing."""
    found: set[torch.fx.Node] = set()
    waiting = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            if node not in free:
                waiting.extend(node.all_input_nodes)
    return found
