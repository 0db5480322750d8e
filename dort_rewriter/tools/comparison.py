"""compare_exporters: one model through several exporters, side by side.

``torch`` is ``torch.onnx.export(dynamo=True)``; ``torchlib`` is ``to_onnx`` with onnxscript's
functions alone; ``dort_rewriter`` is ``to_onnx`` as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.utils._pytree import tree_leaves

from dort_rewriter.backends.to_onnx import to_onnx
from dort_rewriter.compiler.differences import Tolerance
from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import OptimizationOptions
from dort_rewriter.runtime.ort_values import tensor_to_array
from dort_rewriter.runtime.session import Session, create_session
from dort_rewriter.tools.command import HELP, answer, list_of, load_pair, make_parser
from dort_rewriter.tools.comparison_page import comparison_html, comparison_text
from dort_rewriter.tools.judgment import Judgment, Witness, exact_results, excess
from dort_rewriter.tools.models import count_nodes
from dort_rewriter.tools.other_runtimes import RUNTIMES

__all__ = [
    "EXPORTERS",
    "MEANING",
    "Comparison",
    "ExporterResult",
    "RuntimeResult",
    "compare_exporters",
    "run_compare",
]

Exporter = Callable[..., onnx.ModelProto]


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
    """Whether all results are those of eager, within the tolerance."""
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
        return comparison_text(self.to_dict())

    def to_html(self) -> str:
        """A page of its own."""
        return comparison_html(self.to_dict())

    def save_html(self, path: str | Path) -> None:
        """Write the page."""
        Path(path).write_text(self.to_html(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return self.to_html()


def _with_torch(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], opset: int, shapes: Any
) -> onnx.ModelProto:
    program = torch.onnx.export(
        model,
        args,
        kwargs=kwargs,
        opset_version=opset,
        dynamic_shapes=shapes,
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    return proto


def _with_torchlib(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], opset: int, shapes: Any
) -> onnx.ModelProto:
    return to_onnx(
        model,
        args,
        kwargs,
        target_opset=opset,
        dynamic_shapes=shapes,
        dispatcher=OxsDispatcher(own_converters=False),
        options=OptimizationOptions(patterns=None),
    )


def _with_ours(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], opset: int, shapes: Any
) -> onnx.ModelProto:
    return to_onnx(model, args, kwargs, target_opset=opset, dynamic_shapes=shapes)


EXPORTERS: dict[str, Exporter] = {
    "torch": _with_torch,
    "torchlib": _with_torchlib,
    "dort_rewriter": _with_ours,
}


MEANING = {
    "torch": "torch.onnx.export(dynamo=True): torch's decompositions, onnxscript's torchlib",
    "torchlib": "the capture of this package, with the converters of torchlib alone",
    "dort_rewriter": "this package: to_onnx(), with its own converters and rules",
}
"""What the name of an exporter stands for."""


def compare_exporters(
    model: torch.nn.Module,
    args: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any] | None = None,
    *,
    exporters: Sequence[str] = tuple(EXPORTERS),
    runtimes: Sequence[str] = (),
    target_opset: int = 18,
    dynamic_shapes: Any = None,
    atol: float = 1e-4,
    rtol: float = 1e-3,
    repeat: int = 10,
) -> Comparison:
    """Export a model in several ways: its nodes, its numbers and its times, side by side.

    The model is run as it is given: call ``eval()`` for what it does in inference. An exporter
    that fails has its error in its row.

    Args:
        model: a module.
        args: its arguments; a tensor stands for one.
        kwargs: its arguments by name.
        exporters: which of ``"torch"``, ``"torchlib"``, ``"dort_rewriter"``.
        runtimes: others that run each file too: ``"reference"``, ONNX's own evaluator, and
            ``"openvino"`` where that is installed.
        target_opset: the opset of the models.
        dynamic_shapes: as in ``torch.export.export``.
        atol: the absolute difference to eager that is accepted.
        rtol: the relative one.
        repeat: how often each model is run, in turns; the time is the median.

    """
    if unknown := [e for e in exporters if e not in EXPORTERS]:
        raise OptionError(f"Unknown exporter {unknown[0]!r}: known are {', '.join(EXPORTERS)}.")
    if unknown := [e for e in runtimes if e not in RUNTIMES]:
        raise OptionError(f"Unknown runtime {unknown[0]!r}: known are {', '.join(RUNTIMES)}.")
    if repeat < 1:
        raise OptionError(f"repeat is 1 or more, not {repeat}.")
    given = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    named = dict(kwargs or {})
    with torch.no_grad():
        expected = [t for t in tree_leaves(model(*given, **named)) if isinstance(t, torch.Tensor)]
        exact = exact_results(model, given, named)
        tolerance = Tolerance(absolute=atol, relative=rtol)
        witness = Witness(model, given, named, expected, exact, tolerance)
        candidates = [
            _Candidate.make(name, model, given, named, target_opset, dynamic_shapes)
            for name in exporters
        ]
        runs: dict[str, list[float]] = {"eager": []}
        for _ in range(repeat):
            runs["eager"].append(_milliseconds(lambda: model(*given, **named)))
            for candidate in candidates:
                if candidate.error is None:
                    runs.setdefault(candidate.name, []).append(candidate.run())
        results = tuple(
            c.result(witness, exact, runs.get(c.name, []), runtimes) for c in candidates
        )
    return Comparison(
        model=type(model).__name__,
        eager_milliseconds=statistics.median(runs["eager"]),
        eager_difference=None if exact is None else _largest(expected, exact),
        results=results,
    )


class _Candidate:
    """One exporter, its model and its session, or what went wrong."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: str | None = None
        self.seconds: float | None = None
        self.proto: onnx.ModelProto | None = None
        self.session: Session | None = None
        self.feeds: dict[str, Any] = {}
        self.outputs: list[Any] = []

    @classmethod
    def make(
        cls, name: str, model: Any, args: Any, kwargs: Any, opset: int, shapes: Any
    ) -> _Candidate:
        """Export the model and run it once."""
        made = cls(name)
        start = time.perf_counter()
        try:
            # What an exporter says meanwhile is of no concern to who compares.
            with warnings.catch_warnings(), _quiet():
                warnings.simplefilter("ignore")
                made.proto = EXPORTERS[name](model, args, kwargs, opset, shapes)
            made.seconds = time.perf_counter() - start
            made.session = create_session(made.proto)
            made.feeds = _feeds(made.session, args, kwargs)
            made.run()
        except Exception as error:  # an exporter raises anything: that is what is compared
            made.error = _reason(error)
        return made

    def run(self) -> float:
        """Run the session; return the milliseconds it took."""
        assert self.session is not None
        ort = self.session.ort

        def call() -> None:
            self.outputs = ort.run(None, self.feeds)

        return _milliseconds(call)

    def result(
        self,
        witness: Witness,
        exact: Sequence[torch.Tensor] | None,
        times: Sequence[float],
        runtimes: Sequence[str],
    ) -> ExporterResult:
        """The row of this exporter."""
        if self.proto is None:
            return ExporterResult(exporter=self.name, error=self.error)
        facts: dict[str, Any] = {
            "nodes": count_nodes(ir.from_proto(self.proto)),
            "opset": next(o.version for o in self.proto.opset_import if not o.domain),
            "export_seconds": self.seconds,
            "bytes": self.proto.ByteSize(),
        }
        if self.error is None:
            agrees = excess(self.outputs, witness.expected, witness.tolerance) <= 1
            facts |= {
                "max_difference": _largest(self.outputs, witness.expected),
                "exact_difference": _largest(self.outputs, exact) if exact else None,
                "agrees": agrees,
                "run_milliseconds": statistics.median(times),
            }
            facts["elsewhere"] = tuple(self._elsewhere(name, witness) for name in runtimes)
            if not agrees:
                facts["judgment"] = witness.judge(self.proto, self.feeds, self.outputs)
        return ExporterResult(exporter=self.name, error=self.error, **facts)

    def _elsewhere(self, runtime: str, witness: Witness) -> RuntimeResult:
        """What another runtime makes of the file."""
        assert self.proto is not None
        try:
            with _quiet():
                outputs = RUNTIMES[runtime](self.proto, self.feeds)()
        except Exception as error:  # a runtime raises anything: that is what is compared
            return RuntimeResult(runtime=runtime, error=_reason(error))
        return RuntimeResult(
            runtime=runtime,
            max_difference=_largest(outputs, witness.expected),
            agrees=excess(outputs, witness.expected, witness.tolerance) <= 1,
        )


def _reason(error: BaseException) -> str:
    """What is behind an error, in a line: exporters that share a capture fail alike."""
    while error.__cause__ is not None:
        error = error.__cause__
    first = _COLOUR.sub("", str(error)).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"


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
        "--exporters",
        nargs="+",
        choices=EXPORTERS,
        default=list(EXPORTERS),
        metavar="NAME",
        help="those to compare, of the above (default: all)",
    )
    parser.add_argument(
        "--runtimes",
        nargs="+",
        choices=RUNTIMES,
        default=[],
        metavar="NAME",
        help=f"run the files by these too: {', '.join(RUNTIMES)}",
    )
    parser.add_argument(
        "--opset", type=int, default=18, metavar="N", help="of the models (default: %(default)s)"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=10,
        metavar="N",
        help="runs of each model that are timed (default: %(default)s)",
    )
    parser.add_argument("--html", metavar="FILE", help="also write it as a page of HTML")
    options = parser.parse_args(arguments)
    model, args = load_pair(options.model)
    found = compare_exporters(
        model,
        args,
        exporters=options.exporters,
        runtimes=options.runtimes,
        target_opset=options.opset,
        repeat=options.repeat,
    )
    if options.html:
        found.save_html(options.html)
    answer(options.json, found.to_dict(), str(found))
    ours = [r for r in found.results if r.exporter == "dort_rewriter"]
    return int(any(not r.agrees for r in ours))
