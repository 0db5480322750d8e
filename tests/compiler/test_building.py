"""What a block is built of: models of earlier processes, models in the hands of a user's
functions.
"""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter import OrtBackend, onnx_custom_backend
from dort_rewriter.compiler import building
from dort_rewriter.compiler.model_key import fingerprint, model_key
from dort_rewriter.export import registry
from dort_rewriter.export.dispatcher import Dispatcher, ForceDispatcher
from dort_rewriter.export.oxs_debug import OxsDebugDispatcher
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.plan import placement
from dort_rewriter.plan.recipe import Recipe
from dort_rewriter.runtime.disk_cache import FOLDER
from dort_rewriter.runtime.providers import CPU
from tests.backends.ways import compile_strictly


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of its own for each test."""
    monkeypatch.setenv("DORT_CACHE", "1")
    monkeypatch.setenv("DORT_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    yield tmp_path / "cache" / FOLDER
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


@pytest.mark.alternating
@pytest.mark.load_sensitive
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
    monkeypatch.setattr(placement, "is_available", lambda: False)
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


@pytest.mark.load_sensitive
@pytest.mark.parametrize("name", ["rule.py", "kernel.cpp", "kernel.h"])
def test_sources_count(name: str, tmp_path: Path) -> None:
    """A model of yesterday's rules or kernels is not today's: by content, whatever the time."""
    inner, now = tmp_path / "inner", time.time() + 3600
    inner.mkdir()
    (tmp_path / "base.py").write_text("0")
    found = {fingerprint(tmp_path, now)}
    for content in ("1", "2", "12"):
        (inner / name).write_text(content)
        os.utime(inner / name, (1, 1))
        found.add(fingerprint(tmp_path, now))
    assert len(found) == 4
    assert None not in found
    (inner / name).rename(inner / f"other_{name}")
    assert fingerprint(tmp_path, now) not in found
    (inner / "notes.txt").write_text("1")
    (inner / f"other_{name}").unlink()
    assert fingerprint(tmp_path, now) in found


@pytest.mark.load_sensitive
def test_what_was_changed_since_is_not_what_runs(tmp_path: Path) -> None:
    """As by an update of the package while a program runs, also with times that are set back."""
    (tmp_path / "rule.py").write_text("1")
    os.utime(tmp_path / "rule.py", (1, 1))
    assert fingerprint(tmp_path, time.time() + 1) is not None
    assert fingerprint(tmp_path, time.time() - 60) is None


def test_without_sources_there_is_no_telling(tmp_path: Path) -> None:
    """As in an archive."""
    (tmp_path / "rule.pyc").write_text("1")
    assert fingerprint(tmp_path, time.time() + 1) is None


# -- dispatchers --------------------------------------------------------------------------------


def _dispatcher(slope: float, base: type[Dispatcher] = Dispatcher) -> Dispatcher:
    """A dispatcher of a class that is edited between two runs: its name stays."""

    def relu(op: Any, x: Any) -> Any:
        return op.Mul(x, op.constant(slope, x.dtype))

    class Mine(base):  # type: ignore[misc, valid-type]
        def _find_first(self, name: str) -> Any:
            if name == "aten::relu":
                return registry.make_converter(name, relu)
            return super()._find_first(name)

    return Mine()


@pytest.mark.parametrize("base", [Dispatcher, OxsDispatcher, ForceDispatcher])
def test_a_dispatcher_of_the_user_is_asked_each_time(
    base: type[Dispatcher], exports: list[str], folder: Path
) -> None:
    """Its converters may be others tomorrow, under the same names."""
    x = torch.tensor([-1.0, 2.0])
    for slope in (2.0, 3.0):
        torch._dynamo.reset()
        backend = functools.partial(onnx_custom_backend, dispatcher=_dispatcher(slope, base))
        compiled = torch.compile(torch.relu, backend=backend)
        torch.testing.assert_close(compiled(x), x * slope)
    assert len(exports) == 2
    assert not folder.exists() or not list(folder.iterdir())


def test_dispatchers_that_have_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this package, as long as nobody changes them or registers a converter."""
    kinds = (Dispatcher, OxsDispatcher, ForceDispatcher, OxsDebugDispatcher)
    descriptions = [kind().description() for kind in kinds]
    assert None not in descriptions
    assert len(set(descriptions)) == 4
    assert Dispatcher({"aten::relu": lambda op, x: x}).description() is None
    changed: Any = Dispatcher()
    changed.find = lambda node: "no"
    assert changed.description() is None
    with monkeypatch.context() as patch:
        patch.setattr(Dispatcher, "refusal", lambda self, node: None)
        assert Dispatcher().description() is None
        assert OxsDispatcher().description() is None
    converter = registry.make_converter("mine::op", _network)
    monkeypatch.setitem(registry._CONVERTERS, "mine::op", converter)
    assert Dispatcher().description() is None
    assert Dispatcher(own_converters=False).description() is not None


# -- what a graph does not show -----------------------------------------------------------------


def test_where_a_view_begins_counts(exports: list[str]) -> None:
    """``as_strided`` counts from the beginning of the memory."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (2, 2), (2, 1), 1) * 2

    for start in (0, 1):
        x = torch.arange(8.0)[start : start + 6]
        torch.testing.assert_close(_compile(function)(x), function(x))


@pytest.mark.parametrize("asked", ["more", "at least"])
def test_a_guard_on_two_symbols_counts(asked: str) -> None:
    """What is known of a difference depends on a comparison that is not in the graph."""

    def trace(is_asked: bool) -> torch.fx.GraphModule:
        def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            if is_asked:
                assert x.shape[0] > y.shape[0] if asked == "more" else x.shape[0] >= y.shape[0]
            return x * ((x.shape[0] - y.shape[0]) // 2)

        return make_fx(function, tracing_mode="symbolic")(torch.randn(9), torch.randn(4))

    recipe = Recipe(
        dispatcher=Dispatcher(),
        options=OrtBackendOptions(optimization=OptimizationOptions(patterns="default")),
        select_providers=lambda graph, args: [(CPU, {})],
    )
    graphs = [trace(is_asked) for is_asked in (False, True, False, True)]
    assert len({str(g.graph) for g in graphs}) == 1
    keys = [model_key(g, recipe, CPU, numbers={}, outputs=[], orders={}) for g in graphs]
    assert None not in keys
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2


# -- places where nothing can be kept -----------------------------------------------------------


@pytest.mark.alternating
@pytest.mark.load_sensitive
def test_no_home_is_no_error(tmp_path: Path) -> None:
    """Whether the cache is wanted or not."""
    program = (
        "import pwd\n"
        "def nobody(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = nobody\n"
        "import torch\n"
        "from dort_rewriter import OrtBackend\n"
        "options = {'fallback': False, 'optimization': {'patterns': 'default'}}\n"
        "f = torch.compile(torch.relu, backend=OrtBackend(options))\n"
        "print(f(torch.ones(2)).sum().item())\n"
    )
    left_out = ("HOME", "XDG_CACHE_HOME", "DORT_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    environment["USER"] = "nobody"  # torch 2.8 wants a name
    for switch in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "DORT_CACHE": switch, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert done.stdout == "2.0\n", done.stderr


# torch's own rules for forward mode are scripted when they are first needed.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


def function(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin().sum() * x[0]


def chunked(x: torch.Tensor) -> Any:
    return x.chunk(2)[1] * 2, x.flip(0).exp()[1:]


def in_dual_level(f: Callable[..., Any], x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        results = f(forward_ad.make_dual(x, torch.arange(4.0)))
        leaves = torch.utils._pytree.tree_leaves(results)
        return [tuple(forward_ad.unpack_dual(r)) for r in leaves]


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones(4),)),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "vmap": lambda f, x: vmap(f)(torch.stack([x, x + 1])),
    "dual level": in_dual_level,
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("f", [function, chunked])
def test_of_a_compiled_function(f: Callable[..., Any], name: str) -> None:
    x = torch.randn(4)
    compiled, _ = compile_strictly(f, fullgraph=False)
    torch.testing.assert_close(TRANSFORMS[name](compiled, x), TRANSFORMS[name](f, x))


def test_gradient_of_a_compiled_function() -> None:
    x = torch.randn(4)
    compiled, _ = compile_strictly(function, fullgraph=False)
    torch.testing.assert_close(grad(compiled)(x), grad(function)(x))


@pytest.mark.parametrize("name", [*TRANSFORMS, "grad"])
def test_in_a_compiled_function(name: str) -> None:
    transforms = {**TRANSFORMS, "grad": lambda f, x: grad(f)(x)}

    def transformed(x: torch.Tensor) -> Any:
        return transforms[name](function, x)

    x = torch.randn(4)
    compiled, _ = compile_strictly(transformed, fullgraph=False, fallback=True)
    torch.testing.assert_close(compiled(x), transformed(x))


def test_tangents_of_some_calls_only() -> None:
    """One compiled graph serves calls with tangents and without."""
    x = torch.randn(4)
    compiled, backend = compile_strictly(chunked)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), chunked(x))
        torch.testing.assert_close(in_dual_level(compiled, x), in_dual_level(chunked, x))
    assert backend.execution_count == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # a dual is no leaf
def test_forward_mode_through_a_backward_graph_is_refused() -> None:
    compiled, _ = compile_strictly(function)
    # NotImplementedError before torch 2.15, where Dynamo refuses a dual itself.
    with pytest.raises(RuntimeError, match=r"jvp|dual tensor"):
        in_dual_level(compiled, torch.randn(4).requires_grad_())
