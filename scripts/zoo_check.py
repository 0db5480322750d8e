"""Run one model of the zoo in every way, and judge it by eager mode and by float64.

A model that differs from eager by more than rounding is compared with itself in float64: it is
wrong when it is farther from there than three times what eager is. Small models are noisy: a batch
norm over a few numbers, an activation with a kink behind it. A tolerance alone would blame both or
neither, so that both run again with weights moved by a rounding. What does not run in float64 is
compared with eager mode that is moved like that.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import logging
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dort_rewriter.compiler import differences
from dort_rewriter.compiler.differences import farthest, largest
from dort_rewriter.compiler.safety_net import forget_warnings
from dort_rewriter.plan.recipe import OTHER_NUMBERS_FOR
from tests.backends.programs.roundings import Roundings

__all__ = ["WAYS", "Subject", "check", "runs_by_aot_eager"]

WAYS = ("inference", "training", "dynamic", "autocast")
"""``dynamic``: two sizes of batch, ``dynamic=True``; ``autocast``: a training step in bfloat16."""

AUTOCAST_TOLERANCE = 4e-2
"""Relative to the largest value of a tensor."""
NOISE = 3.0
"""How much farther from float64 than eager is still rounding."""
DRAWS = 3
"""How often both run with weights moved by a rounding: a distance is one draw of many."""
MORE_DRAWS = 12
"""How often eager mode does where it was nearer, every other time with its intermediate results
moved too: the roundings of many layers add up, and few of them cross a kink."""
SMALLEST_SCALE = 1e-3
"""Of the largest result: what is smaller than that everywhere is what rounding leaves of it."""

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """A model, and inputs for a batch of a given size."""

    name: str
    module: nn.Module
    inputs: Callable[[int], Inputs]
    device: str = "cpu"
    """Where it runs: it is made on the CPU."""
    options: Mapping[str, Any] | None = None
    """Options of the backend."""


@dataclass
class Outcome:
    """What one way of running a model gave."""

    status: str = "right"
    """``right``, ``wrong``, ``error``, ``fell back``, ``left out``."""
    detail: str = ""
    error: float = 0.0
    """The largest distance to eager."""
    in_torch: list[str] = field(default_factory=list)
    """The operators that no converter takes."""
    seconds: float = 0.0
    nodes: dict[str, int] = field(default_factory=dict)
    """How many nodes each execution provider has, and ``torch``."""


_PLACED = re.compile(r"(\w+ExecutionProvider) \((\d+) nodes\)")
_ALONE = re.compile(r"a model of (\d+) on (\w+ExecutionProvider), ")
_IN_TORCH = re.compile(r"(\d+) x (aten::.*?)(?=\n|$|, \d+ x )")


class Watch(logging.Handler):
    """What the package says while it compiles: graphs that fell back, calls of torch."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.fell_back: list[str] = []
        self.passed_on: list[str] = []
        self.in_torch: set[str] = set()
        self.nodes: collections.Counter[str] = collections.Counter()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if OTHER_NUMBERS_FOR in text:
            self.passed_on.append(text)
        elif record.levelno >= logging.WARNING:
            self.fell_back.append(text)
        elif text.startswith("A graph of "):
            self.nodes.update({name: int(n) for name, n in _PLACED.findall(text)})
            self.nodes.update({name: int(n) for n, name in _ALONE.findall(text)})
        elif text.startswith(("These operators run in torch", "Other numbers on the provider")):
            counted = _IN_TORCH.findall(text)
            self.in_torch.update(name for _, name in counted)
            self.nodes["torch"] += sum(int(n) for n, _ in counted)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        logger = logging.getLogger("dort_rewriter")
        before = logger.level
        forget_warnings()
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(before)


Results = dict[str, Any]


def check(subject: Subject, way: str) -> Outcome:
    """Run a model in one way by the backend, and compare it with eager."""
    start = time.perf_counter()
    outcome = Outcome()
    try:
        expected = run(subject, way, None)
    except Exception as e:  # whatever a model of a library raises: it is no model of the zoo
        return Outcome("left out", f"eager: {brief(e)}")
    watch = Watch()
    try:
        with watch.watching():
            got = run(subject, way, "onnxrt")
    except Exception as e:  # each is a finding
        outcome.status, outcome.detail = "error", brief(e)
        if not runs_by_aot_eager(subject, way):
            outcome.status = "left out"
            outcome.detail = f"aot_eager: {outcome.detail}"
    else:
        judge(outcome, subject, way, got, expected)
        if outcome.status == "right" and watch.fell_back:
            outcome.status, outcome.detail = "fell back", watch.fell_back[0][:600]
        if outcome.status == "right" and watch.passed_on:
            outcome.detail = watch.passed_on[0]
    outcome.in_torch = sorted(watch.in_torch)
    outcome.nodes = dict(watch.nodes)
    outcome.seconds = round(time.perf_counter() - start, 1)
    return outcome


def runs_by_aot_eager(subject: Subject, way: str) -> bool:
    """Whether torch compiles the model at all."""
    try:
        run(subject, way, "aot_eager")
    except Exception:  # it does not, for whatever reason
        return False
    return True


def brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])[:500]}"


# -- running ----------------------------------------------------------------------------------


def run(
    subject: Subject,
    way: str,
    backend: str | None,
    dtype: torch.dtype | None = None,
    moved_by: int = 0,
    *,
    rounded: bool = False,
) -> Results:
    """Everything a model computes: results, gradients of parameters, buffers.

    ``moved_by`` says which draw moves the weights by a rounding; ``rounded`` has all that torch
    computes of them moved as well.
    """
    torch._dynamo.reset()
    module = copy.deepcopy(subject.module)
    if moved_by:
        move(module, moved_by)
    module = module.to(subject.device)
    module.train(way in ("training", "autocast"))
    if dtype is not None:
        module = module.to(dtype)
    call: Any = module
    if backend is not None:
        dynamic = True if way == "dynamic" else None
        given = subject.options if backend == "onnxrt" else None
        call = torch.compile(module, backend=backend, dynamic=dynamic, options=given)
    found: Results = {}
    for batch in (2, 3) if way == "dynamic" else (2,):
        args, kwargs = cast(inputs_of(subject, batch), dtype)
        torch.manual_seed(7)
        with Roundings(moved_by) if rounded else contextlib.nullcontext():
            if way in ("inference", "dynamic"):
                with torch.no_grad():
                    leaves = tensors(call(*args, **kwargs))
            else:
                narrow = way == "autocast" and dtype is None
                autocast = torch.autocast(subject.device, torch.bfloat16, enabled=narrow)
                leaves = train(call, args, kwargs, autocast)
        found.update({f"result {i} of batch {batch}": t.detach() for i, t in enumerate(leaves)})
    if way in ("training", "autocast"):
        found.update({f"gradient of {n}": p.grad for n, p in module.named_parameters()})
        found.update({f"buffer {n}": b for n, b in module.named_buffers()})
    return found


def move(module: nn.Module, seed: int) -> None:
    """Move each weight by up to a rounding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.is_floating_point():
                step = torch.rand(weight.shape, generator=generator).to(weight.dtype) * 2 - 1
                weight.mul_(1 + step * torch.finfo(weight.dtype).eps)


def inputs_of(subject: Subject, batch: int) -> Inputs:
    """The same inputs each time."""
    torch.manual_seed(batch)
    made = subject.inputs(batch)
    if subject.device == "cpu":
        return made
    moved: Inputs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(subject.device), made)
    return moved


def train(
    call: Any,
    args: Any,
    kwargs: Mapping[str, Any],
    autocast: contextlib.AbstractContextManager[Any],
) -> list[Any]:
    with autocast:
        leaves = tensors(call(*args, **kwargs))
    losses = []
    for i, leaf in enumerate(leaves):
        if leaf.requires_grad and leaf.is_floating_point() and leaf.numel():
            generator = torch.Generator().manual_seed(i)
            weights = torch.rand(leaf.shape, generator=generator).to(leaf.device) + 0.5
            losses.append(
                (leaf.to(weights if leaf.dtype != torch.float64 else leaf) * weights).mean()
            )
    if losses:
        torch.stack([loss.double() for loss in losses]).sum().backward()
    return leaves


def tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]


def cast(inputs: Inputs, dtype: torch.dtype | None) -> Any:
    def one(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating and dtype is not None else value

    return pytree.tree_map(one, inputs)


# -- judging ----------------------------------------------------------------------------------


def judge(outcome: Outcome, subject: Subject, way: str, got: Results, expected: Results) -> None:
    """Say whether results are those of eager, or as near to float64 as those of eager."""
    unread = zeros_of_torch(subject, way, got, expected)
    got, expected = (
        {n: value for n, value in results.items() if n not in unread}
        for results in (got, expected)
    )
    outcome.error, where = distance(got, expected)
    if outcome.error == 0 or not (found := beyond(got, expected, way)):
        return
    outcome.status = "wrong"
    outcome.detail = f"{where}: {outcome.error:.2e} from eager"
    if outcome.error == float("inf"):
        return
    try:
        exact = run(subject, way, None, torch.float64)
    except Exception as e:  # some models are written for float32
        outcome.detail += f"; float64: {brief(e)}"
        judge_by_draws(outcome, subject, way, got, expected, found)
        return
    scale = smallest_scale(exact)

    def gaps(draws: Sequence[Results]) -> dict[str, list[float]]:
        return {name: [gap(r[name], exact.get(name), scale) for r in draws] for name in expected}

    draws = [expected]
    firsts = {name: values[0] for name, values in gaps([got]).items()}
    for count in (DRAWS, MORE_DRAWS):
        more = range(len(draws), count + 1)
        draws += [
            run(subject, way, None, moved_by=i, rounded=i > DRAWS and i % 2 == 0) for i in more
        ]
        eagers = gaps(draws)
        allowed = {n: max(limit_of(expected[n], way), NOISE * max(eagers[n])) for n in found}
        off = [name for name in found if firsts[name] > allowed[name]]
        # Where one rounding crosses a kink, some of many draws are far off, of eager mode too and
        # there perhaps in another layer. What is computed wrongly is off in each.
        farthest = NOISE * max(max(values) for values in eagers.values())
        if not off:
            break
    # So near to a kink, float64 crosses it too: what it gives for weights that are moved by a
    # rounding is as right.
    for i in range(1, MORE_DRAWS + 1):
        if not off:
            break
        moved_exact = run(subject, way, None, torch.float64, moved_by=i)
        off = [n for n in off if gap(got[n], moved_exact.get(n), scale) > allowed[n]]
    usual: dict[str, float] = {}
    if off and all(firsts[name] <= farthest for name in off):
        moved = [run(subject, way, "onnxrt", moved_by=i + 1) for i in range(DRAWS)]
        usual = {name: statistics.median_low(v) for name, v in gaps([got, *moved]).items()}
    worst = [
        f"{name}: {firsts[name]:.2e} from float64, eager {max(eagers[name]):.2e}"
        for name in off
        if not usual or usual[name] > allowed[name]
    ]
    outcome.detail = "; ".join(worst[:3]) if worst else f"noise: {outcome.detail}"
    if not worst:
        outcome.status = "right"


def judge_by_draws(
    outcome: Outcome,
    subject: Subject,
    way: str,
    got: Results,
    expected: Results,
    found: Sequence[str],
) -> None:
    """Say whether results are as near to those of eager mode as it is to itself, with weights and
    intermediate results moved by a rounding: two draws may be off to either side."""
    scale = smallest_scale(expected)
    draws = [
        run(subject, way, None, moved_by=i, rounded=i % 2 == 0) for i in range(1, MORE_DRAWS + 1)
    ]
    worst = []
    for name in found:
        own = max(gap(draw[name], expected[name], scale) for draw in draws)
        off = gap(got[name], expected[name], scale)
        if not off <= max(limit_of(expected[name], way), 2 * own):
            worst.append(f"{name}: {off:.2e} from eager, which is {own:.2e} from itself")
    if worst:
        outcome.detail = "; ".join((*worst[:3], outcome.detail))
    else:
        outcome.status, outcome.detail = "right", f"noise: {outcome.detail}"


def zeros_of_torch(subject: Subject, way: str, got: Results, expected: Results) -> set[str]:
    """Gradients that eager mode does not make and AOTAutograd gives as zeros: of what is computed
    beside what is read."""
    zeros = {n for n, value in expected.items() if value is None and is_zero(got.get(n))}
    if not zeros:
        return zeros
    traced = run(subject, way, "aot_eager")
    return {name for name in zeros if is_zero(traced[name])}


def is_zero(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not value.any()


def beyond(got: Results, expected: Results, way: str) -> list[str]:
    """What differs from eager by more than rounding."""
    scale = smallest_scale(expected)
    return [
        name
        for name, value in expected.items()
        if not gap(got[name], value, scale) <= limit_of(value, way)
    ]


def limit_of(value: Any, way: str) -> float:
    return AUTOCAST_TOLERANCE if way == "autocast" else differences.limit_of(value)


def distance(got: Results, expected: Results) -> tuple[float, str]:
    """The largest distance between two sets of results, and where it is."""
    if got.keys() != expected.keys():
        return float("inf"), f"{len(got)} results instead of {len(expected)}"
    scale = smallest_scale(expected)
    found = [(gap(got[name], expected[name], scale), name) for name in expected]
    return max(found, default=(0.0, "nothing"))


def smallest_scale(results: Results) -> float:
    """The size below which all of a gradient is what rounding leaves of larger numbers."""
    found = [largest(v) for n, v in results.items() if n.startswith("gradient")]
    return SMALLEST_SCALE * max(found, default=0.0)


def gap(a: Any, b: Any, scale: float) -> float:
    """How far two tensors are apart, relative to the largest value and at least to
    ``scale``; inf when they are of two kinds."""
    return farthest(a, b) / max(largest(b), scale, 1e-6)
