"""A fault in the middle of the work: what the caller sees, and that the next call works."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dort_rewriter import ExecutionError, OptionError, OrtBackend, install, installed, uninstall
from dort_rewriter.backends import onnxrt_graphs
from dort_rewriter.compiler import building
from dort_rewriter.plan import graph_plan
from dort_rewriter.runtime import providers
from dort_rewriter.runtime.disk_cache import DiskCache
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session, session_options
from tests.backends.lifetime import killed_while_writing
from tests.backends.ways import compile_strictly
from tests.gates.sources import ROOT
from tests.runtime.graphs import parse, result, signature, tensor

X = torch.randn(4, 8)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (onnxrt_graphs, "compile_with_aot"),
        (graph_plan, "Chooser"),
        (graph_plan, "plan_outputs"),
        (building, "convert_graph"),
        (building, "optimize"),
        (building, "try_dump"),
        (building, "create_session"),
        (building, "Executor"),
    ],
)
def test_an_interrupt_while_compiling_reaches_the_caller(
    module: Any, name: str, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, interrupts = getattr(module, name), [KeyboardInterrupt()]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if interrupts:
            raise interrupts.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, interrupted)
    compiled = torch.compile(model, backend=OrtBackend({"cache": False}))
    with pytest.raises(KeyboardInterrupt):
        compiled(X)
    torch.testing.assert_close(compiled(X), model(X))


def test_an_interrupt_while_running_reaches_the_caller(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, interrupts = onnxrt_graphs._watch, [KeyboardInterrupt()]

    def interrupted(backend: Any, graph: Any, run: Any) -> Any:
        def call(args: list[Any]) -> Any:
            if interrupts:
                raise interrupts.pop()
            return run(args)

        return watch(backend, graph, call)

    monkeypatch.setattr(onnxrt_graphs, "_watch", interrupted)
    compiled = torch.compile(model, backend=(backend := OrtBackend()))
    with pytest.raises(KeyboardInterrupt):
        compiled(X)
    torch.testing.assert_close(compiled(X), model(X))
    assert backend.execution_count == 1


def test_a_session_out_of_memory_is_an_error_of_python() -> None:
    """The sizes that do not fit are refused; the session goes on with others."""
    body = "(float[N,M] x) => (float[N,N] y) { t = Transpose<perm=[1,0]>(x) y = MatMul(x, t) }"
    session = create_session(parse(body), options=session_options())
    run = Executor(session, signature([tensor("x", shape=("N", "M"))], [result("y")]))
    too_large = torch.zeros(1 << 22, 1)  # its product takes 64 TB
    for _ in range(2):
        with pytest.raises(ExecutionError, match=r"(?i)alloc|memory"):
            run(too_large)
        (y,) = run(torch.ones(2, 3))
        torch.testing.assert_close(y, torch.full((2, 2), 3.0))


def test_what_is_compiled_outlives_the_hook(model: nn.Module) -> None:
    """Taken back while models live: what they have is used, and new sizes are compiled."""
    with installed():
        compiled, _ = compile_strictly(model, fallback=True)
        torch.testing.assert_close(compiled(X), model(X))
    uninstall()
    try:
        got = torch.autograd.grad(compiled(X).sum(), list(model.parameters()))
    finally:
        install()  # as the other tests of this process found it
    torch.testing.assert_close(got, torch.autograd.grad(model(X).sum(), list(model.parameters())))


def test_a_transform_that_raises_costs_one_warning(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil(proto: Any) -> None:
        raise ExecutionError("a transform of the user fails")

    compiled = torch.compile(model, backend=OrtBackend({"pre_ort_model_transforms": (spoil,)}))
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"), torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(X), model(X))
    assert len([r for r in caplog.records if r.name.startswith("dort_rewriter")]) == 1


def test_a_dump_that_cannot_be_written_costs_the_dump(
    model: nn.Module,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Forward and backward run in their sessions; one warning says it."""
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "no" / "such" / "folder_"))
    compiled, backend = compile_strictly(model, fallback=True)
    with caplog.at_level(logging.WARNING, logger="dort_rewriter"):
        got = torch.autograd.grad(compiled(X).sum(), list(model.parameters()))
    torch.testing.assert_close(got, torch.autograd.grad(model(X).sum(), list(model.parameters())))
    assert backend.execution_count == 2
    (said,) = [r.getMessage() for r in caplog.records if r.name.startswith("dort_rewriter")]
    assert "ONNXRT_DUMP_PATH must be the prefix of files" in said


@pytest.mark.parametrize("name", ["CUDAExecutionProvider", "NoSuchExecutionProvider"])
def test_a_provider_that_is_missing_is_left_out(
    name: str, model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    if name in providers.available():
        pytest.skip(f"{name} is here")
    providers._warn.cache_clear()
    backend = OrtBackend({"preferred_execution_providers": [name]})
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
    (found,) = [r.message for r in caplog.records if "is not available" in r.message]
    assert name in found
    assert found.endswith("It is left out.")
    with torch.no_grad():
        torch.testing.assert_close(compiled(X), model(X))
    assert backend.execution_count == 2


@pytest.mark.parametrize("options", [{"fallback": False}, {}])
def test_a_provider_that_has_to_be_there(options: dict[str, Any], model: nn.Module) -> None:
    """The error reaches the program as it is."""
    named = "NoSuchExecutionProvider" if options else ("NoSuch", {"required": True})
    wanted = {"preferred_execution_providers": [named], **options}
    compiled = torch.compile(model, backend="onnxrt", options=wanted)
    with torch.no_grad(), pytest.raises(OptionError, match="is not available with onnxruntime"):
        compiled(X)


def test_an_argument_on_another_device() -> None:
    """What eager mode gives there; the session is still there for the others."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).tanh()

    compiled = torch.compile(double, backend=(backend := OrtBackend({"fallback": True})))
    for x in (X, X.to("meta"), X):
        got, wanted = compiled(x), double(x)
        assert (got.device, got.shape) == (wanted.device, wanted.shape)
    assert backend.execution_count == 2
    torch.testing.assert_close(compiled(X), double(X))


LIMITED = """
import torch
import onnxruntime as ort
from dort_rewriter import ExecutionError, OrtBackend

kind, place = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, ort.OrtMemType.DEFAULT
memory = ort.OrtMemoryInfo("Cpu", kind, 0, place)
ort.create_and_register_allocator(memory, ort.OrtArenaCfg(2**24, -1, -1, -1))
options = ort.SessionOptions()
options.log_severity_level = 4
options.add_session_config_entry("session.use_env_allocators", "1")
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
for fallback in (False, True):
    torch._dynamo.reset()
    backend = OrtBackend({"ort_session_options": options, "fallback": fallback})
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (4, 2**17, 6, 2**17, 8):
        x = torch.ones(rows, 8)
        try:
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), model(x))
        except ExecutionError:
            print("refused", rows)
    print("ran", backend.execution_count)
"""


@pytest.mark.alternating
@pytest.mark.load_sensitive
def test_a_limited_arena_that_is_full() -> None:
    """An error of Python without fallback, torch with it; the next call works."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused 131072", "refused 131072", "ran 3", "ran 1"]


@pytest.mark.alternating
@pytest.mark.load_sensitive
def test_what_a_killed_process_wrote_is_whole(tmp_path: Path) -> None:
    """Whatever stands under its name can be read, whenever the process died.

    NOTE: the library of kernels has a test of its own, where it is compiled.
    """
    command = [sys.executable, "-m", "tests.backends.lifetime.killed_while_writing", str(tmp_path)]
    for moment in range(4):
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            time.sleep(0.03 * moment)  # somewhere in the middle: each moment is a case
            process.kill()
    cache = DiskCache(tmp_path / killed_while_writing.CACHE)
    found = [cache.get(f"{number:064x}") for number in range(5)]
    assert set(found) <= {killed_while_writing.CONTENT, None}
    assert killed_while_writing.CONTENT in found
    dumped = list(tmp_path.glob(f"{killed_while_writing.DUMP}*.onnx"))
    assert {path.read_bytes() for path in dumped} == {killed_while_writing.CONTENT}
    reports = list((tmp_path / killed_while_writing.REPORTS).glob("problem_*"))
    names = {"graph.txt", "problem.json", "reproduce.py", "test_case_0"}
    assert [p for p in reports if {q.name for q in p.iterdir()} != names] == []
    assert len(reports) >= 4
    assert all(json.loads((p / "problem.json").read_text())["problem"] for p in reports)
