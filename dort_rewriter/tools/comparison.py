"""compare_exporters: one model through several exporters, side by side.

``torch`` is ``torch.onnx.export(dynamo=True)``; ``torchlib`` is ``to_onnx`` with onnxscript's
functions alone; ``dort_rewriter`` is ``to_onnx`` as it is; ``optimum`` is optimum's, where that
is installed, for models of transformers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import math
import re
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx.reference import ReferenceEvaluator
from torch.utils._pytree import tree_leaves

from dort_rewriter import notebook
from dort_rewriter.aten import last_frame
from dort_rewriter.backends.to_onnx import to_onnx
from dort_rewriter.capture.lowering import leaving_no_hook
from dort_rewriter.compiler.differences import Tolerance
from dort_rewriter.compiler.provider_choice import providers_of_files
from dort_rewriter.deployment.restoring import left_as_it_was
from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.ort_values import tensor_to_array
from dort_rewriter.runtime.providers import ProviderSpec, with_nodes
from dort_rewriter.runtime.session import Session, create_session
from dort_rewriter.tools.command import (
    HELP,
    answer,
    check_names,
    in_a_line,
    list_of,
    load_pair,
    make_parser,
    option,
)
from dort_rewriter.tools.graph_table import cell, text_table
from dort_rewriter.tools.judgment import (
    Judgment,
    Witness,
    eager_results,
    exact_results,
    excess,
)
from dort_rewriter.tools.models import count_nodes
from dort_rewriter.tools.optimum_files import (
    ChosenResults,
    export_with_optimum,
    optimum_is_installed,
)

Exporter = Callable[..., onnx.ModelProto | ChosenResults]

Run = Callable[[], list[Any]]
"""Computes the results of a model, in order."""


@dataclass(frozen=True, kw_only=True)
class RuntimeResult:
    """What another runtime than onnxruntime made of a file."""

    runtime: str
    error: str | None = None
    """Why it has no results."""
    max_difference: float | None = None
    """The largest absolute difference to eager, NaN where shapes or places of NaN differ."""
    agrees: bool | None = None


@dataclass(frozen=True, kw_only=True)
class ExporterResult:
    """What one exporter made of the model."""

    exporter: str
    error: str | None = None
    """Why there is no model, or why it does not run; the fields below are empty then."""
    nodes: dict[str, int] = dataclasses.field(default_factory=dict)
    """ONNX nodes by type."""
    opset: int | None = None
    export_seconds: float | None = None
    """Its first export in this comparison, imports included."""
    max_difference: float | None = None
    """The largest absolute difference to eager, NaN where shapes or places of NaN differ."""
    agrees: bool | None = None
    """Whether all results are those of eager, within the tolerance; None for a model with random
    results, or a failure."""
    run_milliseconds: float | None = None
    """The median of a run in onnxruntime, arrays in and out."""
    bytes: int | None = None
    """The size of the file, weights included."""
    exact_difference: float | None = None
    """The largest absolute difference to eager mode in float64, where the model runs in it."""
    judgment: Judgment | None = None
    """Who is at fault, where the results are not those of eager mode."""
    elsewhere: tuple[RuntimeResult, ...] = ()
    """What other runtimes make of the file."""
    providers: tuple[str, ...] = ()
    """The execution providers of its session, best first."""
    placement: Mapping[str, Mapping[str, int]] | None = None
    """The nodes of each of them by type, as the session reports them; None where it has one."""
    left_out: tuple[str, ...] = ()
    """Results of the model that the file does not give."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What :func:`compare_exporters` found: text when printed, a page in a notebook, data."""

    model: str
    eager_milliseconds: float
    eager_difference: float | None
    """The largest absolute difference of eager mode to itself in float64."""
    results: tuple[ExporterResult, ...]

    def __getitem__(self, exporter: str) -> ExporterResult:
        return next(r for r in self.results if r.exporter == exporter)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{self.model}, eager: {self._eager()}",
            text_table(COLUMNS, list(map(_row, self.results))),
        ]
        names, counts = self._nodes()
        parts += [text_table(names, counts)] if counts else []
        return "\n\n".join([*parts, *(f"{name} {said}" for name, said in self._remarks())])

    def to_html(self) -> str:
        """A page of its own."""
        parts = [
            notebook.text(f"Eager: {self._eager()}."),
            notebook.table(map(_row, self.results), COLUMNS, inline=False),
            *(notebook.text(said, name) for name, said in self._remarks()),
        ]
        names, counts = self._nodes()
        if counts:
            parts += ["<h2>Nodes by type</h2>", notebook.table(counts, names, inline=False)]
        return notebook.page(f"{self.model}: exporters compared", parts)

    def save_html(self, path: str | Path) -> None:
        """Write the page; :class:`OptionError` where that fails."""
        try:
            Path(path).write_text(self.to_html(), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"The page cannot be written: {error}.") from error

    def _repr_html_(self) -> str:
        return self.to_html()

    def _eager(self) -> str:
        away = self.eager_difference
        rounding = "" if away is None else f", {away:.1e} from float64"
        return f"{self.eager_milliseconds:.3g} ms a run{rounding}"

    def _nodes(self) -> tuple[list[str], list[list[Any]]]:
        """The nodes by type, the most frequent first, an exporter a column."""
        results = [r for r in self.results if r.nodes]
        totals = sum((Counter(r.nodes) for r in results), Counter[str]())
        ops = sorted(totals, key=lambda op: (-totals[op], op))
        rows = [[op, *(r.nodes.get(op, "") for r in results)] for op in ops]
        return ["node", *(r.exporter for r in results)], rows

    def _remarks(self) -> list[tuple[str, str]]:
        """What failed or differs, by exporter; a reason that several have is given once."""
        found: dict[str, list[str]] = {}
        for result in self.results:
            for said in _said(result):
                found.setdefault(said, []).append(result.exporter)
        return [(", ".join(names), said) for said, names in found.items()]


COLUMNS = (
    *("exporter", "nodes", "opset", "kB", "export s", "run ms"),
    *("max difference", "to float64", "agrees"),
)


def _row(r: ExporterResult) -> list[str]:
    return [
        r.exporter,
        cell(sum(r.nodes.values()) or None, "d"),
        cell(r.opset, "d"),
        cell(r.bytes and r.bytes / 1000, ".0f"),
        cell(r.export_seconds, ".2f"),
        cell(r.run_milliseconds, ".3g"),
        cell(r.max_difference, ".1e"),
        cell(r.exact_difference, ".1e"),
        {True: "yes", False: "NO", None: "-" if r.error else "random"}[r.agrees],
    ]


def _said(result: ExporterResult) -> Iterator[str]:
    if result.error:
        yield f"failed: {result.error}"
    elif (judgment := result.judgment) is not None:
        parts = [f"differs, by the {judgment.fault}: {judgment.reason}"]
        parts += [f"First at {judgment.node}."] if judgment.node else []
        yield " ".join([*parts, *([judgment.line] if judgment.line else [])])
    if len(result.providers) > 1:
        yield f"ran on {with_nodes(result.providers, result.placement)}"
    if result.left_out:
        yield f"leaves out: {', '.join(result.left_out)}"
    for other in result.elsewhere:
        found = "as eager mode"
        if other.agrees is None:
            found = "other random numbers"
        elif not other.agrees:
            found = f"differs from eager mode by {other.max_difference:.1e}"
            if result.agrees:
                found += ", by the runtime: onnxruntime computes eager mode's of the same file"
        yield f"on {other.runtime}: {other.error or found}"


def _with_torch(model: Any, args: Any, kwargs: Any, opset: int, shapes: Any) -> onnx.ModelProto:
    # torch takes a dictionary in the last place for arguments by name.
    last = () if kwargs else (kwargs,)
    with leaving_no_hook():
        program = torch.onnx.export(
            model,
            (*args, *last),
            kwargs=kwargs,
            opset_version=opset,
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    return proto


def _with_to_onnx(**options: Any) -> Exporter:
    def export(model: Any, args: Any, kwargs: Any, opset: int, shapes: Any) -> onnx.ModelProto:
        return to_onnx(model, args, kwargs, target_opset=opset, dynamic_shapes=shapes, **options)

    return export


EXPORTERS: dict[str, Exporter] = {
    "torch": _with_torch,
    "torchlib": _with_to_onnx(
        dispatcher=OxsDispatcher(own_converters=False),
        options=OptimizationOptions(patterns=None),
    ),
    "dort_rewriter": _with_to_onnx(),
    "optimum": export_with_optimum,
}

MEANING = {
    "torch": "torch.onnx.export(dynamo=True): torch's decompositions, onnxscript's torchlib",
    "torchlib": "the capture of this package, with the converters of torchlib alone",
    "dort_rewriter": "this package: to_onnx(), with its own converters and rules",
    "optimum": "optimum's, for models of transformers: its own choice of inputs and results",
}
"""What the name of an exporter stands for."""


def _on_the_evaluator(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> Run:
    evaluator = ReferenceEvaluator(proto)
    return lambda: list(evaluator.run(None, dict(feeds)))


def _on_openvino(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> Run:
    core = _openvino()
    # Where the processor multiplies bfloat16, OpenVINO takes that for float32 unless told.
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(proto.SerializeToString()), "CPU", settings)
    places = [next(i for i, o in enumerate(compiled.outputs) if name.name in o.get_names())
              for name in proto.graph.output]  # fmt: skip

    def run() -> list[Any]:
        found = compiled(dict(feeds))
        return [found[place] for place in places]

    return run


@functools.cache
def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise ExecutionError(f"OpenVINO is not there ({error}): pip install openvino.") from error
    return openvino.Core()


RUNTIMES: dict[str, Callable[[onnx.ModelProto, Mapping[str, Any]], Run]] = {
    "reference": _on_the_evaluator,
    "openvino": _on_openvino,
}
"""What prepares a model and its inputs, by name. Each raises whatever the runtime raises."""


def compare_exporters(
    model: torch.nn.Module,
    args: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    exporters: Sequence[str] | None = None,
    runtimes: Sequence[str] = (),
    providers: Sequence[ProviderSpec] = (),
    target_opset: int = 18,
    dynamic_shapes: Any = None,
    atol: float = 1e-4,
    rtol: float = 1e-3,
    repeat: int = 10,
) -> Comparison:
    """Export a model in several ways: its nodes, its numbers and its times, side by side.

    The model is run as it is given: call ``eval()`` for what it does in inference. Each run and
    each export has it and its arguments as they were given, and so they are left. A model with
    random results is not judged. An exporter that fails has its error in its row.

    Args:
        model: a module.
        args: its arguments; a tensor stands for one.
        kwargs: its arguments by name.
        exporters: which of ``"torch"``, ``"torchlib"``, ``"dort_rewriter"``, ``"optimum"``; by
            default all that are installed. optimum takes models of transformers, with sizes of
            its choice, and leaves results out, which are named.
        runtimes: others that run each file too: ``"reference"``, ONNX's own evaluator, and
            ``"openvino"`` where that is installed.
        providers: execution providers of onnxruntime that run the files, as
            ``preferred_execution_providers`` names them; the CPU where there is none. One that is
            not there is an :class:`OptionError`.
        target_opset: the opset of the models.
        dynamic_shapes: as in ``torch.export.export``.
        atol: the absolute difference to eager that is accepted.
        rtol: the relative one.
        repeat: how often each model is run, in turns; the time is the median.

    """
    if exporters is None:
        exporters = tuple(n for n in EXPORTERS if n != "optimum" or optimum_is_installed())
    check_names("exporter", exporters, EXPORTERS)
    check_names("runtime", runtimes, RUNTIMES)
    if repeat < 1:
        raise OptionError(f"repeat is 1 or more, not {repeat}.")
    run_on = providers_of_files(providers)
    given = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    named = dict(kwargs or {})
    with torch.no_grad():
        expected = eager_results(model, given, named)
        tolerance = Tolerance(absolute=atol, relative=rtol)
        random = excess(eager_results(model, given, named, seed=1), expected, tolerance) > 1
        exact = None if random else exact_results(model, given, named)
        witness = Witness(model, given, named, expected, exact, tolerance, random=random)
        candidates = [
            _Candidate(name, model, given, named, target_opset, dynamic_shapes, run_on)
            for name in exporters
        ]
        eager: list[float] = []
        for _ in range(repeat):
            with left_as_it_was(model, (given, named)):
                eager.append(_milliseconds(lambda: model(*given, **named)))
            for candidate in candidates:
                if candidate.error is None:
                    candidate.times.append(candidate.run())
        results = tuple(c.result(witness, exact, runtimes) for c in candidates)
    return Comparison(
        model=type(model).__name__,
        eager_milliseconds=statistics.median(eager),
        eager_difference=None if exact is None else _largest(expected, exact),
        results=results,
    )


class _Candidate:
    """One exporter, its model and its session, or what went wrong."""

    def __init__(
        self,
        name: str,
        model: Any,
        args: Any,
        kwargs: Any,
        opset: int,
        shapes: Any,
        providers: Sequence[ProviderSpec],
    ) -> None:
        """Export the model and run it once."""
        self.name = name
        self.error: str | None = None
        self.proto: onnx.ModelProto | None = None
        self.times: list[float] = []
        self.places: tuple[int, ...] | None = None
        self.left_out: tuple[str, ...] = ()
        start = time.perf_counter()
        try:
            # What an exporter says meanwhile is of no concern to who compares.
            with warnings.catch_warnings(), _quiet(), left_as_it_was(model, (args, kwargs)):
                warnings.simplefilter("ignore")
                made = EXPORTERS[name](model, args, kwargs, opset, shapes)
            if isinstance(made, ChosenResults):
                self.places, self.left_out = made.places, made.left_out
                made = made.proto
            self.proto = made
            self.seconds = time.perf_counter() - start
            self.session = create_session(self.proto, providers=providers)
            self.feeds = _feeds(self.session, args, kwargs)
            self.outputs: list[Any] = []
            self.run()
        except Exception as error:  # an exporter raises anything: that is what is compared
            self.error = _reason(error)

    def run(self) -> float:
        """Run the session; return the milliseconds it took."""

        def call() -> None:
            self.outputs = self.session.ort.run(None, self.feeds)

        return _milliseconds(call)

    def result(
        self, witness: Witness, exact: Sequence[torch.Tensor] | None, runtimes: Sequence[str]
    ) -> ExporterResult:
        """The row of this exporter."""
        if self.proto is None:
            return ExporterResult(exporter=self.name, error=self.error)
        made = ExporterResult(
            exporter=self.name,
            error=self.error,
            nodes=count_nodes(ir.from_proto(self.proto)),
            opset=next(o.version for o in self.proto.opset_import if not o.domain),
            export_seconds=self.seconds,
            bytes=self.proto.ByteSize(),
        )
        if self.error is not None:
            return made
        if self.places is not None:
            witness = witness.of_results(self.places)
            exact = [exact[place] for place in self.places] if exact else None
        found = _compared(self.outputs, witness)
        is_wrong = found["agrees"] is False
        judge = witness.judge(self.proto, self.feeds, self.outputs) if is_wrong else None
        return dataclasses.replace(
            made,
            **found,
            exact_difference=_largest(self.outputs, exact) if exact else None,
            run_milliseconds=statistics.median(self.times),
            elsewhere=tuple(self._elsewhere(name, witness) for name in runtimes),
            providers=tuple(p.name for p in self.session.providers),
            placement=self.session.placement,
            judgment=judge,
            left_out=self.left_out,
        )

    def _elsewhere(self, runtime: str, witness: Witness) -> RuntimeResult:
        """What another runtime makes of the file."""
        assert self.proto is not None
        try:
            with _quiet():
                outputs = RUNTIMES[runtime](self.proto, self.feeds)()
        except Exception as error:  # a runtime raises anything: that is what is compared
            return RuntimeResult(runtime=runtime, error=_reason(error))
        return RuntimeResult(runtime=runtime, **_compared(outputs, witness))


def _compared(outputs: Sequence[Any], witness: Witness) -> dict[str, Any]:
    is_close = excess(outputs, witness.expected, witness.tolerance) <= 1
    return {
        "max_difference": _largest(outputs, witness.expected),
        "agrees": None if witness.random else is_close,
    }


def _reason(error: BaseException) -> str:
    """What is behind an error, in a line: exporters that share a capture fail alike."""
    while error.__cause__ is not None:
        error = error.__cause__
    place = last_frame(str(error))
    return _COLOUR.sub("", f"{in_a_line(error)}{f', at {place}' if place else ''}")


_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let nothing be printed, and torch's exporter log errors only."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


_LOGGERS = "torch.onnx torch.export._draft_export torch.fx.experimental.symbolic_shapes".split()
"""Those that say why a model is not captured, and print its graph."""


def _feeds(session: Session, args: Any, kwargs: Any) -> dict[str, Any]:
    """The inputs of a model, which come in the order of the arguments."""
    tensors = [a for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)]
    if len(tensors) != len(session.input_types):
        raise ExecutionError(
            f"The model has {len(session.input_types)} input(s) for {len(tensors)} tensor(s)."
        )
    return {n: tensor_to_array(t) for n, t in zip(session.input_types, tensors, strict=True)}


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1000


def _largest(got: Sequence[Any], expected: Sequence[torch.Tensor]) -> float:
    """The largest absolute difference; NaN where results are missing, or of other shapes."""
    found = excess(got, expected, Tolerance(absolute=1.0))
    return found if math.isfinite(found) else math.nan


def run_compare(arguments: Sequence[str]) -> int:
    """Print the comparison; 1 when this package's model fails or is not what eager computes."""
    parser = make_parser(
        "compare",
        "Export a model with several exporters: nodes by type, differences to eager mode, times\n"
        "of the export and of a run. Ends with 1 if the model of this package fails, or\n"
        "differs.\n\n"
        f"exporters:\n{list_of(MEANING)}",
        "examples:\n"
        "  dort-rewriter compare model.py:make_model\n"
        "  dort-rewriter compare package.models:small --html comparison.html --repeat 50",
    )
    parser.add_argument("model", metavar="MODEL", help=HELP)
    parser.add_argument(
        "--providers",
        nargs="+",
        default=(),
        metavar="NAME",
        help="execution providers that run the files, best first (default: the CPU)",
    )
    for name, known, default, words in (
        (
            "--exporters",
            EXPORTERS,
            None,
            "those to compare, of the above (default: all that are installed)",
        ),
        ("--runtimes", RUNTIMES, [], f"run the files by these too: {', '.join(RUNTIMES)}"),
    ):
        parser.add_argument(
            name, nargs="+", choices=known, default=default, metavar="NAME", help=words
        )
    option(parser, "--opset N", 18, "of the models")
    option(parser, "--repeat N", 10, "runs of each model that are timed")
    parser.add_argument("--html", metavar="FILE", help="also write it as a page of HTML")
    options = parser.parse_args(arguments)
    model, args = load_pair(options.model)
    with contextlib.redirect_stdout(sys.stderr):  # what the model prints is no answer
        found = compare_exporters(
            model,
            args,
            exporters=options.exporters,
            runtimes=options.runtimes,
            providers=options.providers,
            target_opset=options.opset,
            repeat=options.repeat,
        )
    answer(options.json, found.to_dict(), str(found))
    if options.html:
        found.save_html(options.html)
    ours = [r for r in found.results if r.exporter == "dort_rewriter"]
    return int(any(r.error is not None or r.agrees is False for r in ours))
