"""Steps of one model under several backends, in turns, compared with eager mode and timed.

The backends share the process and its weights, and each round has a share of the time for each:
whatever else the machine does slows all of them down.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.compiler.differences import MODEL, farthest, largest, limit_of
from dort_rewriter.deployment.restoring import left_as_it_was
from dort_rewriter.errors import OptionError
from dort_rewriter.runtime.providers import OPENVINO
from dort_rewriter.tools.command import (
    HELP,
    answer,
    brief,
    check_names,
    list_of,
    load_pair,
    make_parser,
    option,
)
from dort_rewriter.tools.demo_model import Size, make_batch, make_model
from dort_rewriter.tools.graph_table import cell, text_table
from dort_rewriter.tools.machine import busy
from dort_rewriter.tools.results import tensors_in

_OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "onnxrt": ("this package as it is: its rules and its kernels", {}),
    "onnxrt-plain": (
        "no rules: the graph as it was converted",
        {"optimization": {"patterns": None}},
    ),
    "onnxrt-standard": (
        "rules to standard operators alone",
        {"optimization": {"patterns": "default"}},
    ),
    "onnxrt-fused": (
        "rules to fused operators of ONNX Runtime too, no kernels of this package",
        {"optimization": {"patterns": "default+onnxruntime"}},
    ),
    "onnxrt-all": (
        "these, and the experimental rules",
        {"optimization": {"patterns": "default+onnxruntime+experimental"}},
    ),
    "onnxrt-freeze": ("weights as constants, in inference", {"freeze": True}),
    "onnxrt-autotune": (
        "ONNX Runtime, torch and both of them timed on each graph",
        {"autotune": True},
    ),
    "onnxrt-graphs": (
        "traced graphs kept on disk: first steps after those of another process",
        {"cache_graphs": True},
    ),
    "onnxrt-openvino": (
        "on OpenVINO's provider, which is a plug-in of ONNX Runtime",
        {"preferred_execution_providers": [(OPENVINO, {"required": True})]},
    ),
    "onnxrt-session-arenas": ("an arena of memory for each session", {"arena": "session"}),
    "onnxrt-no-arena": ("memory from the system, as torch takes it", {"arena": "none"}),
}
_INDUCTORS: dict[str, tuple[str, dict[str, Any]]] = {
    "inductor-freezing": ("with weights as constants, in inference", {"freezing": True}),
    "inductor-max-autotune": (
        "weights as constants, and its kernels timed and chosen",
        {"freezing": True, "max_autotune": True},
    ),
}

VARIANTS = {name: options for name, (_, options) in _OURS.items()}
"""Options of the onnxrt backend by the name that a benchmark gives them."""

INDUCTOR = {name: options for name, (_, options) in _INDUCTORS.items()}
"""Options of Inductor by the name that a benchmark gives them."""

MEANING = {
    "eager": "the model as it is, not compiled",
    "inductor": "torch.compile(model), as it is",
    **{name: meaning for name, (meaning, _) in (_INDUCTORS | _OURS).items()},
}
"""What is timed under the name of a backend."""

BACKENDS = ("eager", "inductor", "onnxrt", "onnxrt-freeze")
MODES = ("inference", "training")

ROUNDS = 5
SURE_STEPS = 3
"""Steps that a backend makes in each round, whatever time they take."""

Step = Callable[[], list[Any]]
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One backend in one mode."""

    mode: str
    backend: str
    error: str | None = None
    """Why there are no times; None when there are."""
    first_seconds: float | None = None
    """The first step, compilation included."""
    median_milliseconds: float | None = None
    times_eager: float | None = None
    """The time of eager mode divided by this one: above 1 is faster."""
    difference: float | None = None
    """The largest difference to eager mode, relative to the largest number of each result."""
    agrees: bool | None = None
    """Whether it is small; None for a model with random operators, or a failure."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What :func:`benchmark` measured: a table when printed, or data."""

    model: str
    device: str
    threads: int
    timings: tuple[Timing, ...]

    def get(self, mode: str, backend: str) -> Timing:
        """One line of the table."""
        return next(t for t in self.timings if (t.mode, t.backend) == (mode, backend))

    @property
    def wrong(self) -> tuple[Timing, ...]:
        """What failed, or is not what eager computes, among the variants of this package."""
        ours = [t for t in self.timings if t.backend in VARIANTS]
        return tuple(t for t in ours if t.error is not None or t.agrees is False)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"torch": torch.__version__, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        rows = [_row(t) for t in self.timings]
        title = (
            f"{self.model} on {self.device}, torch {torch.__version__}, {self.threads} thread(s)"
        )
        failures = [f"{t.backend} failed in {t.mode}: {t.error}" for t in self.timings if t.error]
        return "\n\n".join([title, text_table(COLUMNS, rows), *failures])


COLUMNS = ("mode", "backend", "first s", "median ms", "times eager", "difference", "agrees")


def _row(t: Timing) -> list[str]:
    return [
        t.mode,
        t.backend,
        cell(t.first_seconds, ".2f"),
        cell(t.median_milliseconds, ".3f"),
        cell(t.times_eager, ".2f"),
        cell(t.difference, ".1e"),
        {True: "yes", False: "NO", None: "-" if t.error else "random"}[t.agrees],
    ]


def benchmark(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    modes: Sequence[str] = MODES,
    backends: Sequence[str] = BACKENDS,
    seconds: float = 1.0,
    clock: Clock = time.perf_counter,
    dynamic: bool | None = None,
) -> Benchmark:
    """Time steps of a model under several backends.

    The weights and the arguments are copied first. In inference the model is in its ``eval()``
    mode, under ``torch.inference_mode``; a training step is forward, backward and the gradients
    set to None, the loss being the mean of the squares of all floating point results; the
    gradients are what is compared. A backend that fails has its error in its line.
    ``torch._dynamo.reset()`` is called.

    Args:
        model: a module, or a function.
        args: what to call it with.
        kwargs: what to call it with, by name.
        modes: ``"inference"``, ``"training"``.
        backends: variants of this package (``VARIANTS``) and of Inductor (``INDUCTOR``),
            ``"eager"``, or names that ``torch.compile`` knows. Eager mode is measured in any case.
        seconds: how long each backend runs in each mode, after its first step.
        clock: what returns the time: ``time.process_time`` on a machine that others use too.
        dynamic: as in ``torch.compile``.

    """
    _check_names(modes, backends, seconds)
    twin = copy.deepcopy(model)
    # NOTE: copies, since a training step leaves gradients in the arguments that need some.
    given = torch.utils._pytree.tree_map_only(
        torch.Tensor, _copy, (tuple(args), dict(kwargs or {}))
    )
    timings: list[Timing] = []
    for mode in modes:
        # A frozen graph is one of inference.
        names = [b for b in backends if (b, mode) != ("onnxrt-freeze", "training")]
        steps = {
            name: make_step(twin, make_call(twin, name, dynamic=dynamic), given, mode)
            for name in dict.fromkeys(["eager", *names])
        }
        if isinstance(twin, torch.nn.Module):
            twin.train(mode == "training")
        torch._dynamo.reset()
        with left_as_it_was(twin, given):
            timings.extend(_measure(mode, steps, seconds, clock, (twin, given)))
    torch._dynamo.reset()
    tensors = tensors_in(given)
    return Benchmark(
        model=getattr(model, "__name__", type(model).__name__),
        device=tensors[0].device.type if tensors else "cpu",
        threads=torch.get_num_threads(),
        timings=tuple(timings),
    )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _check_names(modes: Sequence[str], backends: Sequence[str], seconds: float) -> None:
    check_names("mode", modes, MODES)
    known = {"eager", *VARIANTS, *INDUCTOR, *torch._dynamo.list_backends(exclude_tags=())}
    check_names("backend", backends, sorted(known))
    if not seconds > 0:
        raise OptionError(f"seconds is above 0, not {seconds}.")


def _measure(
    mode: str,
    steps: Mapping[str, Step],
    seconds: float,
    clock: Clock,
    state: tuple[Callable[..., Any], Any],
) -> list[Timing]:
    """The lines of one mode: eager first, which the others are compared with, all from the same
    state of the model and of its arguments."""
    try:
        expected = _first(steps["eager"], state)
        random = largest_difference(_first(steps["eager"], state, seed=1), expected) > 0
    except Exception as error:  # whatever the model of the user raises
        raise OptionError(f"The model fails in eager mode, {mode}: {brief(error)}") from error
    firsts: dict[str, tuple[float, float]] = {}
    errors: dict[str, str] = {}
    for name, step in steps.items():
        start = time.perf_counter()
        try:
            results = _first(step, state)
        except Exception as error:  # a compiler may be missing: the others go on
            errors[name] = brief(error)
            continue
        firsts[name] = time.perf_counter() - start, largest_difference(results, expected)
    spent = alternate({name: steps[name] for name in firsts}, seconds, clock)
    medians = {name: statistics.median(times) for name, times in spent.items()}
    tolerance = max((limit_of(t, MODEL) for t in expected), default=0.0)
    return [
        Timing(mode=mode, backend=name, error=errors[name])
        if name in errors
        else Timing(
            mode=mode,
            backend=name,
            first_seconds=firsts[name][0],
            median_milliseconds=1000 * medians[name],
            times_eager=medians["eager"] / medians[name],
            difference=firsts[name][1],
            agrees=None if random else firsts[name][1] <= tolerance,
        )
        for name in steps
    ]


def _first(step: Step, state: tuple[Callable[..., Any], Any], seed: int = 0) -> list[Any]:
    """What a step computes, as if none was made before."""
    with left_as_it_was(*state):
        torch.manual_seed(seed)
        return [t.clone() if isinstance(t, torch.Tensor) else t for t in step()]


def make_call(
    model: Callable[..., Any], backend: str | OrtBackend, *, dynamic: bool | None = None
) -> Callable[..., Any]:
    """The model under a backend, as a function with a code object of its own.

    Dynamo keeps what it compiled with the code object: a shared one would make every backend pay
    for the guards of the others.
    """
    if backend == "eager":
        return model
    namespace: dict[str, Any] = {"model": model}
    exec("def call(*args, **kwargs):\n    return model(*args, **kwargs)", namespace)
    options = INDUCTOR.get(backend) if isinstance(backend, str) else None
    # An object, not the name: torch <= 2.8 has an onnxrt of its own.
    chosen: Any = OrtBackend(VARIANTS[backend]) if backend in VARIANTS else backend
    compiled: Callable[..., Any] = torch.compile(
        namespace["call"],
        backend=chosen if options is None else "inductor",
        dynamic=dynamic,
        options=options,
    )
    return compiled


def make_step(
    model: Callable[..., Any],
    call: Callable[..., Any],
    given: tuple[Sequence[Any], Mapping[str, Any]],
    mode: str,
    loss: Callable[[Any], torch.Tensor] | None = None,
) -> Step:
    """One step: what it returns can be compared between backends.

    In inference these are the results, in training the gradients of the model and of the
    arguments; ``loss`` makes a number of the results, the mean of their squares when it is None.
    """
    args, kwargs = given
    leaves = tensors_in(given)
    wait: Callable[[], Any] = (
        torch.cuda.synchronize if any(t.is_cuda for t in leaves) else lambda: None
    )
    if mode == "inference":

        def inference() -> list[Any]:
            with torch.inference_mode():
                results = tensors_in(call(*args, **kwargs))
            wait()
            return results

        return inference

    if isinstance(model, torch.nn.Module):
        leaves.extend(model.parameters())
    leaves = [t for t in leaves if t.requires_grad]
    if not leaves:
        raise OptionError("Nothing of the model needs a gradient: choose the mode inference.")
    make_loss = mean_of_squares if loss is None else loss

    def training() -> list[Any]:
        for leaf in leaves:
            leaf.grad = None
        make_loss(call(*args, **kwargs)).backward()
        wait()
        return [leaf.grad for leaf in leaves]

    return training


def mean_of_squares(results: Any) -> torch.Tensor:
    """A number every floating point result counts in."""
    tensors = [t for t in tensors_in(results) if t.requires_grad]
    squares = [(t * t.conj()).real.mean() if t.is_complex() else (t * t).mean() for t in tensors]
    if not squares:
        raise OptionError("No result of the model needs a gradient: choose the mode inference.")
    total: torch.Tensor = sum(squares[1:], squares[0])
    return total


def alternate(
    steps: Mapping[str, Callable[[], Any]], seconds: float, clock: Clock
) -> dict[str, list[float]]:
    """The times of the steps, made in turns for ``seconds`` each."""
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(ROUNDS):
        for name, step in steps.items():
            step()  # in caches that the others left
            end = time.perf_counter() + seconds / ROUNDS
            while time.perf_counter() < end or len(spent[name]) < SURE_STEPS * (turn + 1):
                start = clock()
                step()
                spent[name].append(clock() - start)
    return spent


def largest_difference(got: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest error relative to the largest number of each tensor.

    The scale of a tensor is at least a thousandth of the largest of all: the gradient of a bias
    before a batch norm is zero, and what is computed of it is rounding.
    """
    if len(got) != len(expected):
        return math.inf
    floor = max((largest(b) for b in expected if isinstance(b, torch.Tensor)), default=1.0) * 1e-3
    return max(
        (
            farthest(a, b) / (max(largest(b), floor) or 1.0)
            for a, b in zip(got, expected, strict=True)
        ),
        default=0.0,
    )


def run_bench(arguments: Sequence[str]) -> int:
    """Print the table; 1 when a variant of this package fails or is not what eager computes."""
    parser = make_parser(
        "bench",
        "Time inference and training steps of a model under several backends, in turns, and\n"
        "compare what they compute with eager mode. Ends with 1 if a backend of this package\n"
        "fails, or differs.\n\n"
        f"backends:\n{list_of(MEANING)}\n"
        "  and each other name that torch.compile knows.",
        "examples:\n"
        "  dort-rewriter bench                                  a small model of its own\n"
        "  dort-rewriter bench model.py:make_model --modes inference\n"
        "  dort-rewriter bench package.models:small --backends eager,onnxrt,onnxrt-fused --json",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=HELP)
    modes = "inference, training: forward, backward and gradients"
    option(parser, "--modes NAMES", ",".join(MODES), modes)
    option(parser, "--backends NAMES", ",".join(BACKENDS), "those to time, of the above")
    option(parser, "--seconds", 1.0, "for each backend and mode, after its first step")
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time on one thread, for a machine that others use too",
    )
    options = parser.parse_args(arguments)
    if options.model is not None:
        model, args = load_pair(options.model)
    else:
        model, args = make_model(Size()), make_batch(Size())[:1]
    print("The first steps compile; that of Inductor may take a minute.", file=sys.stderr)
    threads = torch.get_num_threads()
    if not options.cpu_time and (words := busy(threads)):
        print(f"NOTE: {words}; --cpu-time counts processor time.", file=sys.stderr)
    if options.cpu_time:
        torch.set_num_threads(1)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the model prints is no answer
            found = benchmark(
                model,
                args,
                modes=options.modes.split(","),
                backends=options.backends.split(","),
                seconds=options.seconds,
                clock=time.process_time if options.cpu_time else time.perf_counter,
                dynamic=True if options.dynamic else None,
            )
    finally:
        torch.set_num_threads(threads)
    answer(options.json, found.to_dict(), str(found))
    return int(bool(found.wrong))
