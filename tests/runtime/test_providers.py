"""Which providers a session gets, what the installed onnxruntime is, and what it says if there is
none.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter import ort_module
from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.ort_module import bindings
from dort_rewriter.runtime import providers, session
from dort_rewriter.runtime.providers import (
    CPU,
    CUDA,
    Provider,
    available,
    built_in,
    devices_of,
    infer,
    is_plug_in,
    normalize,
    take_present,
)
from dort_rewriter.runtime.session import create_session
from tests.runtime.graphs import parse


@pytest.fixture
def fresh_warnings() -> Iterator[None]:
    providers._warn.cache_clear()
    yield
    providers._warn.cache_clear()


def test_names_and_options() -> None:
    assert normalize([CPU]) == (Provider(CPU),)
    assert normalize([(CPU, {"use_arena": True})]) == (Provider(CPU, {"use_arena": "True"}),)
    assert normalize([Provider(CPU), CPU]) == (Provider(CPU),)
    assert normalize([]) == (Provider(CPU),)


@pytest.mark.usefixtures("fresh_warnings")
def test_a_provider_that_is_missing_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert normalize(["NoSuchProvider", CPU]) == (Provider(CPU),)
    (found,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert re.match(
        "Execution provider 'NoSuchProvider' is not available.*available: .*CPU", found.message
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("NoSuchProvider", "available: "),
        ("CPUExecutionProvidr", "Did you mean 'CPUExecutionProvider'?"),
        ("openvino", "Did you mean 'OpenVINOExecutionProvider'?"),
        ("OpenVINOExecutionProvder", "Did you mean 'OpenVINOExecutionProvider'?"),
        ("OpenVINOExecutionProvider", "pip install onnxruntime-ep-openvino"),
        ((CPU, {"device": "NPU", "required": True}), "on a device of the kind 'NPU'"),
        ((CUDA, {"required": True}), "a GPU of NVIDIA"),
    ],
)
def test_a_provider_that_has_to_be_there_is_an_error(spec: Any, said: str) -> None:
    strict = isinstance(spec, str)
    if providers._resolve(providers.parse(spec)):
        pytest.skip(f"{spec} is here")
    with pytest.raises(OptionError, match=re.escape(said)):
        take_present([spec, CPU], strict=strict)


def test_options_that_were_written_to_a_file() -> None:
    """There they are text."""
    for text, meant in (("True", True), ("False", False)):
        (found,) = take_present([(CPU, {"required": text})])
        assert found.required is meant


@pytest.mark.parametrize("options", [{"required": 1}, {"device": 3}])
def test_what_no_provider_is_given(options: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="'required' is True or False"):
        take_present([(CPU, options)])


class PlugIn:
    """A plug-in as far as it is asked for: a package, and devices once it is registered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registered: list[tuple[str, str]] = []
        self.devices = [
            SimpleNamespace(ep_name="Plugged", device=SimpleNamespace(type=f"DeviceType.{kind}"))
            for kind in ("CPU", "NPU")
        ]
        self.devices[1].ep_metadata = {"device": "NPU.1"}
        real = providers.load_onnxruntime()
        ort = SimpleNamespace(
            get_available_providers=real.get_available_providers,
            get_ep_devices=lambda: self.devices if self.registered else [],
            register_execution_provider_library=self.register,
            __version__=real.__version__,
        )
        # The first one only asks for another, as packages of NVIDIA do.
        listed = {"onnxruntime-ep-all": "", "onnxruntime-ep-plugged": "onnxruntime_ep_plugged"}
        packages = [
            SimpleNamespace(
                metadata={"Name": n}, version="1.0", read_text=lambda _, n=n: listed[n]
            )
            for n in listed
        ]
        module = ModuleType("onnxruntime_ep_plugged")
        module.__spec__ = ModuleSpec("onnxruntime_ep_plugged", None)
        vars(module).update(get_ep_name=lambda: "Plugged", get_library_path=lambda: "p.so")
        monkeypatch.setattr(providers, "load_onnxruntime", lambda: ort)
        monkeypatch.setattr(providers.importlib.metadata, "distributions", lambda: packages)
        monkeypatch.setitem(sys.modules, "onnxruntime_ep_plugged", module)

    def register(self, name: str, path: str) -> None:
        self.registered.append((name, path))


@pytest.fixture(name="plug_in")
def install_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlugIn]:
    providers._register.cache_clear()
    yield PlugIn(monkeypatch)
    providers._register.cache_clear()


def test_a_plug_in_is_registered_where_it_is_named(plug_in: PlugIn) -> None:
    """And by nothing else; what is registered by the program meanwhile counts too."""
    assert "Plugged" not in available()
    assert normalize([CPU]) == (Provider(CPU),)
    assert plug_in.registered == []
    for _ in range(2):
        assert [p.name for p in normalize(["Plugged", CPU])] == ["Plugged", CPU]
    assert plug_in.registered == [("onnxruntime-ep-plugged", "p.so")]
    assert "Plugged" in available()
    assert is_plug_in("Plugged")
    assert not is_plug_in(CPU)


def test_one_of_the_devices_of_a_plug_in(plug_in: PlugIn) -> None:
    (both,) = take_present(["Plugged"])
    assert devices_of(both) == plug_in.devices
    (one,) = take_present([("Plugged", {"device": "npu", "k": 1})])
    assert devices_of(one) == plug_in.devices[1:]
    assert one.options == {"k": "1"}
    (same,) = take_present([("Plugged", {"device": "NPU.1"})])
    assert devices_of(same) == plug_in.devices[1:]
    with pytest.raises(OptionError, match="on a device of the kind 'GPU'"):
        take_present([("Plugged", {"device": "GPU", "required": True})])


def test_what_is_installed_and_not_named_is_said(plug_in: PlugIn) -> None:
    with pytest.raises(OptionError, match=r"registered where it is named: .*onnxruntime-ep-plug"):
        take_present(["Other"], strict=True)
    assert plug_in.registered == []


needs_plug_ins = pytest.mark.skipif(
    not hasattr(bindings().SessionOptions, "add_provider_for_devices"),
    reason="this onnxruntime takes no plug-ins",
)


@needs_plug_ins
@pytest.mark.parametrize("policy", ["PREFER_NPU", "prefer_npu", "MAX_PERFORMANCE", "PREFER_CPU"])
def test_a_policy(plug_in: PlugIn, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What onnxruntime takes by it, on the first kind of device that it looks at."""
    import onnxruntime

    ort: Any = providers.load_onnxruntime()
    ort.OrtExecutionProviderDevicePolicy = onnxruntime.OrtExecutionProviderDevicePolicy
    ort.SessionOptions = onnxruntime.SessionOptions
    ort.InferenceSession = lambda *_: SimpleNamespace(get_providers=lambda: ["Plugged", CPU])
    with pytest.raises(OptionError, match=f"plug-in for the policy '{policy}' is not available"):
        take_present([(policy, {"required": True})])
    plug_in.registered.append(("by", "the program"))
    (found,) = take_present([(policy, {"k": 1})])
    kind = "CPU" if policy == "PREFER_CPU" else "NPU"
    assert found == Provider("Plugged", {"k": "1"}, device=kind)
    constant = getattr(onnxruntime.OrtExecutionProviderDevicePolicy, policy.upper())
    assert providers.parse(constant) == Provider(policy.upper())


@pytest.mark.usefixtures("plug_in")
def test_a_policy_where_there_are_none() -> None:
    with pytest.raises(OptionError, match="plug-in for the policy"):
        take_present(["PREFER_NPU"], strict=True)


@needs_plug_ins
def test_session_options_with_providers_of_their_own() -> None:
    import onnxruntime

    own = onnxruntime.SessionOptions()
    own.set_provider_selection_policy(onnxruntime.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    with pytest.raises(OptionError, match="preferred_execution_providers"):
        session.session_settings(OrtBackendOptions(ort_session_options=own), None, [CPU])


@needs_plug_ins
def test_a_session_by_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the CPU stands for a plug-in's; options name it once."""
    from onnxruntime import get_ep_devices

    (device,) = [d for d in get_ep_devices() if d.ep_name == CPU]
    monkeypatch.setattr(session, "is_plug_in", lambda name: True)
    monkeypatch.setattr(session, "devices_of", lambda provider: [device])
    model, options = (
        parse("(float[N] x) => (float[N] y) { y = Add(x, x) }"),
        session.session_options(),
    )
    for _ in range(2):
        built = create_session(model, providers=[CPU], options=options)
        assert [p.name for p in built.providers] == [CPU]
    monkeypatch.setattr(providers, "built_in", lambda: (CPU, "Other"))
    with pytest.raises(OptionError, match="options of their own"):
        create_session(model, providers=["Other", CPU], options=options)


@pytest.mark.parametrize("spec", [3, (CPU,), (CPU, "x")])
def test_what_is_no_provider(spec: object) -> None:
    with pytest.raises(OptionError, match="name or a pair"):
        normalize([spec])


def test_cuda_comes_before_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "built_in", lambda: (CUDA, CPU))
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
    built_in.cache_clear()
    try:
        assert available() == (CPU,)
    finally:
        built_in.cache_clear()


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
