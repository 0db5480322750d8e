"""What runs at each call of a compiled graph.

NOTE: everything known when the graph is compiled is computed when the executor is built; a call
builds no dictionary, reads no environment and logs nothing. ``scripts/bench_overhead.py`` measures
what is left.

Arguments like those of an earlier call are known by one look of torch's C++ at all of them: each
tensor must be dense memory of one type on one device. To ask torch for each of that takes three
times as long as ``TensorGuards``, which compares with tensors of an earlier call: their class,
dispatch keys (device, layout, negation bit), types, sizes and strides. Dynamo's guards rest on the
same comparison. A no means that Python has to look, nothing else: other sizes and other classes
are welcome.
"""

from __future__ import annotations

import functools
import math
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dort_rewriter.dtypes import CONVERTIBLE
from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.torch_calls import take_failure
from dort_rewriter.ort_module import bindings, load_onnxruntime
from dort_rewriter.runtime.addressed_call import (
    AddressedLines,
    addressed_constants,
    can_give_addresses,
)
from dort_rewriter.runtime.ort_values import (
    DLPACK_TYPES,
    CallPlan,
    any_to_capsule,
    as_pairs,
    capsule_to_any_tensor,
    capsule_to_tensor,
    dense,
    element_type,
    empty_address,
    plan_call,
    to_capsule,
    unmade_value,
)
from dort_rewriter.runtime.providers import CPU, ort_device
from dort_rewriter.runtime.session import Session, explain_failure, failed_nodes, ort_errors
from dort_rewriter.runtime.straightline import (
    Allocation,
    CallLines,
    fetch_order,
)
from dort_rewriter.runtime.threads import PAUSE_SOFT, omp_pause, shortest_run
from dort_rewriter.runtime.writing import Apart, Kept
from dort_rewriter.signature import (
    Addresses,
    GraphSignature,
    InputSlot,
    OutputSlot,
    Writes,
    inverse_order,
)

Shapes = tuple[Sequence[int], ...]


class KnownArguments:
    """What the arguments of an earlier call were like, and the shapes to pass on for them.

    Calls from several threads may overlap: ``latest`` is replaced as a whole.
    """

    __slots__ = ("_back", "_scalars", "_strange", "latest")

    def __init__(
        self, scalars: int = 0, orders: Sequence[tuple[int, ...] | None] | None = None
    ) -> None:
        """Know nothing yet; the shapes of so many numbers follow those of the tensors.

        ``orders`` is how the dimensions of each argument were reordered for the session.
        """
        self._back = [None if o is None else inverse_order(o) for o in orders or ()]
        self.latest: tuple[Callable[..., bool], Shapes] = (_unknown, ())
        self._scalars: Shapes = ((),) * scalars
        self._strange = 0

    def learn(self, tensors: Sequence[torch.Tensor]) -> Shapes:
        """The shapes of tensors found fit for the session.

        Their like is known from then on, at the first, second, fourth, eighth such call: sizes
        that always vary are not worth it, one smaller batch now and then does not stand in the way
        of the others for long.
        """
        shapes = (*(t.shape for t in tensors), *self._scalars)
        self._strange += 1
        if self._strange & (self._strange - 1):
            return shapes
        guards = _tensor_guards()
        # The guards keep the address of a class, not the class: only those that stay.
        if guards is not None and all(type(t) in _LASTING for t in tensors):
            self.latest = (_check(guards, self._as_given(tensors)), shapes)
        return shapes

    def _as_given(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Tensors as the arguments are that need no copy."""
        if not any(self._back):
            return tensors
        pairs = zip(tensors, self._back, strict=True)
        return [t if back is None else t.permute(back) for t, back in pairs]


_LASTING = frozenset({torch.Tensor, torch.nn.Parameter})


def _unknown(*arguments: Any) -> bool:
    return False


def _check(guards: Any, tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    # NOTE: without these keywords torch crashes.
    return guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check


@functools.cache
def _tensor_guards() -> Any:
    """Torch's class, or None where it is not what it was: it is no public interface."""
    guards = getattr(torch._C._dynamo.guards, "TensorGuards", None)
    if guards is None:
        return None
    try:
        check = _check(guards, [torch.zeros(2, 3)])
        others = (
            torch.zeros(2, 4),
            torch.zeros(3, 2).t(),
            torch._neg_view(torch.zeros(2, 3)),
            torch.zeros(2, 3, dtype=torch.float64),
            torch.zeros(2, 3, device="meta"),
            torch.zeros(2, 3).to_sparse(),
        )
        right = check(torch.ones(2, 3)) and not any(check(other) for other in others)
    except (TypeError, RuntimeError):
        return None
    return guards if right else None


class Executor:
    """A compiled graph: ``executor(*arguments)`` returns the tuple of its results.

    ``boxed`` is a bare function, for callers that count microseconds: it takes the list of
    arguments and empties it once the session has run, so that inputs without another owner are
    freed before the results are made. If the run fails the list is left as it was. Calls from
    several threads may overlap: nothing is written to the executor but the time that the last run
    took.
    """

    boxed: Callable[[list[Any]], tuple[Any, ...]]
    source: str
    """The generated text of ``boxed``."""

    def __init__(
        self,
        session: Session | None,
        signature: GraphSignature,
        *,
        writes: Writes | None = None,
        addresses: Addresses | None = None,
        preallocate: bool = False,
        pause_torch_threads: bool = True,
        name: str = "ONNX Runtime",
    ) -> None:
        """Prepare the calls; ``session`` may be None when the model computes nothing.

        ``name`` is what ``torch.profiler`` calls a run.

        What ``writes`` names is written to the memory of arguments, and these are returned, when
        they are fed as they are and do not overlap; otherwise the results are new tensors. With
        ``addresses`` the model takes these, and all its results are among what is written.
        With ``preallocate`` torch makes the tensors of the results, where all have fixed sizes.
        With ``pause_torch_threads`` those of torch do not spin beside several of the session.
        """
        if session is None and signature.output_names:
            raise ExecutionError(
                f"A session is needed to compute {', '.join(signature.output_names)}."
            )
        self.session = session
        self.signature = signature
        if session is not None and signature.output_names:
            _check_interface(session, signature, addresses)
        plan = plan_call(signature)
        allocated = _allocations(session, signature) if preallocate else ()
        if writes is None or session is None or allocated or plan.capsules:
            writes = Writes()
        constants = _call_constants(session, signature, plan, allocated)
        if session is not None and writes.arguments:
            constants |= _write_constants(session, signature, plan, writes)
        if session is not None:
            constants |= _profiling(session, name)
        pause = pause_torch_threads and _shares_cores(session)
        if addresses is not None:
            if not can_give_addresses(signature, writes, addresses):
                raise ExecutionError("The model takes addresses of what has none.")
            constants |= addressed_constants(signature, plan, writes, addresses)
            lines: CallLines = AddressedLines(signature, plan, writes, addresses, pause)
        else:
            lines = CallLines(signature, plan, allocated, writes, pause)
        written = lines.write_call()
        self.source = written.text
        self.boxed = written.function("call", constants)
        self.boxed._boxed_call = True  # type: ignore[attr-defined]  # read by torch

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Run the graph."""
        return self.boxed(list(arguments))

    def __repr__(self) -> str:
        given, results = len(self.signature.inputs), len(self.signature.outputs)
        return f"Executor({given} arguments -> {results} results)"


def _shares_cores(session: Session | None) -> bool:
    """Whether threads of torch's OpenMP can stand in the way of those of a session."""
    if session is None or session.threads == 1 or omp_pause() is None:
        return False
    if session.beside_torch:  # which needs these threads at once
        return False
    return {p.name for p in session.providers} == {CPU}


def _allocations(session: Session | None, signature: GraphSignature) -> tuple[Allocation, ...]:
    """What torch can make for the outputs of a model: of all of them, or of none."""
    if session is None:
        return ()
    slots = {s.name: s for s in signature.outputs if s.source == "model"}
    shapes = {o.name: o.shape for o in session.ort.get_outputs()}
    found = []
    for name in signature.output_names:
        slot, shape = slots[name], shapes[name]
        fixed = all(isinstance(d, int) and d > 0 for d in shape)
        dtype = slot.made_dtype
        if not fixed or dtype is None or dtype in DLPACK_TYPES:
            return ()
        found.append(Allocation(tuple(shape), dtype, slot.device))
    return tuple(found)


def _call_constants(
    session: Session | None,
    signature: GraphSignature,
    plan: CallPlan,
    allocated: Sequence[Allocation],
) -> dict[str, Any]:
    """What the generated code refers to, besides its own constants."""
    if session is None:
        return {}
    slots = [signature.inputs[i] for i in plan.feed_order]
    addressed = slots[: len(slots) - len(plan.capsules)]
    read = [s.read_dtype for s in addressed]
    made = [slot for slot in signature.outputs if slot.source == "model"]
    return {
        "OrtValueVector": bindings().OrtValueVector,
        "run": session.ort.run_with_ortvaluevector,
        "OPTIONS": load_onnxruntime().RunOptions(),
        "FEEDS": [s.name for s in slots],
        "FETCHES": list(signature.output_names),
        "FETCH_DEVICES": _fetch_devices(signature),
        "FETCH_NONES": (None,) * len(allocated),
        "FETCH_SHAPES": tuple(a.shape for a in allocated),
        "FETCH_TYPES": tuple(element_type(a.dtype) for a in allocated),
        "LAST": [math.inf],
        "NONES": (None,) * len(addressed),
        "PAUSE_SOFT": PAUSE_SOFT,
        "SHORTEST": shortest_run(),
        "TYPES": tuple(map(element_type, filter(None, read))),
        "KNOWN": KnownArguments(
            sum(map(len, plan.scalars.values())),
            [signature.inputs[i].read_order for i in plan.batched],
        ),
        "CALLS": session.calls,
        "DEVICES": tuple(ort_device(s.device) for s in addressed),
        "ERRORS": ort_errors(),
        "array": array,
        "dense": dense,
        "empty": torch.empty,
        "empty_address": empty_address,
        "failure": _Failure(session),
        "now": time.perf_counter,
        "pairs": as_pairs,
        "pause": omp_pause(),
        "to_capsule": any_to_capsule if _may_be_empty(signature.inputs) else to_capsule,
        "to_tensor": capsule_to_any_tensor if _may_be_empty(made) else capsule_to_tensor,
        **_stream_order(session),
    }


def _may_be_empty(slots: Iterable[InputSlot | OutputSlot]) -> bool:
    """Whether some argument or result has, or may have, no element."""
    return any(size == 0 or isinstance(size, str) for slot in slots for size in slot.shape)


def _write_constants(
    session: Session, signature: GraphSignature, plan: CallPlan, writes: Writes
) -> dict[str, Any]:
    """What the generated code refers to where it writes to arguments."""
    order = fetch_order(signature, writes.arguments)
    slots = [signature.inputs[i] for i in writes.arguments.values()]
    types = [signature.inputs[i].dtype for i in plan.batched]
    return {
        "APART": Apart(
            [1 if t is None else t.itemsize for t in types],
            [i in writes.arguments.values() for i in plan.batched],
        ),
        "FETCHES": order,
        "FED": Kept(),
        "FETCH_DEVICES": [ort_device(None)] * len(order),
        "UNMADE": unmade_value(session.ort),
        "WRITTEN": Kept(),
        "WRITE_NONES": (None,) * len(slots),
        "WRITE_TYPES": tuple(element_type(s.dtype) for s in slots if s.dtype is not None),
        "failure": _Failure(session, writes),
    }


def _profiling(session: Session, name: str) -> dict[str, Any]:
    """What shows a run to torch's profilers, while there is one."""
    run = session.ort.run_with_ortvaluevector

    def recorded(*arguments: Any) -> None:
        with torch.profiler.record_function(name):
            run(*arguments)

    return {"profiler_enabled": torch._C._autograd._profiler_enabled, "recorded": recorded}


def _fetch_devices(signature: GraphSignature) -> list[object]:
    slots = {s.name: s for s in signature.outputs if s.source == "model"}
    return [
        ort_device(slots[name].device if slots[name].kind == "tensor" else None)
        for name in signature.output_names
    ]


def _stream_order(session: Session) -> dict[str, Callable[[], None]]:
    """The two steps around a run on CUDA: it starts after torch's work and ends before.

    NOTE: onnxruntime waits for the device at the end of a run. It can be told not to, and then
    never gives back what its kernels have taken of the memory that a device reads directly; the
    process ends where a session is dropped that has (1.31).
    """
    if (stream := session.stream) is None:
        return {"before": _nothing, "after": _nothing}

    def before() -> None:
        stream.wait_stream(torch.cuda.current_stream(stream.device))

    def after() -> None:
        torch.cuda.current_stream(stream.device).wait_stream(stream)

    return {"before": before, "after": after}


def _nothing() -> None:
    pass


class _Failure:
    """Turns an error of a run into ours; a class, so that the session's notes are not copied."""

    def __init__(self, session: Session, writes: Writes | None = None) -> None:
        self.nodes = session.nodes
        self.checks = frozenset() if writes is None else writes.checks

    def __call__(self, error: Exception, wrote: bool = False) -> ExecutionError:
        if (raised := take_failure(str(error))) is not None:
            raise raised from None  # as torch says it: that is no failure of the session
        text = f"ONNX Runtime failed: {explain_failure(error, self.nodes)}"
        if not wrote or self.checks.intersection(failed_nodes(error)):
            return ExecutionError(text)
        return ExecutionError(
            f"{text} Arguments of the graph may have their new values by now, or parts of them.",
            unfinished=True,
        )


def _check_interface(
    session: Session, signature: GraphSignature, addresses: Addresses | None
) -> None:
    """Check names, types and devices once: at run time memory would be misread silently."""
    names, made = list(signature.input_names), set(signature.output_names)
    if addresses is not None:
        gone = {signature.inputs[p].name for p in addresses.places if isinstance(p, int)}
        names, made = [addresses.input, *(n for n in names if n not in gone)], {*addresses.done}
    given, wanted = set(names), set(session.input_types)
    if given != wanted or len(given) != len(names):
        raise ExecutionError(
            f"The model reads {sorted(wanted)}, the signature gives {sorted(names)}."
        )
    if missing := made - set(session.output_types):
        raise ExecutionError(f"The model does not compute {sorted(missing)}.")
    types = {**session.input_types, **session.output_types}
    slots: list[tuple[InputSlot | OutputSlot, torch.dtype | None]]
    slots = [(s, s.read_dtype) for s in signature.inputs]
    slots += [(s, s.made_dtype) for s in signature.outputs if s.source == "model"]
    for slot, dtype in slots:
        if not slot.name or dtype is None or slot.name not in types:
            continue  # it is no tensor of the model, or known by its address
        declared = types[slot.name]
        if declared != _ORT_TYPES.get(dtype):
            raise ExecutionError(
                f"{slot.name!r} is {declared} in the model and {dtype} in the signature."
            )
        on_device = slot.device is not None and slot.device.type != "cpu"
        if on_device and {p.name for p in session.providers} == {CPU}:
            assert slot.device is not None
            advice = "move the model to the CPU."
            if slot.device.type == "cuda":
                advice = f"install onnxruntime-gpu (`pip install dort-rewriter[gpu]`) or {advice}"
            raise ExecutionError(
                f"{slot.name!r} is on {slot.device}, the session runs on the CPU only: {advice}"
            )


_ORT_TYPES = {dtype: f"tensor({name.lower()})" for dtype, name in CONVERTIBLE.items()}
"""What onnxruntime calls tensors of each type."""
