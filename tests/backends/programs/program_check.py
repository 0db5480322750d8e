"""Judge a random program by eager mode, and shrink one that fails.

NOTE: a defect of torch is none of ours if AOTAutograd alone has it, for the same program and with
the same result. It is listed all the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dort_rewriter.capture.tracing import correct_tracing
from dort_rewriter.compiler.differences import MODEL, farthest, largest, limit_of
from dort_rewriter.compiler.safety_net import forget_warnings
from dort_rewriter.plan.recipe import OTHER_NUMBERS_FOR
from tests.backends.memory.aliases import MODES, aot_alone, observe
from tests.backends.programs.random_programs import SIZES, RandomProgram
from tests.backends.programs.random_views import BASES
from tests.backends.programs.roundings import ExactResults, Roundings
from tests.backends.programs.shrinking import smallest

__all__ = ["Verdict", "judge", "run_eager", "shrink"]

Facts = dict[str, Any]

NOISE = 4.0
"""How much farther from float64 than eager is still rounding."""
_LEFT = "A graph runs in torch as a whole"
SHAKES = 48
"""How often arguments are changed by a rounding, to see what hangs on it.

NOTE: a number that is all noise (a gradient that is zero but for roundings) lies outside of those
of n others twice in n + 1 times.
"""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a program."""

    kind: Literal["right", "wrong", "fell back", "left", "torch's", "refused"]
    """``left``: no operator of a graph is converted; ``torch's``: AOTAutograd alone does the same,
    with no backend behind it; ``refused``: eager mode raises."""
    text: str = ""

    @property
    def failed(self) -> bool:
        """Whether the backend is to blame."""
        return self.kind in ("wrong", "fell back")


def judge(program: RandomProgram, options: Mapping[str, Any] | None = None) -> Verdict:
    """Compare a program with eager mode, and where they differ with AOTAutograd alone.

    ``options`` are those of the backend.
    """
    expected = _run(program, None)
    if any(facts.get("gradients") == "refused" for facts in expected):
        # AOTAutograd traces the backward at the first call, and would refuse all of it there.
        program = dataclasses.replace(program, grad=False)
        expected = _run(program, None)
    if any("error" in facts for facts in expected):
        return Verdict("refused", str(expected[-1]["error"]))
    watch = _Watch()
    with watch:
        got = _run(program, "onnxrt", options)
    differing = _differences(program, got, expected)
    if any(name.endswith((" layout", " is a view")) for _, name in differing):
        differing -= _as_traced(program, got)
    if not differing and not watch.text:
        return Verdict("right")
    is_left = _LEFT in watch.text
    if not differing and is_left:
        return Verdict("left", watch.text)
    reachable = _run(program, aot_alone)
    ours = _beyond(program, differing, got, reachable)
    ours -= _zeros_for_none(got, expected, reachable)
    if "error" in got[-1] and _ends_alike(got, _run(program, "eager")):
        # What Dynamo recorded says so itself, with sizes that no kernel gives.
        return Verdict("torch's", _lines(differing, got, expected))
    if ours:
        return Verdict("wrong", _lines(ours, got, expected))
    stands = _is_refusal(watch.text, reachable) or _ends_alike(got, reachable)
    if watch.text and not is_left and not stands:
        return Verdict("fell back", watch.text)
    return Verdict("torch's", watch.text or _lines(differing, got, expected))


def run_eager(program: RandomProgram) -> None:
    """Run a program in eager mode alone: what ends the process there is none of ours."""
    _run(program, None)


def _lines(found: set[tuple[int, str]], got: list[Facts], expected: list[Facts]) -> str:
    lines = [
        f"size {SIZES[i]}, {name}: got {got[i].get(name)}, eager {expected[i].get(name)}"
        for i, name in sorted(found)
    ]
    return "\n".join(lines[:6])


def _beyond(
    program: RandomProgram,
    differing: set[tuple[int, str]],
    got: list[Facts],
    reachable: list[Facts],
) -> set[tuple[int, str]]:
    """The facts, of those that differ from eager mode, in which AOTAutograd alone differs from us.

    Of a program that it refuses in part, we run what it makes of the other graphs: that is
    compared then, or the error with which Dynamo, before any backend, refuses it too.
    """
    if any("error" in facts for facts in reachable) and not _ends_alike(got, reachable):
        if any(_TRACED_AS_VIEW in str(facts.get("error")) for facts in reachable):
            differing = {(i, name) for i, name in differing if not _is_of_memory(name)}
            reachable = _run(program, _aot_copying)
        else:
            reachable = _run(program, _aot_or_eager)
    if _ends_alike(got, reachable):
        differing = differing - {(len(got) - 1, "error")}
    beyond = _differences(program, got, reachable)
    return {fact for fact in differing if fact in beyond or fact[0] >= len(reachable)}


_TRACED_AS_VIEW = "view size is not compatible"
"""What AOTAutograd alone ends with where it traced a view that is a copy in eager mode: it takes a
tensor to lie otherwise, as all do who read its graph."""


def _is_of_memory(name: str) -> bool:
    """Whether a fact is about where a result lies, and not about its own numbers."""
    places = (" layout", " storage", " is a view", " is a view of")
    return name == "sharing" or name.endswith(places) or " after writing " in name


def _zeros_for_none(
    got: list[Facts], expected: list[Facts], reachable: list[Facts]
) -> set[tuple[int, str]]:
    """Which gradients are zeros and None in eager mode, where AOTAutograd's own backward raises.

    AOTAutograd makes zeros of the gradient that nobody gave for a result, one that was written in
    place too, and the graph makes of those what it makes of any others.
    """
    return {
        (i, name)
        for i, (ours, eagers, aots) in enumerate(zip(got, expected, reachable, strict=False))
        if aots.get("gradients") == "refused"
        for name, value in ours.items()
        if re.fullmatch(r"gradient \d+", name) and eagers.get(name, 0) is None
        if isinstance(value, torch.Tensor) and not value.any()
    }


def _aot_copying(graph_module: torch.fx.GraphModule, args: Any) -> Callable[..., Any]:
    """AOTAutograd alone, where what it traced as a view may be a copy."""

    def prepare(graph: torch.fx.GraphModule) -> None:
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
        graph.recompile()

    return aot_alone(graph_module, args, prepare)


def _aot_or_eager(graph_module: torch.fx.GraphModule, args: Any) -> Callable[..., Any]:
    """AOTAutograd alone for the graphs that it takes, or would with what kernels give on record;
    what Dynamo recorded for the others."""
    taken = _aot_or_nothing(graph_module, args)
    if taken is None:
        with correct_tracing(graph_module):
            taken = _aot_or_nothing(graph_module, args)
    return taken or graph_module.forward


def _aot_or_nothing(graph_module: torch.fx.GraphModule, args: Any) -> Callable[..., Any] | None:
    try:
        return aot_alone(graph_module, args)
    except torch._dynamo.exc.TorchDynamoException:
        raise
    except Exception:  # whatever it raises, this backend does without it
        return None


def _ends_alike(got: list[Facts], reachable: list[Facts]) -> bool:
    """Whether two runs end with the same error at the same size.

    The numbers in it may differ: a size that torch records wrongly fails where it is read first.
    """
    reasons = [re.sub(r"\d+", "", _reason(facts[-1].get("error"))) for facts in (got, reachable)]
    return len(got) == len(reachable) and reasons[0] == reasons[1] != ""


def _reason(error: object) -> str:
    """The first line of an error, behind that which says which backend raised it."""
    lines = [line for line in str(error or "").splitlines() if line]
    says_backend = len(lines) > 1 and "BackendCompilerFailed" in lines[0]
    return _placeless(lines[says_backend].strip(" .")) if lines else ""


def _placeless(text: str) -> str:
    """A message without the addresses in it, which are others in each run."""
    return re.sub(r"0x[0-9a-f]+|\b\d{9,}\b", "", text)


def _is_refusal(fell_back: str, reachable: list[Facts]) -> bool:
    """Whether AOTAutograd refuses a program, with the error for which it fell back."""
    errors = [facts["error"] for facts in reachable if "error" in facts]
    said = _placeless(fell_back)
    return any(reason in said for reason in map(_reason, errors) if reason)


def _as_traced(program: RandomProgram, got: list[Facts]) -> set[tuple[int, str]]:
    """Which layouts are those of torch's fake tensors: no compiler sees what its kernels do.

    ``2 ** x`` of what is transposed is row-major, and traced as transposed: what ``reshape`` makes
    of it is a copy, and traced as a view.
    """
    found: set[tuple[int, str]] = set()
    given = program.functions()
    for i, (facts, size) in enumerate(zip(got, program.sizes, strict=False)):
        try:
            with FakeTensorMode() as mode, MODES[program.mode](), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = tuple(mode.from_tensor(a) for a in given.make(size))
                results = given.function(*given.show(made))
        except (RuntimeError, TypeError, ValueError):  # it reads a number
            continue
        for j, r in enumerate(results):
            traced = (r.dtype, tuple(r.shape), r.stride(), r.storage_offset())
            if _places(facts.get(f"r{j} layout")) == _places(traced):
                found.add((i, f"r{j} layout"))
            if facts.get(f"r{j} is a view") is r._is_view():
                found.add((i, f"r{j} is a view"))
    return found


def _run(
    program: RandomProgram,
    backend: str | Callable[..., Any] | None,
    options: Mapping[str, Any] | None = None,
) -> list[Facts]:
    """What can be told of the results at each size; the first error ends the list."""
    torch._dynamo.reset()
    given = program.functions()
    call = given.function
    if backend is not None:
        call = torch.compile(call, backend=backend, dynamic=program.dynamic, options=options)
    found: list[Facts] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eager mode warns of much that is no business of ours
        for size in program.sizes:
            try:
                found.append(observe(call, given, size, program.mode))
            except Exception as e:  # judged as a result is
                found.append({"error": f"{type(e).__name__}: {e}"})
            if "error" in found[-1]:
                break
    return found


class _Watch(logging.Handler):
    """Keeps the first warning of the package: it gave something up. That the provider that is
    named has other numbers, so that the next one runs a graph, is none."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        if OTHER_NUMBERS_FOR not in record.getMessage():
            self.text = self.text or f"fell back: {record.getMessage()}"

    def __enter__(self) -> None:
        forget_warnings()
        logging.getLogger("dort_rewriter").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("dort_rewriter").removeHandler(self)


def _differences(
    program: RandomProgram, got: list[Facts], expected: list[Facts]
) -> set[tuple[int, str]]:
    """What differs by more than rounding: the number of the size, the name of the fact."""
    found: set[tuple[int, str]] = set()
    for i, (ours, eagers) in enumerate(zip(got, expected, strict=False)):
        if "error" in ours:
            found.add((i, "error"))
            break
        exact: Facts | None = None
        shaken: list[Facts] | None = None
        for name in dict.fromkeys([*eagers, *ours]):
            a, b = ours.get(name), eagers.get(name)
            if _distance(a, b) <= _limit(b):
                if not _has_other_zeros(a, b):
                    continue
                exact = _in_float64(program, program.sizes[i]) if exact is None else exact
                shaken = _shaken(program, program.sizes[i]) if shaken is None else shaken
                others = [exact.get(name), *(facts.get(name) for facts in shaken)]
                if not all(_has_other_zeros(a, other) for other in others):
                    continue  # as a sum of roundings has it
                found.add((i, name))
                continue
            if _is_as_it_happens(name, ours, eagers):
                continue
            if isinstance(b, torch.Tensor) and _is_kind(a, b):
                exact = _in_float64(program, program.sizes[i]) if exact is None else exact
                noise = _distance(b, exact.get(name))
                if _distance(a, exact.get(name)) <= NOISE * noise < math.inf:
                    continue
                shaken = _shaken(program, program.sizes[i]) if shaken is None else shaken
                if _is_within(a, [b, *(facts.get(name) for facts in shaken)]):
                    continue
            found.add((i, name))
    return found


def _is_empty(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 0


def _groups_with_elements(facts: Facts) -> list[list[str]]:
    """Who shares memory, of those that have any."""
    groups = ([n for n in names if not _is_empty(facts.get(n))] for names in facts["sharing"])
    return [names for names in groups if names]


def _is_as_it_happens(name: str, ours: Facts, eagers: Facts) -> bool:
    """Whether a difference of memory is one that nobody finds an element by.

    ``mse_loss`` leaves what it summed in behind its result, ``select_scatter`` what the view that
    it copies is a part of: eager mode's storages are larger then, and offsets begin behind that.
    A tensor without elements shares none, a view or not.
    """
    a, b = ours.get(name), eagers.get(name)
    tensor, _, fact = name.partition(" ")
    if name == "sharing" and a is not None and b is not None:  # no error came first
        return _groups_with_elements(ours) == _groups_with_elements(eagers)
    if fact in ("is a view", "is a view of"):
        return _is_empty(eagers.get(tensor))
    if a is None or b is None:
        return False
    is_smaller = ours.get(f"{tensor} storage", 0) < eagers.get(f"{tensor} storage", 0)
    if fact == "storage":
        return is_smaller
    if fact != "layout":
        return False
    places, wanted = _places(a), _places(b)
    if is_smaller and _begins_elsewhere(tensor, ours, eagers):
        return bool(places[:-1] == wanted[:-1])
    return bool(places == wanted)


def _begins_elsewhere(tensor: str, ours: Facts, eagers: Facts) -> bool:
    """Whether all that shares a memory lies in it as in eager mode, but for where it begins:
    no element is found by that."""
    group, other = (next(g for g in facts["sharing"] if tensor in g) for facts in (ours, eagers))
    layouts = [(_places(ours[f"{n} layout"]), _places(eagers[f"{n} layout"])) for n in group]
    shifts = {b[-1] - a[-1] for a, b in layouts if 0 not in a[1]}
    return bool(group == other and len(shifts) == 1)


def _places(layout: Any) -> Any:
    """A layout without the strides that no element is found by.

    Those of dimensions of size one, and of tensors without an element, are as it happens: the
    fake tensors of torch have others than its kernels, so that no compiler knows them.
    """
    if layout is None:
        return None
    dtype, shape, strides, offset = layout
    if 0 in shape:
        return dtype, shape, (), 0
    kept = tuple(s for n, s in zip(shape, strides, strict=True) if n > 1)
    return dtype, shape, kept, offset


def _distance(a: Any, b: Any) -> float:
    """How far apart two facts are, relative to the largest value of the second."""
    return farthest(a, b) / max(1e-2, largest(b))


def _has_other_zeros(a: Any, b: Any) -> bool:
    """Whether a zero has another sign."""
    tensors = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
    if not tensors or a.shape != b.shape or not a.is_floating_point():
        return False
    return bool(((a == 0) & (b == 0) & (a.signbit() != b.signbit())).any())


def _is_kind(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return a.dtype == b.dtype and a.shape == b.shape


def _limit(value: Any) -> float:
    return limit_of(value, MODEL)


def _in_float64(program: RandomProgram, size: int) -> Facts:
    """The facts of a program whose numbers are all float64, the same at the start.

    A step that jumps (``floor``, ``>``) shows there that its operand hung on the last bit.
    """
    wide = dataclasses.replace(
        program,
        lines=tuple(_widened(line) for line in program.lines),
        autocast=False,
    )
    given = wide.functions()

    def widened(n: int) -> tuple[torch.Tensor, ...]:
        return tuple(a.double() if a.is_floating_point() else a for a in given.make(n))

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = dataclasses.replace(given, make=widened)
            return observe(given.function, made, size, program.mode)
    except (RuntimeError, TypeError):  # an operator that wants one type
        return {}
    finally:
        torch.set_default_dtype(before)


def _shaken(program: RandomProgram, size: int) -> list[Facts]:
    """The facts of a program whose arguments are off by a rounding, this way and that.

    Half of the times so is what operators compute of them, some of those all of a result alike:
    the mean of equal numbers is one of them, and ``layer_norm`` divides how far it is from that by
    nearly nothing. Once what they compute is off by none: it may be nothing at all.
    """
    given = program.functions()
    with ExactResults(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [observe(given.function, given, size, program.mode)]
    for seed in range(SHAKES):
        generator = torch.Generator().manual_seed(seed)

        def shaken(n: int, generator: torch.Generator = generator) -> tuple[torch.Tensor, ...]:
            made = given.make(n)
            for a in made:
                if a.is_floating_point() and not _overlaps(a):
                    signs = torch.randint(-2, 3, a.shape, generator=generator).to(a.dtype)
                    a.mul_(1 + signs * torch.finfo(a.dtype).eps)
            return made

        moved = dataclasses.replace(given, make=shaken)
        rounding = (
            Roundings(seed, together=seed % 4 == 3) if seed % 2 else contextlib.nullcontext()
        )
        with rounding, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(observe(given.function, moved, size, program.mode))
    return found


def _overlaps(a: torch.Tensor) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(a.shape, a.stride(), strict=True))


def _is_within(a: torch.Tensor, others: list[Any]) -> bool:
    """Whether each element is between those of other tensors: it hung on a rounding."""
    if not all(_is_kind(a, b) for b in others) or not a.numel():
        return False
    x, y = a.detach().double(), torch.stack([b.detach().double() for b in others])
    margin = _limit(a) * largest(y)
    missing = y.isnan()
    low = y.masked_fill(missing, math.inf).amin(0)
    high = y.masked_fill(missing, -math.inf).amax(0)
    within = (low - margin <= x) & (x <= high + margin)
    return bool((within | (x.isnan() & missing.any(0))).all())


def _widened(line: str) -> str:
    return re.sub(r"torch\.b?float(16|32)|(?<=\.)float(?=\(\))", _double, line)


def _double(found: re.Match[str]) -> str:
    return "torch.float64" if found[0].startswith("torch") else "double"


def shrink(program: RandomProgram, fails: Callable[[RandomProgram], bool]) -> RandomProgram:
    """A smaller program that still fails: fewer results, lines, arguments, switches."""
    return smallest(program, _smaller, lambda candidate: _runs(candidate) and fails(candidate))


def _smaller(program: RandomProgram) -> Iterator[RandomProgram]:
    lines, results = program.lines, program.results
    for switch in ("grad", "dynamic", "autocast", "inference"):
        if getattr(program, switch) is not False:
            yield dataclasses.replace(program, **{switch: False})
    half = len(lines) // 2
    if half > 2:
        yield dataclasses.replace(program, lines=lines[half:])
    for i in range(len(results)):
        if len(results) > 1:
            yield dataclasses.replace(program, results=results[:i] + results[i + 1 :])
    for i in reversed(range(len(lines))):
        without = lines[:i] + lines[i + 1 :]
        yield dataclasses.replace(program, lines=without)
        made, _, made_of = lines[i].partition(" = ")
        if not re.fullmatch(r"v\d+", made):
            continue
        for other in dict.fromkeys(re.findall(r"\b[av]\d+\b", made_of)):
            swapped = [re.sub(rf"\b{made}\b", other, line) for line in (*without, *results)]
            yield dataclasses.replace(
                program,
                lines=tuple(swapped[: len(without)]),
                results=tuple(swapped[len(without) :]),
            )
    last = len(program.arguments) - 1
    if last > 0 and not any(re.search(rf"\ba{last}\b", t) for t in (*lines, *results)):
        yield dataclasses.replace(program, arguments=program.arguments[:-1])
    if len(program.bases) > 1:
        yield dataclasses.replace(program, bases=program.bases[:-1])
    for field, simple in (("arguments", "b0"), ("bases", BASES[0])):
        for i, text in enumerate(getattr(program, field) if program.bases else ()):
            if text != simple:
                made = list(getattr(program, field))
                made[i] = simple
                yield dataclasses.replace(program, **{field: tuple(made)})


def _runs(program: RandomProgram) -> bool:
    """Whether eager mode takes a program."""
    try:
        given = program.functions()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for size in program.sizes:
                given.function(*given.show(given.make(size)))
    except (RuntimeError, TypeError, IndexError, ValueError, NameError, AttributeError):
        return False
    return True
