"""Who is at fault where a model file does not give the results of eager mode.

Eager mode in float64 is the judge of four runs: eager mode as it is, onnxruntime, ONNX's
reference evaluator, and, value by value, the graph of ``torch.export``. What is as far from it as
eager mode is rounding. What the evaluator computes right is right in the file, and wrong in a
kernel of onnxruntime; what it computes wrong too the exporter wrote wrong.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch.utils._pytree import tree_leaves, tree_map

from dort_rewriter.aten import results_of, source_line
from dort_rewriter.compiler.differences import Tolerance, largest
from dort_rewriter.deployment.restoring import left_as_it_was
from dort_rewriter.errors import DortError
from dort_rewriter.export.decompositions import get_standard_table
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.runtime.ort_values import array_to_tensor
from dort_rewriter.runtime.session import create_session
from dort_rewriter.tools.command import in_a_line
from dort_rewriter.tools.results import tensors_in

logger = logging.getLogger(__name__)

Values = Mapping[str, Any]
Traced = dict[str, tuple[torch.Tensor, str]]
"""Values of a graph of torch and their Python lines, by name."""


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """Who is at fault, and where it shows first."""

    fault: str
    """``"tolerance"``, ``"kernel"``, ``"exporter"``, or ``"unknown"``."""
    reason: str
    node: str | None = None
    """The first ONNX node whose result differs: its type, and what it computes."""
    line: str | None = None
    """The Python line it comes from."""
    nodes: tuple[str, ...] = ()
    """Those that compute it from values that are right, itself the last: one of them is at
    fault. What is between two values of torch's graph has no counterpart there."""


def eager_results(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], seed: int = 0
) -> list[torch.Tensor]:
    """The tensors that a model computes; it and its arguments are left as they were."""
    with left_as_it_was(model, (args, kwargs)):
        torch.manual_seed(seed)
        # Copies: a result may be what is set back.
        return [t.clone() for t in tensors_in(model(*args, **kwargs))]


def exact_results(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor] | None:
    """The tensors that a model computes in float64; None where it insists on its own types."""

    def wide(value: Any) -> Any:
        is_narrow = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if is_narrow else value

    try:
        exact = copy.deepcopy(model).double()
        return eager_results(exact, tree_map(wide, tuple(args)), tree_map(wide, kwargs))
    except Exception as error:  # a model raises anything
        logger.debug("No results in float64: %s", error)
        return None


def excess(got: Sequence[Any], exact: Sequence[torch.Tensor], tolerance: Tolerance) -> float:
    """The largest difference, in units of what is accepted; infinite for other shapes or NaN."""
    if len(got) != len(exact):
        return math.inf
    pairs = zip(map(_as_tensor, got), exact, strict=True)
    return max((tolerance.excess(a, e) for a, e in pairs), default=0.0)


def _as_tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else array_to_tensor(np.asarray(value))


class Witness:
    """What eager mode computes for some arguments: a file is judged by it."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        expected: Sequence[torch.Tensor],
        exact: Sequence[torch.Tensor] | None,
        tolerance: Tolerance,
        *,
        random: bool = False,
    ) -> None:
        self.model, self.args = model, tuple(args)
        # torch.export has them in the order of the signature.
        order = [*inspect.signature(model.forward).parameters, *kwargs]
        self.kwargs = {name: kwargs[name] for name in order if name in kwargs}
        self.expected = expected
        self.exact = expected if exact is None else exact
        self.tolerance = tolerance
        self.random = random
        """Whether eager mode computes other results with another seed."""
        self._graphs: list[_Graph] | None = None

    def of_results(self, places: Sequence[int]) -> Witness:
        """The same of some of the results."""
        found = copy.copy(self)
        found.expected = [self.expected[place] for place in places]
        found.exact = [self.exact[place] for place in places]
        return found

    def judge(self, proto: onnx.ModelProto, feeds: Values, outputs: Sequence[Any]) -> Judgment:
        """Who is at fault for the outputs that onnxruntime computed of a file."""
        own = excess(self.expected, self.exact, self.tolerance)
        enough = max(1.0, 2 * own)
        ours = excess(outputs, self.exact, self.tolerance)
        if ours <= enough:
            return Judgment(
                fault="tolerance",
                reason=f"It is as near to float64 as eager mode: {ours:.2g} and {own:.2g} of "
                "what is accepted.",
            )
        try:
            right = _by_evaluator(proto, feeds)
        except Exception as error:  # whatever an implementation of an operator raises
            found = self._judge_exporter(proto, _by_onnxruntime(proto, feeds), "onnxruntime")
            if found is not None:
                return found
            return Judgment(
                fault="unknown",
                reason=f"The reference evaluator fails: {in_a_line(error)}",
            )
        results = [right[o.name] for o in proto.graph.output]
        if excess(results, self.exact, self.tolerance) <= enough:
            return self._judge_kernels(proto, right, _by_onnxruntime(proto, feeds))
        return self._judge_exporter(proto, right, "the reference evaluator") or Judgment(
            fault="exporter",
            reason="The reference evaluator computes another result than torch too; no value of "
            "the file has a name of torch's graph.",
        )

    def _judge_kernels(self, proto: onnx.ModelProto, right: Values, found: Values) -> Judgment:
        for node, name in _computed(proto):
            if name not in found or name not in right:
                continue
            wanted = torch.as_tensor(np.asarray(right[name]).copy())
            if not self._is_close(found[name], wanted):
                return Judgment(
                    fault="kernel",
                    reason="The reference evaluator computes what torch does, onnxruntime another "
                    "result.",
                    node=f"{node.op_type} -> {name}",
                    line=self._traced(proto, right).get(name, (None, ""))[1] or None,
                )
        return Judgment(
            fault="kernel",
            reason="The reference evaluator computes what torch does, and so does onnxruntime "
            "node by node: a fusion of its optimizer is at fault.",
        )

    def _judge_exporter(self, proto: onnx.ModelProto, found: Values, who: str) -> Judgment | None:
        """The first value that differs from that of torch's graph with its name.

        Of those alone that a wrong result is computed from, without a right value between them:
        another value may have a name of torch's graph.
        """
        known = self._traced(proto, found)
        right = {
            name
            for node, name in _computed(proto)
            if self._is_right(name, known, found)
            and (name in known or not _changes_nothing(node, name, found))
        }
        wrong = [o.name for o in proto.graph.output if o.name not in right]
        suspects = _between(proto, wrong, right)
        for node, name in suspects:
            if name in known and name in found and _has_shape(found[name], known[name][0]):
                return Judgment(
                    fault="exporter",
                    reason=f"{who[0].upper()}{who[1:]} computes another result than torch of what "
                    "is written.",
                    node=_said(node, name),
                    line=known[name][1] or None,
                    nodes=tuple(_said(*pair) for pair in _between(proto, [name], right)),
                )
        return None

    def _is_right(self, name: str, known: Traced, found: Values) -> bool:
        """Whether torch computes the value too: under its name, or, if torch's graph has no such
        name and the value is no trivial one, under any."""
        if name not in found:
            return False
        value = np.asarray(found[name])
        if name in known and _has_shape(value, known[name][0]):
            return self._is_close(value, known[name][0])
        if value.size < 2 or bool((value == value.flat[0]).all()):
            return False
        others = (wanted for graph in self._all_graphs() for wanted, _ in graph.values.values())
        return any(self._is_close(value, wanted) for wanted in others)

    def _traced(self, proto: onnx.ModelProto, found: Values) -> Traced:
        """What torch computes for the values of a file, and their lines, by the names they have in
        one of torch's graphs, and results by their places.

        NOTE: decomposed in another way, a graph gives the same name to other values. The file is
        of the one that it has the most names of, and right values.
        """
        tables = [graph.named(proto) for graph in self._all_graphs()]
        return max(tables, key=lambda table: self._count(table, found), default={})

    def _count(self, table: Traced, found: Values) -> int:
        names = [n for n in table.keys() & found.keys() if _has_shape(found[n], table[n][0])]
        return len(names) + sum(self._is_close(found[name], table[name][0]) for name in names)

    def _is_close(self, value: Any, wanted: torch.Tensor) -> bool:
        """Whether a value inside is right: sums of large terms are rounded like these."""
        limit = self.tolerance
        absolute = max(limit.absolute, limit.relative * largest(wanted))
        near = dataclasses.replace(limit, absolute=absolute)
        return near.excess(_as_tensor(value), wanted) <= 1

    def _all_graphs(self) -> list[_Graph]:
        """Torch's graph as this package decomposes it, as torch does, and as it is exported."""
        if self._graphs is None:
            self._graphs = []
            state = self.model, (self.args, self.kwargs)
            try:
                with left_as_it_was(*state):
                    program = torch.export.export(self.model, self.args, self.kwargs)
            except Exception as error:  # torch.export refuses in many ways
                logger.info("No values of torch's graph: %s", error)
                return []
            table = get_standard_table(OxsDispatcher())
            for make in (
                lambda: program.run_decompositions(table),
                program.run_decompositions,
                lambda: program,
            ):
                with left_as_it_was(*state):
                    self._graphs.append(_Graph.record(make, self.args, self.kwargs))
        return self._graphs


@dataclass
class _Graph:
    """The values of a graph of torch."""

    values: Traced
    results: Sequence[str] = ()

    @classmethod
    def record(
        cls,
        make: Callable[[], torch.export.ExportedProgram],
        args: Sequence[Any],
        kwargs: Values,
    ) -> _Graph:
        """Make a program and run it, and keep what each node computes, as far as it goes."""
        made = cls({})
        try:
            module = make().module()
            _Recorder(module, made.values).run(*args, *kwargs.values())
        except Exception as error:  # a decomposition may want other strides
            logger.info("Not all values of torch's graph: %s", error)
            return made
        assert isinstance(module, torch.fx.GraphModule)
        made.results = [str(n) for n in tree_leaves(results_of(module.graph))]
        return made

    def named(self, proto: onnx.ModelProto) -> Traced:
        """The values by the names that they have in a file too."""
        found = dict(self.values)
        for output, name in zip(proto.graph.output, self.results, strict=False):
            if name in found:
                found[output.name] = found[name]
        return found


class _Recorder(torch.fx.Interpreter):
    def __init__(self, module: Any, kept: Traced) -> None:
        super().__init__(module)
        self.kept = kept

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and isinstance(value, torch.Tensor):
            self.kept[n.name] = (value.detach().clone(), source_line(n))
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target is torch.ops.aten.view.default:  # kernels have other strides than fake tensors
            target = torch.ops.aten.reshape.default
        return super().call_function(target, args, kwargs)


def _computed(proto: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, str]]:
    """What the nodes of a file compute, in order."""
    for node in proto.graph.node:
        for name in filter(None, node.output):
            yield node, name


def _between(
    proto: onnx.ModelProto, names: Collection[str], right: Collection[str]
) -> list[tuple[onnx.NodeProto, str]]:
    """The nodes that compute values from values that are right, in order, with these values."""
    wanted, found = set(names), []
    for node in reversed(proto.graph.node):
        outputs = [name for name in node.output if name in wanted and name not in right]
        if outputs:
            wanted.update(used for used in node.input if used not in right)
            found += [(node, name) for name in reversed(outputs)]
    return found[::-1]


def _changes_nothing(node: onnx.NodeProto, name: str, found: Values) -> bool:
    """Whether a value is one that it is computed from: that this one is right says nothing."""
    return any(
        np.array_equal(np.asarray(found[name]), np.asarray(found[used]), equal_nan=False)
        for used in node.input
        if used in found
    )


def _said(node: onnx.NodeProto, name: str) -> str:
    return f"{node.op_type} -> {name}"


def _has_shape(value: Any, wanted: torch.Tensor) -> bool:
    return tuple(np.shape(value)) == tuple(wanted.shape)


def _by_evaluator(proto: onnx.ModelProto, feeds: Values) -> Values:
    return _evaluated(ReferenceEvaluator(_with_all_results(proto)), proto, feeds)


def _by_onnxruntime(proto: onnx.ModelProto, feeds: Values) -> Values:
    try:
        session = create_session(_with_all_results(proto))
    except DortError as error:
        logger.info("onnxruntime does not show its values: %s", error)
        return {}
    return _evaluated(session.ort, proto, feeds)


def _evaluated(runner: Any, proto: onnx.ModelProto, feeds: Values) -> Values:
    names = [name for _, name in _computed(proto)]
    return dict(zip(names, runner.run(names, dict(feeds)), strict=True))


def _with_all_results(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model that returns whatever its nodes compute."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    known = {o.name for o in proto.graph.output}
    shown.graph.output.extend(
        onnx.ValueInfoProto(name=name) for _, name in _computed(proto) if name not in known
    )
    return shown
