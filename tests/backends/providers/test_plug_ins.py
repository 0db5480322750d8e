"""A second provider: one that fails on purpose, at the seam to onnxruntime, and the real plug-in.

What the first does is what OpenVINO's was seen to do: its errors are those of onnxruntime
(``EPFail`` at a session, ``Fail`` at a run).
"""

from __future__ import annotations

import copy
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter.errors import OptionError
from dort_rewriter.ort_module import bindings
from dort_rewriter.runtime import session
from dort_rewriter.runtime.compiled_forms import CompiledForm
from dort_rewriter.runtime.providers import CPU, OPENVINO, Provider, devices_of, take_present
from dort_rewriter.tools.benchmark import benchmark
from dort_rewriter.tools.saved_text import read_saved
from tests.backends.ways import compile_strictly

LENIENT = {"fallback": True}
ON_FAILING: dict[str, Any] = {"preferred_execution_providers": ["Failing"]}


class Failing:
    """Takes the place of the class of onnxruntime: what is asked for by a name that only it knows
    runs on the CPU, or fails as a provider does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses = self.raises = self.vanishes = False
        self.built: list[list[str]] = []
        real = session.load_onnxruntime()
        state = bindings()
        errors = {n: e for n in ("EPFail", "Fail") if (e := getattr(state, n, None)) is not None}
        self.at_a_session = errors.get("EPFail", state.Fail)
        failing = self

        class InferenceSession(real.InferenceSession):  # type: ignore[misc]
            def __init__(self, source: Any, sess_options: Any, **how: Any) -> None:
                failing.built.append(how.get("providers", []))
                if "Failing" in how["providers"]:
                    if failing.refuses:
                        raise failing.at_a_session("Exception from shape_inference: no such shape")
                    how["providers"] = [CPU]
                    how["provider_options"] = [{}]
                    self.is_failing = True
                super().__init__(source, sess_options, **how)

            def run_with_ortvaluevector(self, *arguments: Any) -> None:
                if failing.raises and getattr(self, "is_failing", False):
                    raise state.Fail("[ONNXRuntimeError] : 1 : FAIL : the device is lost")
                super().run_with_ortvaluevector(*arguments)

            def get_provider_graph_assignment_info(self) -> list[Any]:
                node = SimpleNamespace(domain="", op_type="Sinh")
                return [SimpleNamespace(ep_name="Failing", get_nodes=lambda: [node])]

            def get_providers(self) -> list[str]:
                known = getattr(self, "is_failing", False) and not failing.vanishes
                asked = ["Failing"] if known else []
                return [*asked, *super().get_providers()]

        module = SimpleNamespace(**{**vars(real), "InferenceSession": InferenceSession})
        monkeypatch.setattr(session, "load_onnxruntime", lambda: module)
        monkeypatch.setattr(
            session,
            "normalize",
            lambda specs: tuple(
                Provider(s[0]) if isinstance(s, tuple) else Provider(s) for s in specs
            ),
        )


@pytest.fixture(name="failing")
def have_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> Failing:
    from dort_rewriter.compiler import provider_choice
    from dort_rewriter.runtime import providers

    real = providers.built_in()
    monkeypatch.setattr(providers, "built_in", lambda: ("Failing", *real))
    monkeypatch.setattr(provider_choice, "take_present", take_present)
    return Failing(monkeypatch)


def test_one_that_works(failing: Failing, caplog: pytest.LogCaptureFixture) -> None:
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING)
    x = torch.randn(3)
    with caplog.at_level(logging.INFO, "dort_rewriter"):
        torch.testing.assert_close(compiled(x), x.sinh())
    assert failing.built == [["Failing", CPU]]
    assert f" on Failing (1 nodes), {CPU} (0 nodes), " in caplog.text


def test_status_tells_what_sessions_tell(failing: Failing) -> None:
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING)
    compiled(torch.randn(3))
    (line,) = [s for s in dort_rewriter.status().sessions if "Failing" in s]
    count = line.partition(" ")[0]  # sessions of other tests may live
    assert line == f"{count} on Failing ({count} nodes), {CPU} (0 nodes)"
    assert f"sessions: {line}" in str(dort_rewriter.status())


def test_where_onnxruntime_does_not_tell(
    failing: Failing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session, "_TELLING", "what_onnxruntime_1_19_lacks")
    found = dort_rewriter.explain(torch.sinh, torch.randn(3), backend_options=ON_FAILING)
    assert f"    on Failing, {CPU}: which nodes is not known" in str(found)
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING)
    with caplog.at_level(logging.INFO, "dort_rewriter"):
        compiled(torch.randn(3))
    words = f"on Failing, {CPU} (which nodes is not known)"
    assert words in caplog.text
    assert any(words in line for line in dort_rewriter.status().sessions)


def test_explain_tells_what_a_session_tells(failing: Failing) -> None:
    found = dort_rewriter.explain(
        torch.sinh,
        torch.randn(3),
        backend_options=ON_FAILING,
    )
    ((graph,),) = (g.lowered for g in found.graphs)
    assert graph.placements == ({"Failing": {"Sinh": 1}},)
    assert "\n      on Failing: 1 (1 Sinh)" in str(found)


def test_one_that_refuses_a_graph(failing: Failing, caplog: pytest.LogCaptureFixture) -> None:
    """The next one runs it, and one warning says why in the provider's own words."""
    failing.refuses = True
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING, **LENIENT)
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x.sinh())
    (told,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert re.match(f"A graph runs on {CPU}, Failing refuses it: .*such", told.getMessage())
    assert failing.built == [["Failing", CPU], [CPU]]


def test_one_that_refuses_a_graph_without_fallback(failing: Failing) -> None:
    failing.refuses = True
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING)
    with pytest.raises(dort_rewriter.ExecutionError, match=r"session on Failing.*such"):
        compiled(torch.randn(3))


def test_a_required_one_that_refuses_a_graph(failing: Failing) -> None:
    failing.refuses = True
    required = {"preferred_execution_providers": [("Failing", {"required": True})]}
    compiled, _ = compile_strictly(torch.sinh, **required, **LENIENT)
    with pytest.raises(OptionError, match=r"Failing is required, and refuses a graph.*such"):
        compiled(torch.randn(3))


def test_one_that_onnxruntime_leaves_out(
    failing: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """As it does, without an error, where a provider that is built in has no device."""
    failing.vanishes = True
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING, **LENIENT)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sinh())
    (told,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"A graph runs on {CPU}, Failing refuses it" in told.getMessage()
    assert "without Failing, which failed" in told.getMessage()
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING)
    with pytest.raises(dort_rewriter.ExecutionError, match="without Failing"):
        compiled(x)


def test_one_that_raises_at_a_run(failing: Failing, caplog: pytest.LogCaptureFixture) -> None:
    """torch runs the graph from then on, on the arguments as they were."""
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING, **LENIENT)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sinh())
    failing.raises = True
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x.sinh())
    (told,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the device is lost" in told.getMessage()


def test_one_that_raises_at_a_run_without_fallback(failing: Failing) -> None:
    compiled, _ = compile_strictly(torch.sinh, **ON_FAILING)
    compiled(torch.randn(3))
    failing.raises = True
    with pytest.raises(dort_rewriter.ExecutionError, match="the device is lost"):
        compiled(torch.randn(3))


def test_one_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"preferred_execution_providers": ["NowhereExecutionProvider"]}
    x = torch.randn(3)
    compiled, _ = compile_strictly(torch.sinh, **options)
    with pytest.raises(OptionError, match=f"available: .*{CPU}"):
        compiled(x)
    compiled, _ = compile_strictly(torch.sinh, **options, **LENIENT)
    torch.testing.assert_close(compiled(x), x.sinh())
    (told,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "NowhereExecutionProvider" in told.getMessage()


# -- the real one ---------------------------------------------------------------------------------

try:
    _HAS = bool(take_present([OPENVINO]) and devices_of(Provider(OPENVINO)))
except OptionError:
    _HAS = False

real = pytest.mark.skipif(
    not _HAS, reason="onnxruntime-ep-openvino is not installed, or has no device here"
)
ON_OPENVINO: dict[str, Any] = {"preferred_execution_providers": [(OPENVINO, {"required": True})]}


class Network(nn.Module):
    """What stays with torch, an embedding, and what does not."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.convolution = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.linear = nn.Linear(16, 16)
        self.last = nn.LayerNorm(16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids).transpose(1, 2)
        x = self.norm(self.convolution(x)).relu().transpose(1, 2)
        return self.last(nn.functional.gelu(self.linear(x)) + x).softmax(-1)


@pytest.fixture(name="network")
def make_a_network() -> Network:
    torch.manual_seed(0)
    torch._dynamo.reset()
    return Network()


@real
def test_forward_and_backward_on_the_plug_in(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    eager, ids = copy.deepcopy(network), torch.randint(0, 11, (3, 7))
    compiled = torch.compile(network, backend="onnxrt", options=ON_OPENVINO)
    with caplog.at_level(logging.INFO, "dort_rewriter"):
        got = compiled(ids)
        got.square().sum().backward()
    expected = eager(ids)
    expected.square().sum().backward()
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    for ours, its in zip(network.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, its.grad, rtol=1e-4, atol=1e-5)
    assert f"{CPU} (0 nodes)" in caplog.text
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@real
def test_explain_tells_what_the_session_tells(network: Network) -> None:
    found = dort_rewriter.explain(
        network, torch.randint(0, 11, (3, 7)), backend_options=ON_OPENVINO
    )
    placed = [p for g in found.graphs for a in g.lowered for p in a.placements]
    assert placed
    assert all(p is not None and set(p) == {OPENVINO} for p in placed)
    assert {t.op for t in found.in_torch} == {
        "aten::embedding",
        "aten::embedding_dense_backward",
        "aten::add.Tensor",  # the number of batches
    }
    assert f"on {OPENVINO}: " in str(found)


@real
def test_numbers_that_are_none() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 2.0, -3.0])

    def function(x: torch.Tensor) -> Any:
        return x.relu(), x.exp(), x.clamp(-1, 1), x > 0, torch.maximum(x, x.flip(0)), x.bool(), -x

    got = torch.compile(function, backend="onnxrt", options=ON_OPENVINO)(x)
    torch.testing.assert_close(got, function(x), equal_nan=True)


@real
def test_a_saved_model_on_the_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        compiled = torch.compile(model, backend="onnxrt", options=ON_OPENVINO)
        dort_rewriter.save(compiled, tmp_path / "saved", x)
        again = lambda *_: pytest.fail("it is compiled again")  # noqa: E731
        monkeypatch.setattr(CompiledForm, "make", again)
        loaded = dort_rewriter.load(tmp_path / "saved")
        torch.testing.assert_close(loaded(x), model(x))


@real
def test_status_and_show_tell_what_sessions_tell(network: Network, tmp_path: Path) -> None:
    compiled = torch.compile(network, backend="onnxrt", options=ON_OPENVINO)
    compiled(torch.randint(0, 11, (3, 7)))
    (line,) = [s for s in dort_rewriter.status().sessions if OPENVINO in s]
    assert re.search(rf"on {OPENVINO} \(\d+ nodes\), {CPU} \(0 nodes\)$", line)
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
    on_it = torch.compile(layers, backend="onnxrt", options=ON_OPENVINO)
    with torch.no_grad():
        dort_rewriter.save(on_it, tmp_path, torch.ones(3, 4))
    assert f"on {OPENVINO} (2 nodes), {CPU} (0 nodes), compiled: " in str(read_saved(tmp_path))


@real
def test_comparing_and_timing_on_the_plug_in() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU()).eval(), torch.ones(3, 4)
    named: list[Any] = ON_OPENVINO["preferred_execution_providers"]
    compared = dort_rewriter.compare_exporters(model, x, providers=named, repeat=1)
    assert all(r.agrees and r.providers == (OPENVINO, CPU) for r in compared.results)
    timed = benchmark(model, [x], backends=["eager", "onnxrt-openvino"], seconds=0.01)
    assert {t.backend for t in timed.timings if t.error is None} == {"eager", "onnxrt-openvino"}


@real
def test_other_ways_to_compile_for_the_plug_in() -> None:
    """Each runs on it, forward and backward; sizes that vary, frozen weights, a warm start."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)), torch.randn(3, 4)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    storage: dict[str, Any] = {}
    ahead, _ = dort_rewriter.make_aot_ort(providers=[OPENVINO], fallback=False)
    for compiled in (
        torch.compile(model, backend=ahead),
        torch.compile(
            model, backend="onnx_custom", options={"providers": [OPENVINO], "storage": storage}
        ),
        torch.compile(model, backend="onnxrt", options=ON_OPENVINO, dynamic=True),
    ):
        torch._dynamo.reset()
        found = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for kept in storage["instance"]:
        assert set(kept["placement"]) == {OPENVINO}
    assert f"on {OPENVINO} (" in dort_rewriter.pprint_storage(storage)
    torch._dynamo.reset()
    frozen = torch.compile(model, backend="onnxrt", options={**ON_OPENVINO, "freeze": True})
    dort_rewriter.warm_up(frozen, [((3, 4),), ((5, 4),)])
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x))


@real
def test_a_policy_takes_the_plug_in() -> None:
    model, x = nn.Linear(4, 2), torch.ones(3, 4)
    for policy in ("PREFER_CPU", "max_performance"):
        torch._dynamo.reset()
        storage: dict[str, Any] = {}
        options = {"providers": [(policy, {"required": True})], "storage": storage}
        compiled = torch.compile(model, backend="onnx_custom", options=options)
        torch.testing.assert_close(compiled(x), model(x))
        assert [set(kept["placement"]) for kept in storage["instance"]] == [{OPENVINO}]
