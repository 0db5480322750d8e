"""Everything a caller can tell about results: values, layouts, and who shares memory with whom.

``check`` compares a compiled function with eager mode: dtypes, shapes, strides, offsets, sizes of
storages, which results and arguments share one, what is a view of what, gradients. Then it writes
into each result and compares what became of all the others.

Where ours differs from eager, ``aot_alone`` may differ in the same way: what AOTAutograd makes of
a program is as near as a backend comes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, cast

import torch
from torch._dynamo.backends.debugging import aot_eager, boxed_nop

from dort_rewriter.capture.interface import metadata_of_compilation
from dort_rewriter.compiler.differences import Tolerance, difference
from dort_rewriter.torch_defects.lost_tokens import keep_tokens
from dort_rewriter.torch_defects.view_replays import drop_wrong_replays, share_memory

__all__ = ["MODES", "Mode", "Program", "aot_alone", "check", "observe"]

Mode = Literal["no_grad", "grad", "inference"]
MODES: Mapping[Mode, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
    "inference": torch.inference_mode,
}
"""What a call happens under; with ``grad`` the arguments require gradients."""

Tensors = tuple[torch.Tensor, ...]
Make = Callable[[int], Tensors]
Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Program:
    """A function and how its arguments are made for a size."""

    function: Function
    make: Make
    mutates: bool = False
    """Whether it writes to its arguments: leaves that require a gradient refuse that."""
    show: Callable[[Tensors], Tensors] = tuple
    """How the arguments are seen in what ``make`` made."""

    def start(self, size: int, mode: Mode) -> tuple[Tensors, Tensors]:
        """The leaves of a call, and its arguments."""
        leaves = self.make(size)
        if mode != "grad":
            return leaves, self.show(leaves)
        leaves = tuple(a.detach().requires_grad_() if a.is_floating_point() else a for a in leaves)
        return leaves, self.show(tuple(a * 1 for a in leaves) if self.mutates else leaves)


def check(
    program: Program,
    compile_it: Callable[[Function], Function],
    *,
    sizes: Sequence[int] = (4,),
    dynamic: bool | None = False,
    mode: Mode = "no_grad",
) -> None:
    """Compare a compiled program with eager mode at each size, one after the other."""
    compiled = compile_it(program.function)
    for size in sizes:
        expected = observe(program.function, program, size, mode)
        got = observe(compiled, program, size, mode)
        if not (differing := _differing(got, expected)):
            continue
        reachable = observe(_aot_eager(program, sizes, size, dynamic, mode), program, size, mode)
        wrong = [name for name in differing if not _same(got.get(name), reachable.get(name))]
        if "error" in wrong:
            wrong = ["error"]
        lines = [
            f"{name}: got {got.get(name)}\n  eager {expected.get(name)}\n"
            f"  AOTAutograd {reachable.get(name)}"
            for name in wrong
        ]
        assert not wrong, "\n".join([f"size {size}: {', '.join(wrong)}", *lines])


def _aot_eager(
    program: Program, sizes: Sequence[int], size: int, dynamic: bool | None, mode: Mode
) -> Function:
    """What AOTAutograd makes of a program that has seen the sizes before this one."""
    torch._dynamo.reset()
    compiled: Function = torch.compile(program.function, backend=aot_alone, dynamic=dynamic)
    for earlier in sizes[: list(sizes).index(size)]:
        observe(compiled, program, earlier, mode)
    return compiled


def aot_alone(
    graph_module: torch.fx.GraphModule, args: Any, prepare: Callable[[Any], None] = lambda _: None
) -> Callable[..., Any]:
    """``aot_eager``, but for the views that it makes twice, or ends the process with, and for the
    effects that it loses."""
    shared = share_memory(args)

    def compiler(graph: torch.fx.GraphModule, given: Any) -> Callable[..., Any]:
        drop_wrong_replays(graph.graph, metadata_of_compilation(), shared=shared)
        prepare(graph)
        return cast("Callable[..., Any]", boxed_nop(graph, given))

    with keep_tokens():
        return cast("Callable[..., Any]", aot_eager(graph_module, args, fw_compiler=compiler))


def observe(
    function: Function, program: Program, size: int, mode: Mode = "no_grad"
) -> dict[str, Any]:
    """Call a function and return all that can be told of its results, by name."""
    call = _call(function, program, size, mode)
    if isinstance(call, _Raised):
        return {"error": call}
    facts = _describe(call)
    for i in range(len(call.results)):
        written = _call(function, program, size, mode)
        assert not isinstance(written, _Raised)
        facts.update({f"{name} after writing r{i}": v for name, v in _write(written, i).items()})
    return facts


@dataclasses.dataclass(frozen=True)
class _Raised:
    """An error of a call; the words may differ."""

    words: str = dataclasses.field(compare=False)

    def __str__(self) -> str:
        return self.words


@dataclasses.dataclass(frozen=True)
class _Call:
    leaves: Sequence[torch.Tensor]
    arguments: Sequence[torch.Tensor]
    results: Sequence[Any]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The arguments and the results by name."""
        named = {f"a{i}": a for i, a in enumerate(self.arguments)}
        return named | {
            f"r{i}": r for i, r in enumerate(self.results) if isinstance(r, torch.Tensor)
        }


def _call(function: Function, program: Program, size: int, mode: Mode) -> _Call | _Raised:
    torch.manual_seed(size)
    leaves, arguments = program.start(size, mode)
    try:
        with MODES[mode]():
            results = function(*arguments)
    except (AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        return _Raised(f"{type(error).__name__}: {error}")
    return _Call(leaves, arguments, torch.utils._pytree.tree_leaves(results))


def _describe(call: _Call) -> dict[str, Any]:
    tensors = call.tensors()
    facts: dict[str, Any] = {f"r{i}": r for i, r in enumerate(call.results)}
    facts |= {name: t.detach().clone() for name, t in tensors.items()}
    for name, t in tensors.items():
        facts[f"{name} layout"] = (t.dtype, tuple(t.shape), t.stride(), t.storage_offset())
        facts[f"{name} storage"] = t.untyped_storage().nbytes()
        facts[f"{name} bits"] = (t.is_neg(), t.is_conj(), t.requires_grad, t.is_leaf)
        facts[f"{name} is a view"] = t._is_view()
        bases = (other for other, u in tensors.items() if t._base is u)
        facts[f"{name} is a view of"] = next(bases, None)
    facts["sharing"] = _groups(tensors)
    facts["identical"] = [
        (m, n) for m, t in tensors.items() for n, u in tensors.items() if m < n and t is u
    ]
    return facts | _gradients(call)


def _groups(tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    """The names of those that share memory, together."""
    found: dict[int, list[str]] = {}
    for name, t in tensors.items():
        found.setdefault(t.untyped_storage()._cdata, []).append(name)
    return sorted(found.values())


def _gradients(call: _Call) -> dict[str, Any]:
    wanted = [a for a in call.leaves if a.requires_grad]
    outputs = [r for r in call.results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not wanted or not outputs:
        return {}
    weights = [torch.linspace(1, 2, r.numel(), dtype=r.dtype).view(r.shape) for r in outputs]
    try:
        found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
    except RuntimeError:  # a view made under no_grad requires a gradient and has none
        return {"gradients": "refused"}
    return {f"gradient {i}": g for i, g in enumerate(found)}


def _write(call: _Call, index: int) -> dict[str, Any]:
    """Write into a result; return what everything holds then."""
    result = call.results[index]
    if not isinstance(result, torch.Tensor):
        return {}
    outcome = "written"
    try:
        if result.dtype is torch.bool:
            result.logical_not_()
        else:
            result.add_(1)
    except RuntimeError:
        outcome = "refused"
    facts: dict[str, Any] = {name: t.detach().clone() for name, t in call.tensors().items()}
    facts |= {f"{n} requires_grad": t.requires_grad for n, t in call.tensors().items()}
    return {**facts, "outcome": outcome}


def _differing(got: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    names = dict.fromkeys([*expected, *got])
    return [n for n in names if not _same(got.get(n), expected.get(n))]


def _same(a: Any, b: Any) -> bool:
    return difference(a, b, Tolerance(absolute=1e-5, relative=1e-5)) is None
