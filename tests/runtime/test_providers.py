"""Which providers a session gets, what the installed onnxruntime is, and what it says if there is
none.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import warnings
from types import SimpleNamespace

import onnx
import pytest
import torch

from dort_rewriter import ort_module
from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.runtime import providers
from dort_rewriter.runtime.providers import CPU, CUDA, Provider, available, infer, normalize
from dort_rewriter.runtime.session import create_session
from tests.runtime.graphs import parse


@pytest.fixture
def fresh_warnings():
    providers._warn_unavailable.cache_clear()
    yield
    providers._warn_unavailable.cache_clear()


def test_names_and_options() -> None:
    assert normalize([CPU]) == (Provider(CPU),)
    assert normalize([(CPU, {"use_arena": True})]) == (Provider(CPU, {"use_arena": "True"}),)
    assert normalize([Provider(CPU), CPU]) == (Provider(CPU),)
    assert normalize([]) == (Provider(CPU),)


@pytest.mark.usefixtures("fresh_warnings")
def test_unavailable_provider_is_named_once() -> None:
    with pytest.warns(UserWarning, match="'NoSuchProvider' is not available.*available: .*CPU"):
        assert normalize(["NoSuchProvider", CPU]) == (Provider(CPU),)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert normalize(["NoSuchProvider", CPU]) == (Provider(CPU),)


@pytest.mark.parametrize("spec", [3, (CPU,), (CPU, "x")])
def test_what_is_no_provider(spec: object) -> None:
    with pytest.raises(OptionError, match="name or a pair"):
        normalize([spec])


def test_cuda_comes_before_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "available", lambda: (CUDA, CPU))
    devices = [torch.device("cpu"), torch.device("cuda", 1), None]
    assert infer(devices) == (Provider(CUDA, {"device_id": "1"}), Provider(CPU))
    assert infer([torch.device("cpu")]) == (Provider(CPU),)
    # Onnxruntime warns at each session where the first one is named, which is the default.
    assert infer([torch.device("cuda", 0)]) == (Provider(CUDA), Provider(CPU))
    with pytest.raises(ExecutionError, match=r"\[0, 1\]"):
        infer([torch.device("cuda", 0), torch.device("cuda", 1)])


def test_cuda_is_not_available_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    ort = SimpleNamespace(get_available_providers=lambda: [CUDA, CPU])
    monkeypatch.setattr(providers, "load_onnxruntime", lambda: ort)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    available.cache_clear()
    try:
        assert available() == (CPU,)
    finally:
        available.cache_clear()


def test_device_without_a_counterpart() -> None:
    with pytest.raises(ExecutionError, match="'meta' cannot be handed"):
        providers.ort_device(torch.device("meta"))


def test_installed_flavour_is_named() -> None:
    assert ort_module.describe().startswith("onnxruntime")
    assert ort_module.load_onnxruntime().__version__ in ort_module.describe()


def test_every_distribution_that_provides_onnxruntime_is_described() -> None:
    names = importlib.metadata.packages_distributions()["onnxruntime"]
    for name in names:
        assert f"{name} {importlib.metadata.version(name)}" in ort_module.describe()


def test_limits_load_and_the_next_do_not() -> None:
    ir_version, opset = ort_module.max_ir_version(), ort_module.max_opset()
    create_session(parse("(float[N] x) => (float[N] y) { y = Neg(x) }", opset))
    if ir_version < onnx.IR_VERSION:
        model = parse("(float[N] x) => (float[N] y) { y = Neg(x) }")
        model.ir_version = ir_version + 1
        with pytest.raises(ExecutionError, match="IR version"):
            create_session(model)
    if opset < onnx.defs.onnx_opset_version():
        with pytest.raises(ExecutionError, match=r"[Oo]pset"):
            create_session(parse("(float[N] x) => (float[N] y) { y = Neg(x) }", opset + 1))


def _without_cache(monkeypatch: pytest.MonkeyPatch, import_module) -> None:
    monkeypatch.setattr(ort_module.importlib, "import_module", import_module)


def test_no_onnxruntime_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    _without_cache(monkeypatch, missing)
    with pytest.raises(ExecutionError, match=r"pip install dort-rewriter\[cpu\]"):
        ort_module.load_onnxruntime.__wrapped__()


def test_old_onnxruntime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(__version__="1.20.1", OrtValueVector=object)
    _without_cache(monkeypatch, lambda _name: old)
    with pytest.raises(ExecutionError, match=r"1\.20\.1 has no OrtValueVector.push_back_batch"):
        ort_module.load_onnxruntime.__wrapped__()


@pytest.mark.load_sensitive
def test_importing_and_running_prints_nothing() -> None:
    code = """
import warnings; warnings.simplefilter("error")
import torch
from tests.runtime.graphs import add_one, create_session, parse
from dort_rewriter.errors import ExecutionError
add_one()(torch.ones(2))
try:
    create_session(parse("(double[N] x) => (double[N] y) { y = Erf(x) }"))
except ExecutionError:
    pass
else:
    raise SystemExit("Erf on float64 has a kernel now: choose another node to fail on")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
