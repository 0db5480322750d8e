"""torch's own class under the hook, with the real backend behind it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dort_rewriter
from dort_rewriter import OptionError, install, uninstall
from tests.hook.conftest import HAS_ORT_BACKEND

pytestmark = [
    pytest.mark.skipif(not HAS_ORT_BACKEND, reason="this torch has no OrtBackend"),
    pytest.mark.usefixtures("unhooked"),
]


# What the constructor says when the rewriter is off.
warnings_of_torch = pytest.mark.filterwarnings("ignore:torch.onnx.dynamo_export")


def function(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + x


@pytest.fixture
def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    install()
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    from torch.onnx._internal.onnxruntime import OrtBackend, OrtBackendOptions

    return OrtBackend(OrtBackendOptions(use_aot_autograd=False))


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("torch's own exporter was asked")


@pytest.fixture
def exporter_of_torch(backend: Any) -> Any:
    """Make torch's code for a new graph recognizable: it starts with a look into this table."""
    backend._all_ort_execution_info.search_reusable_session_execution_info = refuse
    return backend


def test_a_graph_is_compiled_and_runs(backend: Any, x: torch.Tensor) -> None:
    compiled = backend(make_fx(function)(x), (x,))
    (result,) = compiled(x) if isinstance(compiled(x), tuple) else (compiled(x),)
    torch.testing.assert_close(result, function(x))
    assert backend.execution_count > 0


def test_modules_compiled_by_name_are_copied_and_pickled(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They hold the function of torch that the hook has wrapped."""
    install()
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    compiled: Any = torch.compile(torch.nn.Linear(3, 2), backend="onnxrt")
    for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(other(x), compiled(x))


def test_sessions_outlive_the_variable(
    exporter_of_torch: Any, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, graph, other = exporter_of_torch, make_fx(function)(x), make_fx(function)(x)
    torch.testing.assert_close(backend._ort_acclerated_call(graph, x), function(x))
    monkeypatch.delenv("ONNXRT_CHANGE_REWRITER")
    torch.testing.assert_close(backend._ort_acclerated_call(graph, x), function(x))
    with pytest.raises(AssertionError, match="torch's own exporter"):
        backend._ort_acclerated_call(other, x)
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch.testing.assert_close(backend._ort_acclerated_call(other, x), function(x))


def test_sessions_outlive_the_hook(exporter_of_torch: Any, x: torch.Tensor) -> None:
    backend, graph, other = exporter_of_torch, make_fx(function)(x), make_fx(function)(x)
    bound = backend._ort_acclerated_call
    torch.testing.assert_close(bound(graph, x), function(x))
    uninstall()
    torch.testing.assert_close(bound(graph, x), function(x))
    for call in (bound, backend._ort_acclerated_call):
        with pytest.raises(AssertionError, match="torch's own exporter"):
            call(other, x)


@pytest.fixture
def cls(backend: Any) -> Any:
    type(backend).clear_cached_instances()
    yield type(backend)
    type(backend).clear_cached_instances()


OWN = {
    "mapping": {"fallback": False, "min_block_size": 5},
    "dataclass": dort_rewriter.OrtBackendOptions(fallback=False, min_block_size=5),
}


@pytest.mark.parametrize("kind", OWN)
def test_own_options_by_name(kind: str, cls: Any, x: torch.Tensor) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="onnxrt", options=OWN[kind], fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x))
    (used,) = cls.get_cached_instances()
    assert used.execution_count == 1
    assert used._options == OWN["dataclass"]
    refused = torch.compile(torch.linalg.inv, backend="onnxrt", options=OWN[kind])
    with pytest.raises(Exception, match="linalg_inv"):
        refused(torch.eye(2))


@pytest.mark.parametrize("kind", OWN)
def test_own_options_in_the_constructor(kind: str, cls: Any) -> None:
    assert cls(OWN[kind])._options == OWN["dataclass"]
    assert cls(options=OWN[kind])._options == OWN["dataclass"]
    with pytest.raises(OptionError, match="min_block_size"):
        cls({"min_blok_size": 3})


@warnings_of_torch
def test_torchs_library_is_read_when_it_is_asked_for(
    cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds, and nothing of ours reads it."""
    from torch.onnx._internal import _exporter_legacy

    backend = cls(OWN["dataclass"])
    read = _exporter_legacy.OnnxRegistry._initiate_registry_from_torchlib
    with monkeypatch.context() as patched:
        patched.setattr(_exporter_legacy.OnnxRegistry, read.__name__, refuse)
        compiled = torch.compile(function, backend=cls(), fullgraph=True)
        torch.testing.assert_close(compiled(torch.ones(2)), function(torch.ones(2)))
        with pytest.raises(AssertionError, match="own exporter"):
            backend._supported_ops  # noqa: B018
    monkeypatch.delenv("ONNXRT_CHANGE_REWRITER")
    assert set(vars(backend)) < set(vars(cls()))
    assert "add" in str(backend._resolved_onnx_exporter_options.onnx_registry._registry.keys())
    assert set(vars(backend)) == set(vars(cls()))
    assert backend._options == OWN["dataclass"]
    assert copy.copy(backend)._supported_ops is backend._supported_ops
    with pytest.raises(AttributeError, match="object has no attribute 'suported_ops'"):
        backend.suported_ops  # noqa: B018


@warnings_of_torch
def test_instances_are_complete_when_the_hook_is_gone(cls: Any) -> None:
    """Those that are alive: torch's own methods read what its constructor sets."""
    backend, gone = cls(OWN["dataclass"]), cls()
    assert "_supported_ops" not in vars(backend)
    del gone
    uninstall()
    assert set(vars(backend)) == set(vars(cls()))
    assert backend._options == OWN["dataclass"]
    with pytest.raises(AttributeError, match="object has no attribute 'suported_ops'"):
        backend.suported_ops  # noqa: B018


def test_options_of_torch_share_with_own_ones(cls: Any) -> None:
    from torch.onnx._internal.onnxruntime import OrtBackendOptions

    used = cls.get_cached_instance_for_options(OrtBackendOptions(preallocate_output=True))
    assert used._options == OrtBackendOptions(preallocate_output=True)
    assert cls.get_cached_instance_for_options({"preallocate_output": True}) is used
    assert cls.get_cached_instance_for_options(OrtBackendOptions()) is not used


@warnings_of_torch
def test_off_instances_are_torchs_own(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = cls.get_cached_instance_for_options({"fallback": False})
    monkeypatch.delenv("ONNXRT_CHANGE_REWRITER")
    with pytest.raises(TypeError, match="fallback"):
        cls.get_cached_instance_for_options({"fallback": False})
    theirs = cls.get_cached_instance_for_options({"use_aot_autograd": False})
    assert cls.get_cached_instance_for_options({"use_aot_autograd": False}) is theirs
    assert cls.get_cached_instances() == (theirs, ours)
    cls.clear_cached_instances()
    assert cls.get_cached_instances() == ()


@warnings_of_torch
def test_uninstalled_the_cap_is_back(cls: Any) -> None:
    uninstall()
    for n in range(8):
        options = {"preferred_execution_providers": (f"Provider{n}",)}
        cls.get_cached_instance_for_options(options)
    with pytest.raises(AssertionError, match="No more than 8"):
        cls.get_cached_instance_for_options({"preferred_execution_providers": ("Other",)})
