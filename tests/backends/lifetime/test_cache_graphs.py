"""``cache_graphs``: another process does not trace again, and nothing else is different."""

from __future__ import annotations

import functools
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from dort_rewriter import OrtBackend
from dort_rewriter.compiler import graph_key as keys
from dort_rewriter.compiler.model_key import plain_text
from dort_rewriter.errors import CaptureError
from dort_rewriter.runtime.disk_cache import FOLDER
from tests.backends.lifetime.cached_graphs import KEPT, TRACED, network, numbers, step
from tests.gates.sources import ROOT

CAN_KEEP = keys._can_keep()
"""Whether this torch has such a cache; the same programs run where it has none."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Empty caches of its own for each test; the folder of torch's."""
    monkeypatch.setenv("DORT_CACHE", "1")
    monkeypatch.setenv("DORT_CACHE_DIR", str(tmp_path / "models"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "graphs"))
    torch._dynamo.reset()
    counters.clear()
    yield tmp_path / "graphs" / "aotautograd"
    torch._dynamo.reset()


def _compile(target: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    counters.clear()
    patterns = {"patterns": "default+onnxruntime"}  # no library has to be compiled
    chosen = {"optimization": patterns, "cache_graphs": True, **options}
    compiled: Callable[..., Any] = torch.compile(target, backend=OrtBackend(chosen))
    return compiled


def _found() -> int:
    return counters["aot_autograd"]["autograd_cache_hit"]


def _kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# -- processes ----------------------------------------------------------------------------------


@pytest.mark.alternating
@pytest.mark.load_sensitive
def test_other_processes_find_them(tmp_path: Path) -> None:
    """Results, strides, views, gradients, buffers and runs are the same; nothing is traced."""
    command = [sys.executable, "-m", "tests.backends.lifetime.cached_graphs"]
    first, second = (
        json.loads(
            subprocess.run(
                [*command, *words], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.splitlines()[-1]
        )
        for words in (("off", "on"), ("on",))
    )
    for program in (*KEPT, *TRACED):
        traced, made, met = (
            p[program.__name__] for p in (first["off"], first["on"], second["on"])
        )
        assert made["results"] == traced["results"], program
        assert met["results"] == traced["results"], program
        assert met["runs"] == made["runs"] == traced["runs"], program
        hits = met["found"]["hit"] > 0
        assert hits == (CAN_KEEP and program in KEPT), program
        assert met["found"]["saved"] == 0, program
    imported = {tuple(p["imported"]) for p in (first["off"], first["on"], second["on"])}
    assert imported == {tuple(first["off"]["imported"])}


def test_what_torch_carries_to_another_machine_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = network()
    expected = step(module, _compile(module), numbers(3, 4))
    artifacts = getattr(torch.compiler, "save_cache_artifacts", lambda: None)()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert (artifacts is not None) == CAN_KEEP
    if artifacts is not None:
        torch.compiler.load_cache_artifacts(artifacts[0])
    torch.testing.assert_close(step(module, _compile(module), numbers(3, 4)), expected)
    assert _found() == int(CAN_KEEP)


# -- what is found, and what is not -------------------------------------------------------------


def test_nothing_is_kept_unless_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = network()
    step(module, _compile(module, cache_graphs=False), numbers(3, 4))
    monkeypatch.setenv("DORT_CACHE", "0")
    step(module, _compile(module), numbers(3, 4))
    assert not _kept(folder)


@pytest.mark.parametrize(
    "options", [{"fallback": False}, {"target_opset": 19}, {"freeze": True}, {"spinning": "off"}]
)
def test_other_options_trace_again(options: dict[str, Any]) -> None:
    module = network().eval()
    with torch.no_grad():
        expected = _compile(module)(numbers(3, 4))
        torch.testing.assert_close(_compile(module, **options)(numbers(3, 4)), expected)
        assert _found() == 0
        torch.testing.assert_close(_compile(module, **options)(numbers(3, 4)), expected)
        assert _found() == int(CAN_KEEP)


def test_a_setting_of_torch_traces_again() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(q, q, q)

    q = numbers(1, 2, 6, 4)
    expected = attend(q)
    torch.testing.assert_close(_compile(attend)(q), expected)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.testing.assert_close(_compile(attend)(q), expected)
        assert _found() == 0


@pytest.mark.parametrize("place", [0, 2, 4], ids=["alike", "overlapping", "beside"])
def test_arguments_that_share_memory_have_a_graph_of_their_own(place: int) -> None:
    """torch's key does not tell them from others, and what is written is read through both."""

    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    def results(call: Callable[..., Any], *, shared: bool) -> tuple[torch.Tensor, ...]:
        memory, other = torch.arange(8.0), torch.arange(8.0)
        given = (memory if shared else other)[place : place + 4]
        return call(memory[:4], given), memory, other

    for shared in (False, True, False, True):
        expected = results(write, shared=shared)
        torch.testing.assert_close(results(_compile(write), shared=shared), expected)
        assert _found() == 0 or not shared
    results(_compile(write), shared=False)
    assert _found() == int(CAN_KEEP)


def test_any_size_finds_the_graph_of_any_size() -> None:
    module = network().eval()
    with torch.no_grad():
        for rows in (3, 7):
            backend = OrtBackend({"cache_graphs": True, "optimization": {"patterns": "default"}})
            torch._dynamo.reset()
            counters.clear()
            compiled = torch.compile(module[0], backend=backend, dynamic=True)
            x = numbers(rows, 4)
            torch.testing.assert_close(compiled(x), module[0](x))
            assert _found() == int(CAN_KEEP and rows == 7)


def test_a_damaged_entry_is_traced_again(folder: Path) -> None:
    module = network()
    expected = step(module, _compile(module), numbers(3, 4))
    for path in _kept(folder):
        path.write_bytes(path.read_bytes()[:-100])
    torch.testing.assert_close(step(module, _compile(module), numbers(3, 4)), expected)
    assert _found() == 0


def _calling(name: str) -> Callable[[Any], Any]:
    """Let the nodes of a graph call an operator that there is not."""
    operator = ("operator", "aten", name, "default")
    return lambda nodes: tuple(
        (op, called, operator if target[0] == "operator" else target, *rest)
        for op, called, target, *rest in nodes
    )


@pytest.mark.parametrize(
    "spoil",
    [lambda nodes: (), lambda nodes: None, lambda nodes: nodes[1:], _calling("no_such_operator")],
    ids=["empty", "nothing", "too few", "unknown"],
)
def test_an_entry_of_something_else_is_traced_again(
    spoil: Callable[[Any], Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused by one line, whatever is wrong with it."""
    module = network()
    expected = step(module, _compile(module), numbers(3, 4))
    for path in _kept(folder):
        entry = pickle.loads(path.read_bytes())
        data = entry.compiled_bw.result._data
        object.__setattr__(data, "nodes", spoil(data.nodes))
        path.write_bytes(pickle.dumps(entry))
    caplog.set_level(logging.INFO, "dort_rewriter.capture.cached_graphs")
    torch.testing.assert_close(step(module, _compile(module), numbers(3, 4)), expected)
    assert _found() == 0
    told = [r for r in caplog.records if "traced again" in r.getMessage()]
    assert len(told) == int(CAN_KEEP)


def test_models_that_are_gone_are_exported_again(tmp_path: Path) -> None:
    module = network()
    expected = step(module, _compile(module), numbers(3, 4))
    for path in (tmp_path / "models" / FOLDER).iterdir():
        path.unlink()
    torch.testing.assert_close(step(module, _compile(module), numbers(3, 4)), expected)
    assert _found() == int(CAN_KEEP)


def test_calls_and_failures_are_those_of_a_graph_that_was_traced() -> None:
    """Counting, fallbacks and errors of arguments see no difference."""
    table = nn.Embedding(4, 3)
    for _ in range(2):
        compiled = _compile(table)
        with pytest.raises(IndexError, match="out of range"):
            compiled(torch.tensor([5]))
        torch.testing.assert_close(compiled(torch.tensor([1])), table(torch.tensor([1])))
    assert _found() == int(CAN_KEEP)


# -- what has no key ----------------------------------------------------------------------------


def _key(target: Callable[..., Any], *args: Any, **options: Any) -> str | None:
    """The key of the graph of a function."""
    found: list[str | None] = []
    compute = keys.graph_key

    def noted(*given: Any) -> str | None:
        found.append(compute(*given))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dort_rewriter.backends.onnxrt_graphs.graph_key", noted)
        _compile(target, **options)(*args)
    return found[-1]


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_the_same_has_the_same_key() -> None:
    keys_of = {_key(_twice, numbers(3)) for _ in range(2)}
    assert len(keys_of) == 1
    assert (keys_of == {None}) == (not CAN_KEEP)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pre_ort_model_transforms": [lambda model: None]}, "an option is a function"),
        ({"optimization": {"patterns": [object]}}, "an option is a type"),
    ],
)
def test_what_a_user_gives_has_none(
    options: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dort_rewriter.compiler.graph_key")
    if "optimization" in options:
        with pytest.raises(CaptureError, match=reason):
            plain_text(options["optimization"]["patterns"])
        return
    assert _key(_twice, numbers(3), **options) is None
    assert (reason in caplog.text) == CAN_KEEP


def test_an_old_torch_says_that_it_keeps_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "_can_keep", lambda: False)
    caplog.set_level(logging.INFO, "dort_rewriter.compiler.graph_key")
    assert _key(_twice, numbers(3)) is None
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert "this torch keeps graphs of its own compilers only" in caplog.text


def test_a_large_constant_has_none() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("big"),))
    holder = nn.Module()
    holder.register_buffer("big", torch.zeros(100_000))
    with pytest.raises(CaptureError, match="big"):
        list(keys._graph(torch.fx.GraphModule(holder, graph)))


def test_operators_and_decompositions_of_others_have_none() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.prim.device.default, (x,)),))
    with pytest.raises(CaptureError, match="an operator of others"):
        list(keys._graph(torch.fx.GraphModule({}, graph)))
    with pytest.raises(CaptureError, match="decomposed by tests"):
        list(keys._table({"aten::relu": functools.partial(torch.add, _twice)}))
