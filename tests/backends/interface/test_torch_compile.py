"""What ``torch.compile`` takes besides a model: each row of ``docs/torch_compile.md`` is tried."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dort_rewriter import (
    CaptureError,
    OptionError,
    OrtBackend,
    onnx_custom_backend,
    onnx_debug_backend,
)
from dort_rewriter.backends.onnxrt import torch_compile_backend
from tests.gates.sources import ROOT

TRIALS: dict[str, Callable[[OrtBackend], Any]] = {}
"""By the row of the page; each gets a backend of its own."""


def row(name: str) -> Callable[[Callable[[OrtBackend], Any]], Callable[[OrtBackend], Any]]:
    def add(function: Callable[[OrtBackend], Any]) -> Callable[[OrtBackend], Any]:
        TRIALS[name] = function
        return function

    return add


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def takes(name: str) -> None:
    """Skip where this torch.compile has no such argument."""
    if name not in inspect.signature(torch.compile).parameters:
        pytest.skip(f"torch {torch.__version__} has no {name}")


def needs(holder: Any, name: str) -> Any:
    """An attribute of torch; skip where this torch has none."""
    if not hasattr(holder, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    return getattr(holder, name)


def serves(compiled: Any, model: Any, *rows: int) -> None:
    """Compare calls with eager mode."""
    for n in rows:
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x), model(x))


def graphs(backend: OrtBackend) -> int:
    return len(backend._all_ort_execution_info.execution_info_per_graph_module)


@row("`fullgraph=True`")
def _fullgraph(backend: OrtBackend) -> None:
    model = network()
    serves(torch.compile(model, backend=backend, fullgraph=True), model, 3)
    broken = torch.compile(lambda x: x if x.sum() > 0 else -x, backend=backend, fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        broken(torch.ones(3))


@row("`error_on_graph_break`")
def _error_on_graph_break(backend: OrtBackend) -> None:
    strict = needs(torch._dynamo, "error_on_graph_break")

    def program(x: torch.Tensor) -> torch.Tensor:
        with strict(True):
            y = x * 2
            torch._dynamo.graph_break()
        return y

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(program, backend=backend)(torch.ones(3))


@row("`dynamic=True`, `False`, `None`")
def _dynamic(backend: OrtBackend) -> None:
    model = network()
    for dynamic, made in ((True, 2), (False, 4), (None, 3)):
        torch._dynamo.reset()
        backend.reset()
        serves(torch.compile(model, backend=backend, dynamic=dynamic), model, 3, 5, 1, 7)
        assert graphs(backend) == made


@row("`mark_dynamic(x, 0, min=2, max=64)`")
def _mark_dynamic(backend: OrtBackend) -> None:
    model = network()
    compiled = torch.compile(model, backend=backend)
    x = torch.randn(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    torch.testing.assert_close(compiled(x), model(x))
    serves(compiled, model, 7, 9, 64)
    assert graphs(backend) == 1


@row("`mark_unbacked(x, 0)`")
def _mark_unbacked(backend: OrtBackend) -> None:
    model = network()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(5, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    torch.testing.assert_close(compiled(x), model(x))
    serves(compiled, model, 1, 7)
    assert graphs(backend) == 1


@row("`mark_static(x, 0)`")
def _mark_static(backend: OrtBackend) -> None:
    model = network()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for n in (5, 6):
        x = torch.randn(n, 4)
        torch._dynamo.mark_static(x, 0)
        torch.testing.assert_close(compiled(x), model(x))
    assert graphs(backend) == 2


@row("`dynamic_shapes=` (torch 2.13: `shapes_spec=`)")
def _shapes(backend: OrtBackend) -> None:
    known = inspect.signature(torch.compile).parameters
    name = "dynamic_shapes" if "dynamic_shapes" in known else "shapes_spec"
    takes(name)
    from torch.fx.experimental.dynamic_spec import ParamsSpec, ShapeVar, TensorSpec

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    spec: Any = {name: ParamsSpec({"x": TensorSpec([ShapeVar("batch"), None])})}
    compiled = torch.compile(program, backend=backend, **spec)
    serves(compiled, program, 5, 1, 7)
    assert graphs(backend) == 1


@row("`isolate_recompiles=True`")
def _isolate_recompiles(backend: OrtBackend) -> None:
    takes("isolate_recompiles")
    model = network()
    for _ in range(2):
        compiled = torch.compile(model, backend=backend, isolate_recompiles=True, dynamic=False)
        serves(compiled, model, 3, 5)
    assert graphs(backend) == 4


@row("`recompile_limit=`")
def _recompile_limit(backend: OrtBackend) -> None:
    takes("recompile_limit")
    model = network()
    compiled = torch.compile(model, backend=backend, recompile_limit=1, dynamic=False)
    serves(compiled, model, 3, 5, 6)  # in eager mode from there on
    assert graphs(backend) == 1


@row("`name=`")
def _name(backend: OrtBackend) -> None:
    model = network()
    for named in (backend, torch_compile_backend, onnx_custom_backend, onnx_debug_backend):
        torch._dynamo.reset()  # torch 2.15 passes the name on, as any torch does a mode
        serves(torch.compile(model, backend=functools.partial(named, name="mine")), model, 3)
    takes("name")
    serves(torch.compile(model, backend=backend, name="mine"), model, 3)


@row("`mode=`")
def _mode(backend: OrtBackend) -> None:
    model = network()
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        serves(torch.compile(model, backend="onnxrt", mode=mode), model, 3)
    with pytest.raises(OptionError, match="mode is one of"):
        torch.compile(model, backend="onnxrt", mode="lite")(torch.ones(3, 4))


@row('`options={"guard_filter_fn": ...}`')
def _guard_filter(backend: OrtBackend) -> None:
    model = network()
    options: Any = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe}
    serves(torch.compile(model, backend="onnxrt", options=options), model, 3)


@row('`set_default_backend("onnxrt")`')
def _default_backend(backend: OrtBackend) -> None:
    choose = needs(torch.compiler, "set_default_backend")
    model = network()
    choose("onnxrt")
    try:
        serves(torch.compile(model), model, 3)
        assert OrtBackend.get_cached_instance_for_options({}).execution_count
    finally:
        choose("inductor")


@row("`set_stance`")
def _stances(backend: OrtBackend) -> None:
    model = network()
    runs = {
        "force_eager": (0, 0),
        "eager_on_recompile": (1, 1),
        "fail_on_recompile": (1, None),
        "eager_then_compile": (1, 2),
    }
    if int(torch.__version__.split(".")[1]) > 8:  # where it ends torch's own backends as well
        runs["aot_eager_then_compile"] = (1, 2)
    for stance, (same, other) in runs.items():
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend, dynamic=False)
        if "recompile" in stance:
            serves(compiled, model, 3)
        before = backend.execution_count
        with torch.compiler.set_stance(stance):
            if stance.endswith("then_compile"):
                serves(compiled, model, 3)
                before = min(before + 1, backend.execution_count)
            serves(compiled, model, 3)
            assert backend.execution_count - before == same
            if other is None:
                with pytest.raises(RuntimeError):
                    serves(compiled, model, 5)
                continue
            serves(compiled, model, 5)
            assert backend.execution_count - before == other


@row("`disable`, `allow_in_graph`, `nested_compile_region`")
def _markers(backend: OrtBackend) -> None:
    markers = (
        torch.compiler.disable,
        torch.compiler.allow_in_graph,
        torch.compiler.nested_compile_region,
    )
    for marker, made in zip(markers, (2, 1, 1), strict=True):
        torch._dynamo.reset()
        backend.reset()
        part: Any = marker(lambda x: x.sin() + 1)

        def program(x: torch.Tensor, part: Any = part) -> torch.Tensor:
            return part(x * 2) * 3

        x = torch.randn(3)
        compiled = torch.compile(program, backend=backend)
        torch.testing.assert_close(compiled(x), ((x * 2).sin() + 1) * 3)
        assert graphs(backend) == made


@row("`nonstrict_trace`")
def _nonstrict_trace(backend: OrtBackend) -> None:
    @needs(torch._dynamo, "nonstrict_trace")
    def part(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    def program(x: torch.Tensor) -> torch.Tensor:
        return part(x * 2) + 1

    serves(torch.compile(program, backend=backend, fullgraph=True), program, 3)
    assert graphs(backend) == 1


@row("`module.compile()` of parts")
def _regional(backend: OrtBackend) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu()

    parts = nn.Sequential(*(Part() for _ in range(3)))
    x = torch.randn(2, 4)
    expected = parts(x)
    for part in parts:
        part.compile(backend=backend)
    torch.testing.assert_close(parts(x), expected)
    assert backend.execution_count == 3


@row("compiled autograd")
def _compiled_autograd(backend: OrtBackend) -> None:
    model, twin = network(), network()
    x = torch.randn(3, 4)
    twin(x).square().sum().backward()

    def same() -> None:
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
            a.grad = None

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda x: model(x).square().sum().backward(), backend=backend)(x)
    same()
    compiled = torch.compile(model, backend=backend)
    enabled: Any = torch._dynamo.compiled_autograd._enable
    with enabled(lambda graph: torch.compile(graph, backend=backend)):
        compiled(x).square().sum().backward()
    same()
    assert backend.execution_count == 4


@row("`torch.compile(f).aot_compile(...)`")
def _aot_compile(backend: OrtBackend) -> None:
    needs(torch._functorch.config, "bypass_autograd_cache_key")
    compiled: Any = torch.compile(network().forward, backend="onnxrt", fullgraph=True)
    with pytest.raises(CaptureError, match=r"dort_rewriter\.save\(compiled, path\)"):
        compiled.aot_compile(((torch.ones(2, 4),), {}))


@row("`torch.compiler.precompile`")
def _precompile(backend: OrtBackend) -> None:
    precompile: Any = needs(torch.compiler, "precompile")
    with pytest.raises(ValueError, match="must be 'inductor' or 'eager'"):
        precompile.capture(
            lambda m, x: m(x), artifact_path="m.py", cache_path="m.cache", backend="onnxrt"
        )


@row("`caching_precompile`")
def _caching_precompile(backend: OrtBackend) -> None:
    needs(torch._dynamo.config, "caching_precompile")
    model = network()
    with torch._dynamo.config.patch(caching_precompile=True):
        serves(torch.compile(model, backend="onnxrt"), model, 3, 3)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch._dynamo.reset()
    with warnings.catch_warnings():  # of torch, about its own reading of gradients
        warnings.simplefilter("ignore")
        yield OrtBackend()
    torch._dynamo.reset()


@pytest.mark.every_combination
@pytest.mark.parametrize("name", TRIALS)
def test_it_does_what_the_page_says(name: str, backend: OrtBackend) -> None:
    TRIALS[name](backend)


def test_the_page_has_a_row_for_each() -> None:
    page = (ROOT / "docs" / "torch_compile.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| ", page, flags=re.MULTILINE)
    assert rows[2:] == list(TRIALS)
