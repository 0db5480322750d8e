"""Building an onnxruntime session from a model, its settings, and reading its errors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dort_rewriter.errors import ExecutionError, NoKernelError, OptionError
from dort_rewriter.forks import at_fork, forked_alone
from dort_rewriter.graph.schemas import qualified
from dort_rewriter.kernels.loading import kernels_for, register
from dort_rewriter.kernels.operators import TORCH_CALL
from dort_rewriter.kernels.torch_calls import calls_of
from dort_rewriter.options import LEVELS, OptimizationLevel, OrtBackendOptions
from dort_rewriter.ort_module import bindings, describe, load_onnxruntime
from dort_rewriter.runtime.arenas import Arena, give_back_after, use_arena
from dort_rewriter.runtime.compiled_forms import CompiledForm, Store
from dort_rewriter.runtime.model_files import (
    StoredModel,
    is_message,
    read_model,
    serialized,
    uses_custom_kernels,
    uses_torch_kernels,
)
from dort_rewriter.runtime.providers import (
    CPU,
    CUDA,
    OPENVINO,
    Provider,
    ProviderSpec,
    devices_of,
    is_plug_in,
    normalize,
    with_nodes,
)
from dort_rewriter.runtime.threads import ThreadPolicy
from dort_rewriter.signature import TorchCall

if TYPE_CHECKING:
    import onnxruntime

    from dort_rewriter.runtime.model_files import Model


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session ready to run, and what must live as long as it does."""

    ort: onnxruntime.InferenceSession
    providers: tuple[Provider, ...]
    input_types: dict[str, str]
    """``{"x": "tensor(float)"}``, in the order of the model."""
    output_types: dict[str, str]
    nodes: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What error messages say about each node, by name; empty for models given as bytes."""
    threads: int = 1
    """How many work on one operator, the calling one included."""
    pooled: bool = False
    """Whether it has threads of its own."""
    beside_torch: bool = False
    """Whether kernels of torch run inside it, in torch's threads."""
    calls: tuple[TorchCall, ...] = field(default=(), repr=False)
    """What its kernels call of torch."""
    stream: torch.cuda.Stream | None = None
    """Where the CUDA provider queues its work; the executor orders it against torch's stream."""
    placement: Mapping[str, Mapping[str, int]] | None = None
    """The nodes that each provider has by type, by the session's own word, of the model as
    onnxruntime has simplified it. None where it has one provider, or onnxruntime does not tell
    (before 1.24)."""

    def __post_init__(self) -> None:
        _alive[self.ort] = (tuple(p.name for p in self.providers), self.placement)

    def survives_fork(self) -> bool:
        """Tell a forked child whether it may run this session of its parent."""
        return not self.pooled and forked_alone()


_TELLING = "get_provider_graph_assignment_info"

_alive: weakref.WeakKeyDictionary[onnxruntime.InferenceSession, tuple[tuple[str, ...], Any]] = (
    weakref.WeakKeyDictionary()
)
"""The sessions of this process: their providers, and the nodes of each."""


def describe_sessions() -> list[str]:
    """Where the nodes of the sessions of this process run, by their own word, a line for those
    with the same providers."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for names, placement in list(_alive.values()):
        found.setdefault(names, []).append(placement)
    lines = []
    for names, placements in sorted(found.items()):
        placed = None
        if None not in placements:
            placed = {
                name: sum((Counter(p.get(name, {})) for p in placements), Counter[str]())
                for name in names
            }
        lines.append(f"{len(placements)} on {with_nodes(names, placed)}")
    return lines


def _keep_inherited() -> None:
    """Let the sessions of the parent live as long as a child does.

    The end of a session waits for its threads, which a child does not have: for ever.
    """
    for session in list(_alive):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    _alive.clear()


at_fork(in_child=_keep_inherited)


def session_options(
    *,
    optimization_level: OptimizationLevel | None = None,
    threads: ThreadPolicy | None = None,
    arena: Arena = "session",
) -> onnxruntime.SessionOptions:
    """New options of onnxruntime; None leaves onnxruntime's own optimization level."""
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.log_severity_level = 4  # fatal: errors are raised, and need not be printed too
    if optimization_level is not None:
        options.graph_optimization_level = _level(optimization_level)
    (threads or ThreadPolicy()).apply(options)
    use_arena(arena, options)
    return options


def _level(name: OptimizationLevel) -> onnxruntime.GraphOptimizationLevel:
    if name not in LEVELS:
        raise OptionError(f"optimization_level is one of {sorted(LEVELS)}, not {name!r}.")
    levels = load_onnxruntime().GraphOptimizationLevel
    # Older releases have no separate level for layouts: theirs is part of "all".
    return getattr(levels, LEVELS[name], levels.ORT_ENABLE_ALL)


def create_session(
    model: Model,
    *,
    providers: Iterable[ProviderSpec] = (CPU,),
    options: onnxruntime.SessionOptions | None = None,
    keep: Callable[[], onnxruntime.SessionOptions] | None = None,
    beside: Store | None = None,
) -> Session:
    """Build a session; ``options`` are used as they are, without a change.

    ``keep`` stores what a plug-in compiles for other processes, and takes what they stored, in
    the cache of models, and ``beside`` the model; it makes new options like these.

    NOTE: except that a model with kernels of our own makes them known to the options, and that
    providers beside the CPU have it note which node is whose.

    Raises :class:`ExecutionError` naming the node that onnxruntime refuses.
    """
    chosen = normalize(providers)
    stream = _own_stream(chosen)
    passed = [_with_stream(p, stream) for p in chosen]
    if options is None:
        options = session_options()
    threads = options.intra_op_num_threads or os.cpu_count() or 1
    with_torch = uses_torch_kernels(model)
    shared: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if uses_custom_kernels(model):
        register(options)
        shared = kernels_for(threads, beside_torch=with_torch and threads > 1)
    form: CompiledForm | None = None
    with serialized(model) as source, shared:
        session = None
        if keep is not None and any(is_plug_in(p.name) for p in passed):
            form = CompiledForm(source, passed, options, beside)
            session = form.load(_builder(passed, options), ort_errors())
            if session is None:  # it is compiled now
                session = form.make(lambda own: _builder(passed, own)(source), keep, ort_errors())
        if session is None:
            session = _build(source, passed, options, model)
    give_back_after(session, options)
    if stream is not None:
        weakref.finalize(session, _wait_for_the_last_run, session._sess, stream)
    sequential = load_onnxruntime().ExecutionMode.ORT_SEQUENTIAL
    known = {p.name: p for p in chosen}
    really = tuple(known.get(name, Provider(name)) for name in session.get_providers())
    placement = None if form is None else form.placement
    if placement is None:
        placement = _placement(session, really)
    if form is not None:
        form.keep(placement)
    return Session(
        ort=session,
        providers=really,
        placement=placement,
        input_types={i.name: i.type for i in session.get_inputs()},
        output_types={o.name: o.type for o in session.get_outputs()},
        nodes=_node_places(model),
        threads=threads,
        pooled=threads > 1 or options.execution_mode != sequential,
        beside_torch=with_torch,
        calls=calls_of(_call_numbers(model)),
        stream=stream,
    )


def _placement(
    session: onnxruntime.InferenceSession, providers: Sequence[Provider]
) -> Mapping[str, Mapping[str, int]] | None:
    told = getattr(session, _TELLING, None)
    if told is None or len(providers) < 2:
        return None
    found: dict[str, Counter[str]] = {}
    for part in told():
        types = (qualified(n.domain, n.op_type) for n in part.get_nodes())
        found.setdefault(part.ep_name, Counter()).update(types)
    return {name: dict(types.most_common()) for name, types in found.items()}


def _call_numbers(model: Model) -> list[int]:
    """The calls of torch that a model names."""
    if isinstance(model, bytes):
        return []
    if is_message(model):
        calls = [n for n in model.graph.node if n.op_type == TORCH_CALL]
        return [a.i for n in calls for a in n.attribute if a.name == "call"]
    found = [n for n in model.graph if n.op_type == TORCH_CALL]
    return [n.attributes["call"].as_int() for n in found if "call" in n.attributes]


def try_session(model: Model, provider: str) -> None:
    """Build a session of a model as it stands, and drop it.

    Raises :class:`ExecutionError` when there can be none.
    """
    options = session_options(optimization_level="disable")
    create_session(model, providers=(provider,), options=options)


def _own_stream(providers: Sequence[Provider]) -> torch.cuda.Stream | None:
    # NOTE: torch's default stream has no handle (0), which onnxruntime reads as "no stream given":
    # it would make its own, unordered with torch. A stream of the session's own also stays right
    # when the user changes torch's current stream later.
    for provider in providers:
        if provider.name == CUDA and "user_compute_stream" not in provider.options:
            return torch.cuda.Stream(int(provider.options.get("device_id", 0)))
    return None


def _wait_for_the_last_run(native: object, stream: torch.cuda.Stream) -> None:
    """Let a session on CUDA end when its stream has done what is queued there.

    NOTE: the last thing that a run queues, after it has waited for the device, gives buffers back
    to an allocator. If the session has ended by then the allocator ends with it, in a thread of
    CUDA that may not free memory, and the process is aborted. A session whose device has failed,
    or that a fork has, cannot end either: it stays.
    """
    try:
        stream.synchronize()
    except RuntimeError:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


def _with_stream(provider: Provider, stream: torch.cuda.Stream | None) -> Provider:
    if stream is None or provider.name != CUDA:
        return provider
    handle = str(stream.cuda_stream)
    return Provider(CUDA, {**provider.options, "user_compute_stream": handle})


_WRONG = frozenset({"GatherToSliceFusion", "NoopElimination"})
"""Optimizers of onnxruntime that change results: a Slice reads other places than a Gather by a
Range where numbers are below zero (none of ``x[arange(n - 1, -1, -1)]``), and what is too large
is no error of it; and -0.0 + 0.0 is 0.0."""


def _build(
    source: bytes | str,
    providers: Sequence[Provider],
    options: onnxruntime.SessionOptions,
    model: Model,
    without: frozenset[str] = _WRONG,
) -> onnxruntime.InferenceSession:
    """Build a session, `without` some of onnxruntime's optimizers."""
    build = _builder(providers, options, without)
    try:
        return build(source)
    except ort_errors() as error:
        made = _MADE_BY.search(str(error))
        if made is not None and made[1] not in without:
            return _build(source, providers, options, model, without | {made[1]})
        names = ", ".join(p.name for p in providers)
        about_types = (bindings().NotImplemented, bindings().InvalidGraph)
        no_kernel = isinstance(error, about_types) or _NOBODYS.search(str(error))
        raise (NoKernelError if no_kernel else ExecutionError)(
            f"{describe()} cannot build a session on {names}: "
            f"{explain_failure(error, _node_places(model))}"
        ) from error


def _builder(
    providers: Sequence[Provider],
    options: onnxruntime.SessionOptions,
    without: frozenset[str] = _WRONG,
) -> Callable[[bytes | str], onnxruntime.InferenceSession]:
    """What makes a session of a model, or raises what onnxruntime does."""
    ort = load_onnxruntime()
    tells = hasattr(ort.InferenceSession, _TELLING) and options not in _told
    if tells and any(p.name != CPU for p in providers):
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        _told.add(options)  # a second time onnxruntime prints about it
    # Without it a provider that fails is printed about and silently replaced.
    how: dict[str, Any] = {"disabled_optimizers": set(without), "enable_fallback": False}
    if any(is_plug_in(p.name) for p in providers):
        _take_by_device(providers, options)
    else:
        how["providers"] = [p.name for p in providers]
        how["provider_options"] = [_of_built_in(p) for p in providers]
    return functools.partial(ort.InferenceSession, sess_options=options, **how)


def _of_built_in(provider: Provider) -> dict[str, str]:
    """The options of a provider that is built in: OpenVINO's has its device among them."""
    if provider.name == OPENVINO and provider.device is not None:
        return {"device_type": provider.device.upper(), **provider.options}
    return dict(provider.options)


_told: weakref.WeakSet[onnxruntime.SessionOptions] = weakref.WeakSet()
"""Options that say it already that sessions tell which node is whose."""

_taken: weakref.WeakKeyDictionary[onnxruntime.SessionOptions, tuple[Provider, ...]] = (
    weakref.WeakKeyDictionary()
)
"""The providers that options name themselves: adding them twice is an error."""


def _take_by_device(providers: Sequence[Provider], options: onnxruntime.SessionOptions) -> None:
    """Name providers in the options: plug-ins are not found where sessions look for names."""
    if (taken := _taken.get(options)) is not None:
        if taken != tuple(providers):
            raise OptionError(
                "ort_session_options were used for a session on "
                f"{', '.join(p.name for p in taken)}: give other providers options of their own."
            )
        return
    for provider in providers:
        if is_plug_in(provider.name):
            options.add_provider_for_devices(devices_of(provider), dict(provider.options))
        elif provider.name != CPU:  # which is there in any case
            options.add_provider(provider.name, dict(provider.options))
    _taken[options] = tuple(providers)


_NOBODYS = re.compile(r"Provider type for \S+ node with name '[^']*' is not set")
"""How a session on CUDA says that there is no kernel for a node, neither there nor on the CPU."""

_MADE_BY = re.compile(r"Failed to find kernel .*?\(node:'[^']*/(\w+)/'")
"""The optimizer of onnxruntime that made a node for which it has no kernel: 1.19 fuses transposed
products of float64."""


def ort_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: its own types do not share a base class."""
    own = (v for v in vars(bindings()).values() if isinstance(v, type))
    return (*(v for v in own if issubclass(v, Exception)), RuntimeError, ValueError)


_NODE = re.compile(r"(?:node with name|node|[Nn]ode:|Name:)\s*\(?'?([^\s'\"()]+)")
_IMPLEMENTATION = re.compile(r"implementation for ([\w.:]+)\(\d+\)")


def explain_failure(error: BaseException, nodes: Mapping[str, str]) -> str:
    """Onnxruntime's words, then what is known about the node they name."""
    text = str(error).strip()
    named = failed_nodes(error)
    known = [f"Node {name!r} is {nodes[name]}." for name in named if name in nodes]
    if not known and (op := _IMPLEMENTATION.search(text)):
        wanted = op.group(1).split(":")[-1]
        known = [
            f"Node {name!r} is {place}."
            for name, place in nodes.items()
            if place.split("(")[0].split(".")[-1] == wanted
        ][:3]
    return " ".join([text, *dict.fromkeys(known)])


def failed_nodes(error: BaseException) -> list[str]:
    """The nodes that an error of onnxruntime names."""
    return [n.rstrip(".,:") for n in _NODE.findall(str(error))]


def _node_places(model: Model) -> Mapping[str, str]:
    if isinstance(model, StoredModel):
        return _PlacesInFile(model.path)
    if isinstance(model, bytes):
        return {}
    if is_message(model):
        nodes = [n for n in model.graph.node if n.name]
        read = [(n.input, {p.key: p.value for p in n.metadata_props}) for n in nodes]
    else:
        nodes = [n for n in model.graph.all_nodes() if n.name]
        read = [
            ([None if v is None else v.name for v in n.inputs], n.metadata_props) for n in nodes
        ]
    operators = [qualified(n.domain, n.op_type) for n in nodes]
    return {n.name: _place(o, *r) for n, o, r in zip(nodes, operators, read, strict=True)}


class _PlacesInFile(Mapping[str, str]):
    """What is known of the nodes of a model in a file, which is read when somebody asks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @functools.cached_property
    def _places(self) -> Mapping[str, str]:
        try:
            return _node_places(read_model(self._path))
        except (OSError, ValueError):  # it is gone, or damaged: less is said
            return {}

    def __getitem__(self, name: str) -> str:
        return self._places[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _place(operator: str, inputs: Iterable[str | None], metadata: Mapping[str, str]) -> str:
    call = f"{operator}({', '.join(name or '' for name in inputs)})"
    origin = ", ".join(f"{key}={value}" for key, value in metadata.items() if value)
    return f"{call}, from {origin}" if origin else call


def session_settings(
    options: OrtBackendOptions, model: Any, providers: Iterable[ProviderSpec]
) -> Any:
    """The ``SessionOptions`` that a user gave, or new ones.

    NOTE: threads that spin while a kernel of torch computes in the threads of OpenMP take half of
    its time.
    """
    if (given := options.ort_session_options) is not None:
        names_some = getattr(given, "has_providers", bool)()
        if names_some and given not in _taken:
            raise OptionError(
                "ort_session_options name execution providers, or a policy for them: name those "
                "in preferred_execution_providers, which the graphs are written for."
            )
        return given
    spinning = options.spinning
    if spinning == "stop" and uses_torch_kernels(model):
        spinning = "off"
    policy = ThreadPolicy(intra_op_threads=options.intra_op_threads, spinning=spinning)
    arena = options.arena
    if arena == "shared" and any(p.name != CPU for p in normalize(providers)):
        arena = "session"  # that of the device plans its memory once, which sharing forbids
    return session_options(
        optimization_level=options.ort_optimization_level, threads=policy, arena=arena
    )


def new_settings(
    options: OrtBackendOptions, model: Any, providers: Iterable[ProviderSpec]
) -> Callable[[], Any] | None:
    """What makes such settings again, for a session that is kept on disk; None where none is to
    be, or the user gave the settings."""
    if not options.cache or options.ort_session_options is not None:
        return None
    return functools.partial(session_settings, options, model, providers)
