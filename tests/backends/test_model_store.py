"""Models on disk: another process finds them, and only the right one."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dort_rewriter import OrtBackend
from dort_rewriter.backends import building, own_kernels
from dort_rewriter.backends.model_key import fingerprint


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of its own for each test."""
    monkeypatch.setenv("DORT_CACHE", "1")
    monkeypatch.setenv("DORT_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield tmp_path / "cache" / "models"
    torch._dynamo.reset()


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The graphs that were exported."""
    seen: list[str] = []
    convert = building.convert_graph

    def counting(graph_module: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(str(graph_module.graph))
        return convert(graph_module, *args, **kwargs)

    monkeypatch.setattr(building, "convert_graph", counting)
    return seen


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend=OrtBackend({"fallback": False, **options}))


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))


def _step(module: nn.Module, call: Callable[..., Any], rows: int = 3) -> list[torch.Tensor]:
    module.zero_grad()
    loss = call(torch.linspace(-1, 1, rows * 4).reshape(rows, 4)).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)]


def test_a_graph_met_before_is_not_exported(exports: list[str], folder: Path) -> None:
    """Forward and backward come from the disk, and give the same numbers."""
    module = _network()
    expected = _step(module, module)
    torch.testing.assert_close(_step(module, _compile(module)), expected)
    assert len(exports) == 2
    assert len(list(folder.iterdir())) == 2
    torch.testing.assert_close(_step(module, _compile(module)), expected)
    assert len(exports) == 2


def test_another_process_finds_it(folder: Path) -> None:
    """The key is the same there."""
    program = """
import logging, torch
from dort_rewriter import OrtBackend
logging.getLogger("dort_rewriter").addHandler(logging.StreamHandler())
logging.getLogger("dort_rewriter").setLevel(logging.DEBUG)
backend = OrtBackend({"optimization": {"patterns": "default"}})
f = torch.compile(lambda x: torch.relu(x @ x.t()).sum(0), backend=backend)
print(f(torch.eye(3)))
"""
    command = [sys.executable, "-c", program]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert first.stdout == second.stdout
    assert "found on disk" not in first.stderr
    assert "found on disk" in second.stderr


@pytest.mark.parametrize(
    "other",
    [
        lambda x: torch.relu(x + 2.0),
        lambda x: torch.relu(x + 1),
        lambda x: torch.sigmoid(x + 1.0),
        lambda x: torch.relu(x + torch.tensor([1.0, 2.0, 3.0, 4.0])),
        lambda x: torch.relu(x + torch.tensor([1.0, 2.0, 3.0, 5.0])),
    ],
)
def test_another_graph_has_another_model(
    other: Callable[..., Any], exports: list[str], folder: Path
) -> None:
    """Operators, numbers, their types and the values of constants count."""
    x = torch.randn(3, 4)
    base = [lambda x: torch.relu(x + 1.0), lambda x: torch.relu(x + torch.tensor([1.0] * 4))]
    for function in (*base, other):
        torch.testing.assert_close(_compile(function)(x), function(x))
    assert len(exports) == 3


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(4, 4),
        torch.randn(3, 4, dtype=torch.float64),
        torch.randn(4, 3).t(),
        torch.ones(3, 4, dtype=torch.int64),
    ],
)
def test_other_arguments_have_another_model(x: torch.Tensor, exports: list[str]) -> None:
    """Shapes, types and strides count."""
    for given in (torch.randn(3, 4), x):
        compiled = _compile(lambda x: (x + 1).reshape(-1) * 2)
        torch.testing.assert_close(compiled(given), (given + 1).reshape(-1) * 2)
    assert len(exports) == 2


def test_options_count(exports: list[str]) -> None:
    """Another opset, or other rules, make another model."""
    x = torch.randn(3)
    for options in ({}, {"target_opset": 20}, {"optimization": {"patterns": None}}):
        torch.testing.assert_close(_compile(torch.relu, **options)(x), torch.relu(x))
    assert len(exports) == 3


def test_a_compiler_counts(exports: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with kernels of our own is of no use where they cannot be compiled any more."""

    def pool(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x, 2)

    x = torch.randn(1, 2, 6, 6)
    options = {"optimization": {"patterns": "default+onnxruntime+experimental"}}
    for count in (1, 1):
        torch.testing.assert_close(_compile(pool, **options)(x), pool(x))
        assert len(exports) == count
    monkeypatch.setattr(own_kernels, "is_available", lambda: False)
    torch.testing.assert_close(_compile(pool, **options)(x), pool(x))
    assert len(exports) == 2


def test_dynamic_shapes_are_kept(exports: list[str]) -> None:
    """One model for all sizes, from the disk too."""
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(
            lambda x: x.reshape(-1) + x.shape[0], backend=OrtBackend(), dynamic=True
        )
        for rows in (3, 5, 7):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(compiled(x), x.reshape(-1) + rows)
    assert len(exports) == 1


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"y" * 5000])
def test_a_damaged_entry_is_ignored(
    content: bytes, exports: list[str], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one warning; it is written again."""
    x = torch.randn(3)
    _compile(torch.relu)(x)
    (path,) = folder.iterdir()
    good = path.read_bytes()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "dort_rewriter"):
        torch.testing.assert_close(_compile(torch.relu)(x), torch.relu(x))
    assert len(exports) == 2
    assert path.read_bytes() == good
    assert sum("damaged" in r.message for r in caplog.records) == 1


@pytest.mark.parametrize("switch", ["environment", "option"])
def test_it_can_be_switched_off(
    switch: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read or written."""
    if switch == "environment":
        monkeypatch.setenv("DORT_CACHE", "0")
    _compile(torch.relu, **({"cache": False} if switch == "option" else {}))(torch.randn(3))
    assert not folder.exists() or not list(folder.iterdir())


def test_weights_are_not_stored(exports: list[str], folder: Path) -> None:
    """A frozen model is another at every start of a program."""
    module = _network().eval()
    for _ in range(2):
        with torch.no_grad():
            x = torch.randn(3, 4)
            torch.testing.assert_close(_compile(module, freeze=True)(x), module(x))
    assert len(exports) == 2
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("name", ["rule.py", "kernel.cpp", "kernel.h"])
def test_sources_count(name: str, tmp_path: Path) -> None:
    """A model of yesterday's rules or kernels is not today's."""
    inner = tmp_path / "inner"
    inner.mkdir()
    before = fingerprint(tmp_path)
    (inner / name).write_text("1")
    once = fingerprint(tmp_path)
    (inner / name).write_text("12")
    assert len({before, once, fingerprint(tmp_path)}) == 3
    (inner / "notes.txt").write_text("1")
    (inner / name).unlink()
    assert fingerprint(tmp_path) == before
