"""Graphs of AOTAutograd in torch's own cache of them, for other processes.

torch keeps what the compilers of a backend return, if that is an ``OutputCode``, with all that
AOTAutograd knows of a graph of Dynamo: in a process that meets the graph again nothing is traced
and cut in forward and backward. What is kept here is the graph that a compiler was given, as data:
who finds it compiles it as if it had been traced just now. NOTE: torch reads its cache by pickle.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._inductor import codecache
from torch._inductor.output_code import OutputCode

from dort_rewriter.capture.graph_data import GraphData, describe_graph, restore_graph
from dort_rewriter.capture.interface import Finish, Traced, metadata_of_compilation
from dort_rewriter.errors import CaptureError
from dort_rewriter.forks import SafeLock
from dort_rewriter.torch_defects.python_kernels import KERNELS_LOCK, swapped

logger = logging.getLogger(__name__)

_KEY = "_dort_rewriter_key"
"""An attribute of Dynamo's graph while it is compiled: torch's key is of all attributes."""

_finish: ContextVar[Finish] = ContextVar("finish")
"""What compiles the graphs that are found, in this compilation."""


class KeptGraph(OutputCode):
    """A graph that AOTAutograd made, and what runs it in this process."""

    def __init__(self, traced: Traced, data: GraphData | CaptureError) -> None:
        super().__init__()
        self._boxed_call = True  # read by torch, also of what it wraps around it
        self._traced = traced
        self._data = data
        self._run: Callable[[list[Any]], Any] | None = None
        self._start: Callable[[], Callable[[list[Any]], Any]] | None = None
        self._lock: SafeLock | None = None

    def __call__(self, inputs: Any) -> Any:
        """Run the graph on a list of arguments, which is emptied."""
        run = self._run
        return self._started()(inputs) if run is None else run(inputs)

    def compile(
        self, graph_module: torch.fx.GraphModule, given: Sequence[Any], finish: Finish
    ) -> None:
        """Have the graph compiled: now, or a backward graph when it is called."""
        context = torch._guards.TracingContext.try_get()

        def start() -> Callable[[list[Any]], Any]:
            with torch._guards.tracing(context), torch.no_grad(), torch._C._DisableAutocast():
                return finish(graph_module, given, self._traced)

        self._lock, self._start = SafeLock(), start
        if self._traced.kind != "backward":
            self._started()

    def _started(self) -> Callable[[list[Any]], Any]:
        assert self._lock is not None, "it was neither compiled nor found"
        with self._lock:
            if self._run is None:
                assert self._start is not None
                self._run, self._start = self._start(), None
            return self._run

    def prepare_for_serialization(self) -> None:
        """Leave nothing but data; torch calls it on a copy."""
        if isinstance(self._data, CaptureError):
            logger.info("A graph is not kept for other processes: %s", self._data)
            raise BypassAOTAutogradCache(str(self._data))
        self._run = self._start = self._lock = None

    def post_compile(
        self, example_inputs: Sequence[Any], constants: Any, graph_kwargs: Any
    ) -> None:
        """Compile the graph that was found: what raises here is compiled again by torch."""
        try:
            assert isinstance(self._data, GraphData)
            mode = torch._guards.detect_fake_mode(example_inputs)
            finish = _finish.get(None)
            if mode is None or finish is None:
                raise CaptureError("it was found outside of a compilation by this package")
            graph_module = restore_graph(self._data, mode)
            nodes = graph_module.graph.find_nodes(op="placeholder")
            self.compile(graph_module, [n.meta.get("val") for n in nodes], finish)
        except Exception as error:  # an entry may be wrong in any way
            logger.info("A graph that was kept is of no use, and traced again: %s", error)
            raise
        logger.debug("A %s graph of an earlier process was found.", self._traced.kind)


@contextlib.contextmanager
def keep(graph_module: torch.fx.GraphModule, key: str, finish: Finish) -> Iterator[None]:
    """Let torch keep what is compiled here, and find what was; the key says for whom.

    NOTE: a backward graph goes to the compiler at once: torch keeps it with the forward graph.
    """
    token = _finish.set(finish)
    setattr(graph_module, _KEY, key)
    config: Any = torch._functorch.config
    switched = config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True)
    try:
        with switched, _without_inductor():
            yield
    finally:
        delattr(graph_module, _KEY)
        _finish.reset(token)


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """Let torch's key leave out the passes and choices that a user gave to Inductor's backends.

    No graph of ours depends on them, and torch imports all of Inductor to ask for them. NOTE: what
    other threads compile meanwhile is not concerned.
    """
    asked = (
        (vars(codecache), "init_backend_registration"),
        (vars(torch._inductor.config), "_cache_config_serializer"),  # torch 2.15
    )
    with KERNELS_LOCK, contextlib.ExitStack() as stack:
        for names, name in asked:
            if name in names:
                stack.enter_context(swapped(names, {name: lambda _: _nothing}))
        yield


def _nothing(*_: Any) -> None:
    """Stand in for what would import Inductor."""


def make_keeper(finish: Finish, prepare: Callable[[torch.fx.GraphModule], Traced]) -> Any:
    """A compiler of AOTAutograd whose graphs torch keeps."""

    def compile_and_keep(graph_module: torch.fx.GraphModule, given: Sequence[Any]) -> KeptGraph:
        traced = prepare(graph_module)
        if traced.kind == "backward":
            _donate_nothing()
        found = KeptGraph(traced, _described(graph_module))
        found.compile(graph_module, given, finish)
        return found

    return SerializableAOTDispatchCompiler(KeptGraph, compile_and_keep)


def _donate_nothing() -> None:
    """Leave what was saved for the backward graph as it is, for a second backward pass.

    torch decides it by the first pass, where it compiles the graph then: here that is done before.
    """
    metadata = metadata_of_compilation()
    if metadata is not None:
        metadata.bw_donated_idxs = []


def _described(graph_module: torch.fx.GraphModule) -> GraphData | CaptureError:
    try:
        return describe_graph(graph_module)
    except CaptureError as error:
        return error
