"""Calls on CUDA, without a device: a session that is none is given what CUDA's would be."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from dort_rewriter.errors import ExecutionError, NoKernelError
from dort_rewriter.ort_module import bindings
from dort_rewriter.runtime import executor, session
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.providers import CPU, CUDA, Provider, ort_device
from dort_rewriter.runtime.session import Session, create_session
from dort_rewriter.signature import InputSlot, OutputSlot
from tests.runtime.graphs import F32, parse, signature

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)
DLPACK_CUDA = 2
ASYNCHRONOUS = "disable_synchronize_execution_providers"


class OnCuda(torch.Tensor):
    """A tensor of the CPU that says it is on the second device."""

    is_cuda = True
    is_cpu = False
    device = SECOND

    def get_device(self) -> int:
        return self.device.index


def on_cuda(values: Sequence[float]) -> OnCuda:
    return torch.tensor(values).as_subclass(OnCuda)


class Ort:
    """What onnxruntime's session does, by torch: the negative, on the devices that were asked."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.fed: list[torch.Tensor] = []
        self.options: Any = None
        self.devices: Any = None
        self.kept: list[torch.Tensor] = []
        self.error: Exception | None = None

    def run_with_ortvaluevector(self, options: Any, *rest: Any) -> None:
        names, feeds, wanted, fetches, devices = rest
        self.events.append("run")
        if self.error is not None:
            raise self.error
        assert names == ["x"]
        self.options, self.devices = options, devices
        self.fed = [read(feeds.dlpack_at(i)) for i in range(len(names))]
        for _, device in zip(wanted, devices, strict=True):
            made = -self.fed[0]
            self.kept.append(made)
            addresses, shapes = [made.data_ptr()], [tuple(made.shape)]
            fetches.push_back_batch([None], addresses, [np.float32], shapes, [device])


PLACES: list[tuple[int, int]] = []
"""The devices of the capsules that were read, as dlpack numbers them."""


def read(capsule: object) -> torch.Tensor:
    """Take a capsule whose memory is the CPU's, wherever it says it is."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    place = address(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)
    device = (ctypes.c_int32 * 2).from_address(place)
    PLACES.append((device[0], device[1]))
    device[0], device[1] = 1, 0
    return torch._C._from_dlpack(capsule)


class Stream:
    """A stream that writes down for what it waits."""

    def __init__(self, name: str, events: list[str], device: torch.device = SECOND) -> None:
        self.name, self.events, self.device = name, events, device

    def wait_stream(self, other: Stream) -> None:
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(executor, "capsule_to_tensor", read)

    def current(device: torch.device) -> Stream:
        assert device == SECOND
        return Stream("torch", found)

    monkeypatch.setattr(torch.cuda, "current_stream", current)
    PLACES.clear()
    return found


def compiled(events: list[str], results: Sequence[torch.device]) -> tuple[Executor, Ort]:
    """A graph on the second device, with results on these."""
    ort = Ort(events)
    names = [f"y{i}" for i in range(len(results))]
    made = Session(
        ort=ort,  # type: ignore[arg-type]
        providers=(Provider(CUDA, {"device_id": "1"}), Provider(CPU)),
        input_types={"x": "tensor(float)"},
        output_types=dict.fromkeys(names, "tensor(float)"),
        stream=Stream("session", events),  # type: ignore[arg-type]
    )
    given = InputSlot(name="x", kind="tensor", dtype=F32, shape=("N",), device=SECOND)
    outputs = [
        OutputSlot(kind="tensor", source="model", name=name, index=i, dtype=F32, device=device)
        for i, (name, device) in enumerate(zip(names, results, strict=True))
    ]
    return Executor(made, signature([given], outputs)), ort


def test_memory_of_a_device_is_handed_over_as_it_is(events: list[str]) -> None:
    run, ort = compiled(events, [SECOND])
    x = on_cuda([1.0, 2.0])
    for _ in range(3):  # the like of the arguments is known from the second call on
        (y,) = run(x)
        assert y.tolist() == [-1.0, -2.0]
    assert ort.fed[0].data_ptr() == x.data_ptr(), "it was copied"
    assert {*PLACES} == {(DLPACK_CUDA, 1)}
    assert [(d.device_type(), d.device_id()) for d in ort.devices] == [(1, 1)]


def test_runs_are_ordered_against_the_stream_of_torch(events: list[str]) -> None:
    run, ort = compiled(events, [SECOND])
    run(on_cuda([1.0]))
    assert events == ["session waits for torch", "run", "torch waits for session"]
    with pytest.raises(RuntimeError, match=ASYNCHRONOUS):  # it would never give memory back
        ort.options.get_run_config_entry(ASYNCHRONOUS)


def test_a_result_on_the_cpu_is_waited_for(events: list[str]) -> None:
    run, ort = compiled(events, [SECOND, torch.device("cpu")])
    run(on_cuda([1.0]))
    assert PLACES == [(DLPACK_CUDA, 1), (DLPACK_CUDA, 1), (1, 0)]
    with pytest.raises(RuntimeError, match=ASYNCHRONOUS):
        ort.options.get_run_config_entry(ASYNCHRONOUS)


def test_an_error_of_the_device_is_ours(events: list[str]) -> None:
    run, ort = compiled(events, [SECOND])
    ort.error = RuntimeError("CUDA failure 700: an illegal memory access was encountered")
    with pytest.raises(ExecutionError, match="ONNX Runtime failed: CUDA failure 700"):
        run(on_cuda([1.0]))


@pytest.mark.parametrize("elsewhere", [torch.device("cpu"), FIRST])
def test_another_device_is_refused(events: list[str], elsewhere: torch.device) -> None:
    run, _ = compiled(events, [SECOND])
    x = on_cuda([1.0]) if elsewhere is FIRST else torch.ones(1)
    if elsewhere is FIRST:
        x.device = FIRST  # type: ignore[misc]
    with pytest.raises(ExecutionError, match=f"{elsewhere}, the graph was compiled for .*cuda:1"):
        run(x)
    assert events == []


def test_a_strided_tensor_is_made_dense_on_its_device(events: list[str]) -> None:
    run, ort = compiled(events, [SECOND])
    x = on_cuda([1.0, 2.0, 3.0, 4.0])[::2]
    (y,) = run(x)
    assert y.tolist() == [-1.0, -3.0]
    assert ort.fed[0].data_ptr() != x.data_ptr()
    assert {*PLACES} == {(DLPACK_CUDA, 1)}


def test_memory_of_cuda_is_not_taken_for_webgpu() -> None:
    device: Any = ort_device(SECOND)
    x = torch.ones(2)
    vector = bindings().OrtValueVector()
    vector.push_back_batch([None], [x.data_ptr()], [np.float32], [(2,)], [device])
    assert vector[0].device_name().lower() == "cuda"


def test_the_session_gets_the_handle_of_a_stream_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    class Own:
        cuda_stream = 4242

        def __init__(self, device: int) -> None:
            made.append(device)

    monkeypatch.setattr(torch.cuda, "Stream", Own)
    chosen = [Provider(CUDA, {"device_id": "1"}), Provider(CPU)]
    stream = session._own_stream(chosen)
    assert made == [1]
    passed = [session._with_stream(p, stream) for p in chosen]
    assert passed[0].options == {"device_id": "1", "user_compute_stream": "4242"}
    assert passed[1] == Provider(CPU)
    assert session._own_stream([Provider(CUDA, {"user_compute_stream": "7"})]) is None
    assert made == [1], "the user has one"


class Native:
    """Stands in for a session of onnxruntime."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def __del__(self) -> None:
        self.events.append("the session ends")


class Waited:
    """Stands in for the stream of a session."""

    def __init__(self, events: list[str], error: str = "") -> None:
        self.events, self.error = events, error

    def synchronize(self) -> None:
        self.events.append("the stream is waited for")
        if self.error:
            raise RuntimeError(self.error)


@pytest.mark.parametrize("error", ["", "CUDA error: device-side assert triggered"])
def test_a_session_ends_when_its_stream_has_done_its_work(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """And stays where its device has failed: its end would be the end of the process."""
    seen: list[str] = []
    build = session._build

    def build_with_a_witness(*args: Any) -> Any:
        made = build(*args)
        made._sess = Native(seen)
        return made

    monkeypatch.setattr(session, "_build", build_with_a_witness)
    monkeypatch.setattr(session, "_own_stream", lambda providers: Waited(seen, error))
    held = create_session(parse("(float[N] x) => (float[N] y) { y = Relu(x) }"))
    assert seen == []
    del held
    gc.collect()
    assert seen == ["the stream is waited for", *(["the session ends"] if not error else [])]


def test_what_a_session_on_cuda_says_of_types_without_a_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no error of its own for them: these are the words of 1.31."""
    text = (
        "Exception during initialization: transformer_memcpy.cc:253 !node_provider_type.empty() "
        "was false. Provider type for Equal node with name 'node_Equal_1' is not set."
    )

    def fail(*args: object, **kwargs: object) -> None:
        raise bindings().Fail(text)

    monkeypatch.setattr(session.load_onnxruntime(), "InferenceSession", fail)
    with pytest.raises(NoKernelError, match="'node_Equal_1' is not set"):
        create_session(parse("(bfloat16[N] x) => (bool[N] y) { y = Equal(x, x) }"))
