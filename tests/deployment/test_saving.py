"""What is saved gives what the compiled model gives: bit for bit, in the same structure."""

from __future__ import annotations

import collections
import dataclasses
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import OrtBackend
from dort_rewriter.errors import CaptureError


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled_of(target: Any, **options: Any) -> Any:
    dynamic = options.pop("dynamic", None)
    return torch.compile(target, backend=OrtBackend(options), dynamic=dynamic)


def leaves_of(value: Any) -> list[Any]:
    """The leaves of a result, whatever class holds them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, dict):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = list(dict.values(value))  # a field may be called values
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def assert_same(given: Any, expected: Any) -> None:
    """Compare two results, bit for bit."""
    mine, theirs = leaves_of(given), leaves_of(expected)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            assert type(a) is type(b)
            continue
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


@torch.no_grad()
def assert_saved(compiled: Any, path: Path, *calls: tuple[Any, ...], **kwargs: Any) -> Any:
    """Save a model that was called as the first call says, and compare all calls."""
    compiled(*calls[0], **kwargs)
    dort_rewriter.save(compiled, path)
    loaded = dort_rewriter.load(path)
    for call in calls:
        assert_same(loaded(*call, **kwargs), compiled(*call, **kwargs))
    return loaded


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).softmax(-1)


Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Output:
    values: torch.Tensor
    total: torch.Tensor | None = None


def scaled(x: torch.Tensor, *, by: float = 2.0, sign: bool = True) -> torch.Tensor:
    return x * by if sign else -x * by


def named(x: torch.Tensor, y: torch.Tensor) -> Any:
    return Pair(x + y, {"product": x * y, "both": [x, (y, None, 3, "text")]})


def as_dataclass(x: torch.Tensor) -> Output:
    return Output(x * 2)


def of_many(*parts: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
    return sum(parts) + more["last"]


def nested(batch: dict[str, Any]) -> torch.Tensor:
    return batch["ids"][0] * 2 + batch["ids"][1][0]


def of_numbers(x: torch.Tensor, n: int, mode: str | None = None) -> torch.Tensor:
    return x.view(n, -1).sum(0) if mode is None else x * n


def typed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype)


A, B = torch.randn(2, 3), torch.randn(2, 3)

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "defaults": (scaled, (A,), {}),
    "by name": (scaled, (), {"x": A, "by": 3.0, "sign": False}),
    "named tuple": (named, (A, B), {}),
    "dataclass": (as_dataclass, (A,), {}),
    "any number": (of_many, (A, B), {"last": A}),
    "nested": (nested, ({"ids": [A, (B,)]},), {}),
    "numbers": (of_numbers, (A, 2), {}),
    "text": (of_numbers, (A, 2, "scale"), {}),
    "type": (typed, (A, torch.float64), {}),
    "one tensor twice": (lambda x, y: x + y, (A, A), {}),
    "expanded": (lambda x: x + 1, (torch.randn(1, 3).expand(2, 3),), {}),
    "what torch names": (lambda x: torch.topk(x, 2), (A,), {}),
    "whole numbers": (lambda x, i: x[i], (A, torch.tensor([1, 0])), {}),
    "bool": (lambda x: (x > 0, ~(x > 0)), (A,), {}),
    "transposed": (lambda x: x.relu() + 1, (A.t(),), {}),
    "strided": (lambda x: x.exp(), (torch.randn(4, 6)[::2, ::3],), {}),
    "channels last": (
        lambda x: x * 2,
        (torch.randn(1, 3, 4, 4).to(memory_format=torch.channels_last),),
        {},
    ),
    "views": (lambda x: (x.t(), x.view(-1), x[0], x + 1), (A,), {}),
    "views of a result": (lambda x: (y := x + 1, y.t(), y[0]), (A,), {}),
    "empty": (lambda x: x + 1, (torch.zeros(0, 3),), {}),
    "no axes": (lambda x: x.sin(), (torch.tensor(1.5),), {}),
    "not a number": (lambda x: x / x, (torch.zeros(3),), {}),
    "size": (lambda x: (x * 2, x.shape[0], x.shape), (A,), {}),
    "halves": (lambda x, y: x @ y.t(), (A.bfloat16(), B.bfloat16()), {}),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_function_is_called_as_before(case: str, tmp_path: Path) -> None:
    function, args, kwargs = CALLS[case]
    compiled = compiled_of(function)
    with torch.no_grad():
        expected = compiled(*args, **kwargs)
        dort_rewriter.save(compiled, tmp_path)
        given = dort_rewriter.load(tmp_path)(*args, **kwargs)
    assert_same(given, expected)


def test_results_have_the_fields_they_had(tmp_path: Path) -> None:
    """Tuples with names are such tuples; what had fields has them as items and as attributes."""
    with torch.no_grad():
        dort_rewriter.save(compiled_of(named), tmp_path, A, B)
        pair = dort_rewriter.load(tmp_path)(A, B)
        assert pair._fields == ("first", "second")
        assert pair.second["both"][0] is A
        dort_rewriter.save(compiled_of(as_dataclass), tmp_path, A)
        output = dort_rewriter.load(tmp_path)(A)
    assert output.values is output["values"]
    assert output.total is None
    with pytest.raises(AttributeError, match="no field 'sum'"):
        output.sum  # noqa: B018


@pytest.mark.parametrize("options", [{}, {"freeze": True}, {"preallocate_output": True}])
def test_a_module(options: dict[str, Any], tmp_path: Path) -> None:
    compiled = compiled_of(Network().eval(), **options)
    loaded = assert_saved(compiled, tmp_path, (torch.randn(3, 4),), (torch.randn(3, 4),))
    assert len(loaded.state) == (0 if options.get("freeze") else 6)


def test_sizes_that_may_vary(tmp_path: Path) -> None:
    """One saved model takes each batch, as the compiled one does."""
    calls = [(torch.randn(n, 4),) for n in (3, 5, 2, 64)]
    assert_saved(compiled_of(Network(), dynamic=True), tmp_path, *calls)


@torch.no_grad()
def test_sizes_that_varied(tmp_path: Path) -> None:
    """What Dynamo found to vary, by two calls, varies in what is saved."""
    compiled = compiled_of(Network())
    for n in (3, 5):
        compiled(torch.randn(n, 4))
    dort_rewriter.save(compiled, tmp_path / "seen")
    dort_rewriter.save(compiled, tmp_path / "given", torch.randn(9, 4))
    for name in ("seen", "given"):
        loaded = dort_rewriter.load(tmp_path / name)
        for n in (2, 7):
            x = torch.randn(n, 4)
            assert_same(loaded(x), compiled(x))


@torch.no_grad()
def test_relations_of_sizes_are_kept(tmp_path: Path) -> None:
    """Sizes that have to be equal, or multiples, are asked for."""

    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x @ y

    def halved(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, -1) * 2

    loaded = assert_saved(
        compiled_of(product, dynamic=True),
        tmp_path,
        (torch.randn(3, 4), torch.randn(4, 5)),
        (torch.randn(6, 2), torch.randn(2, 9)),
    )
    with pytest.raises(dort_rewriter.ExecutionError, match=r"x\.shape\[1\]|y\.shape\[0\]"):
        loaded(torch.randn(3, 4), torch.randn(5, 4))
    loaded = assert_saved(compiled_of(halved, dynamic=True), tmp_path, (torch.randn(4, 3),))
    assert_same(loaded(torch.randn(8, 5) * 0), torch.zeros(2, 20))
    with pytest.raises(dort_rewriter.ExecutionError):
        loaded(torch.randn(3, 5))


class Cache(nn.Module):
    """A cache of fixed size, written in place, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(2, 8, 4))
        self.register_buffer("length", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1]) + self.length
        self.length.add_(x.shape[1])
        self.keys.index_copy_(1, place, self.project(x))
        return self.keys.sum(1)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["inside", "reference"])
def test_buffers_that_are_written_to(weights: Any, tmp_path: Path) -> None:
    """A static cache goes on in what was loaded as in the module; saving changes none of it."""
    module = Cache().eval()
    compiled = compiled_of(module)
    compiled(torch.randn(2, 1, 4))
    before = {name: b.clone() for name, b in module.named_buffers()}
    dort_rewriter.save(compiled, tmp_path, weights=weights)
    assert all(torch.equal(b, before[name]) for name, b in module.named_buffers())
    other = Cache().eval()
    other.load_state_dict(module.state_dict())
    loaded = dort_rewriter.load(tmp_path, other if weights == "reference" else None)
    for _ in range(3):
        x = torch.randn(2, 1, 4)
        assert_same(loaded(x), compiled(x))
    assert torch.equal(loaded.state["keys"], module.keys)
    assert int(loaded.state["length"]) == 4
    assert torch.equal(other.keys, module.keys) is (weights == "reference")
    again = dort_rewriter.load(tmp_path, other if weights == "reference" else None)
    assert int(again.state["length"]) == (4 if weights == "reference" else 1)


@torch.no_grad()
def test_an_argument_that_is_written_to(tmp_path: Path) -> None:
    def add_to(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2

    compiled = compiled_of(add_to)
    total, x = torch.zeros(3), torch.randn(3)
    compiled(total, x)
    dort_rewriter.save(compiled, tmp_path, total, x)
    assert torch.equal(total, x)
    loaded = dort_rewriter.load(tmp_path)
    assert_same(loaded(total, x), (x + x) * 2)
    assert torch.equal(total, x + x)
    with pytest.raises(dort_rewriter.ExecutionError, match="shares its memory"):
        loaded(total, total)


@torch.no_grad()
def test_what_is_written_to_is_returned(tmp_path: Path) -> None:
    """The argument itself, with its new values."""

    def add_to(total: torch.Tensor, x: torch.Tensor) -> Any:
        return total.add_(x), total * 2

    compiled = compiled_of(add_to)
    dort_rewriter.save(compiled, tmp_path, torch.zeros(3), torch.ones(3))
    total = torch.zeros(3)
    given = dort_rewriter.load(tmp_path)(total, torch.ones(3))
    assert given[0] is total
    assert_same(given, (torch.ones(3), torch.full((3,), 2.0)))


class Tied(nn.Module):
    """Weights used twice, a tensor that is no buffer, weights in another order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.tensor([1.0, 2.0, 3.0, 4.0])
        self.mix = nn.Parameter(torch.randn(4, 5).t())

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.embed(ids) * self.scale), self.mix.sum(0), self.mix


@torch.no_grad()
@pytest.mark.parametrize("weights", ["inside", "reference"])
def test_tensors_of_a_module(weights: Any, tmp_path: Path) -> None:
    module = Tied()
    compiled = compiled_of(module)
    ids = torch.tensor([[1, 2], [3, 6]])
    expected = compiled(ids)
    dort_rewriter.save(compiled, tmp_path, weights=weights)
    loaded = dort_rewriter.load(tmp_path, module if weights == "reference" else None)
    assert_same(loaded(ids), expected)
    assert (loaded(ids)[2].data_ptr() == module.mix.data_ptr()) is (weights == "reference")
    assert {"mix", "embed.weight"} <= set(loaded.state)


@torch.no_grad()
def test_weights_by_reference(tmp_path: Path) -> None:
    """The module's tensors are those that are used, as they are at each call."""
    module = Network().eval()
    compiled = compiled_of(module)
    x = torch.randn(3, 4)
    compiled(x)
    dort_rewriter.save(compiled, tmp_path, weights="reference")
    other = Network().eval()
    loaded = dort_rewriter.load(tmp_path, other)
    torch.testing.assert_close(loaded(x), other(x))
    for parameter in other.parameters():
        parameter.mul_(0.5)
    torch.testing.assert_close(loaded(x), other(x))
    by_name = dort_rewriter.load(tmp_path, module.state_dict())
    assert_same(by_name(x), compiled(x))
    assert sum(f.stat().st_size for f in tmp_path.iterdir() if f.suffix == ".bin") == 0
    with pytest.raises(dort_rewriter.OptionError, match="give the module"):
        dort_rewriter.load(tmp_path)
    with pytest.raises(dort_rewriter.ExecutionError, match="another mode"):
        dort_rewriter.load(tmp_path, Network())
    with pytest.raises(dort_rewriter.ExecutionError, match=r"no parameter 'layers\.0\.weight'"):
        dort_rewriter.load(tmp_path, {})
    with pytest.raises(dort_rewriter.ExecutionError, match="float64"):
        dort_rewriter.load(tmp_path, Network().eval().double())


@torch.no_grad()
def test_the_ways_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name with options, as a method, in place."""
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    x = torch.randn(3, 4)
    by_name = torch.compile(Network().eval(), backend="onnxrt", options={"freeze": True})
    method = Network().eval()
    method.forward = torch.compile(method.forward, backend=OrtBackend())
    in_place = Network().eval()
    in_place.compile(backend=OrtBackend())
    for i, compiled in enumerate((by_name, method.forward, in_place)):
        expected = compiled(x)
        dort_rewriter.save(compiled, tmp_path / str(i))
        loaded = dort_rewriter.load(tmp_path / str(i))
        assert_same(loaded(x), expected)
    assert not dort_rewriter.load(tmp_path / "0").state


def test_example_arguments_make_a_first_call_needless(tmp_path: Path) -> None:
    compiled = compiled_of(Network().eval())
    x = torch.randn(3, 4)
    with pytest.raises(dort_rewriter.CaptureError, match="give example arguments"):
        dort_rewriter.save(compiled, tmp_path)
    dort_rewriter.save(compiled, tmp_path, x)
    with torch.no_grad():
        assert_same(dort_rewriter.load(tmp_path)(x), compiled(x))


@torch.no_grad()
def test_autocast_is_part_of_what_is_saved(tmp_path: Path) -> None:
    compiled = compiled_of(Network().eval())
    x = torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        expected = compiled(x)
        dort_rewriter.save(compiled, tmp_path)
        loaded = dort_rewriter.load(tmp_path)
        assert_same(loaded(x), expected)
    with pytest.raises(dort_rewriter.ExecutionError, match=r"saved under autocast.*no autocast"):
        loaded(x)


@torch.no_grad()
def test_saving_again_replaces_what_was_there(tmp_path: Path) -> None:
    x = torch.randn(3)
    dort_rewriter.save(compiled_of(torch.sin), tmp_path, x)
    (tmp_path / "notes.txt").write_text("kept")
    before = {f.name for f in tmp_path.iterdir()}
    first = dort_rewriter.load(tmp_path)
    dort_rewriter.save(compiled_of(torch.cos), tmp_path, x)
    after = {f.name for f in tmp_path.iterdir()}
    assert len(after) == len(before)
    assert before & after == {"saved.json", "notes.txt"}
    torch.testing.assert_close(dort_rewriter.load(tmp_path)(x), x.cos())
    torch.testing.assert_close(first(x), x.sin())


@torch.no_grad()
def test_nothing_is_left_of_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves the model that was there."""
    x = torch.randn(3)
    dort_rewriter.save(compiled_of(torch.sin), tmp_path, x)
    before = {f.name for f in tmp_path.iterdir()}

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dort_rewriter.deployment.saving.write_tensors", fail)
    with pytest.raises(dort_rewriter.ExportError, match="No space left"):
        dort_rewriter.save(compiled_of(torch.cos), tmp_path, x)
    assert {f.name for f in tmp_path.iterdir()} == before
    torch.testing.assert_close(dort_rewriter.load(tmp_path)(x), x.sin())


@torch.no_grad()
def test_a_model_that_is_saved_can_go(tmp_path: Path) -> None:
    """Neither what Dynamo keeps nor what is noted of calls holds a module."""
    module = Network().eval()
    compiled = compiled_of(module)
    dort_rewriter.save(compiled, tmp_path, torch.randn(3, 4))
    gone = weakref.ref(module)
    del module, compiled
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None


def counting(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.calls += 1
    return x * 2


class Counter(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return counting(self, x)


class Holder(nn.Module):
    """It writes to a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return self.total * 2


class Thing:
    tensor = torch.ones(3)


def broken(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return x * 2


REFUSED: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "a graph break": (broken, (torch.ones(3),), "not one graph"),
    "a choice by values": (lambda x: x * 2 if x.sum() > 0 else x, (torch.ones(3),), "not one"),
    "random numbers": (lambda x: x + torch.rand(3), (torch.ones(3),), "aten::rand"),
    "dropout": (nn.Dropout(0.5), (torch.ones(3),), "runs in torch"),
    "a side effect": (Counter(), (torch.ones(3),), "changes Python objects"),
    "a tensor that is no buffer": (Holder(), (torch.ones(3),), "register_buffer"),
    "an object": (lambda x, t: x + t.tensor, (torch.ones(3), Thing()), "is a Thing"),
    "an object as a result": (lambda x: (x + 1, Thing), (torch.ones(3),), "result.1. is a"),
    "complex roots": (lambda x: (x * 1j).sqrt(), (torch.ones(4),), "runs in torch"),
    "a view of what is written": (lambda x: x[0].add_(1), (torch.ones(3, 2),), "a view of"),
    "nothing": (lambda n: n * 2, (3,), "computes nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_saved_says_why(case: str, tmp_path: Path) -> None:
    target, args, why = REFUSED[case]
    if isinstance(target, Counter):
        target.calls = 0
    with pytest.raises(dort_rewriter.CaptureError, match=why):
        dort_rewriter.save(compiled_of(target), tmp_path, *args)
    assert not list(tmp_path.iterdir())
    assert getattr(target, "calls", 0) == 0


def test_options_that_cannot_be_saved(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    module = Network().eval()
    with pytest.raises(dort_rewriter.OptionError, match="'inside' or 'reference'"):
        dort_rewriter.save(compiled_of(module), tmp_path, x, weights="outside")  # type: ignore[arg-type]
    with pytest.raises(dort_rewriter.OptionError, match="freeze"):
        dort_rewriter.save(compiled_of(module, freeze=True), tmp_path, x, weights="reference")
    with pytest.raises(dort_rewriter.CaptureError, match="autotune"):
        dort_rewriter.save(compiled_of(module, autotune=True), tmp_path, x)
    with pytest.raises(dort_rewriter.CaptureError, match="another backend"):
        dort_rewriter.save(torch.compile(module, backend="aot_eager"), tmp_path, x)
    with pytest.raises(dort_rewriter.CaptureError, match="is not compiled"):
        dort_rewriter.save(module, tmp_path, x)
    with pytest.raises(dort_rewriter.CaptureError, match="is not compiled"):
        dort_rewriter.save(scaled, tmp_path, x)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(dort_rewriter.ExportError, match="Cannot write"):
        dort_rewriter.save(compiled_of(torch.sin), tmp_path / "a" / "b", torch.ones(3))
    (tmp_path / "file").write_text("here")
    with pytest.raises(dort_rewriter.ExportError, match="Cannot write"):
        dort_rewriter.save(compiled_of(torch.sin), tmp_path / "file", torch.ones(3))


@pytest.mark.skipif(
    not hasattr(torch._functorch.config, "bypass_autograd_cache_key"),
    reason="this torch has no aot_compile for other backends",
)
def test_what_torch_compiles_ahead_is_refused_with_a_way_out() -> None:
    compiled = torch.compile(nn.Linear(4, 3).forward, backend="onnxrt", fullgraph=True)
    with pytest.raises(CaptureError, match=r"dort_rewriter\.save"):
        compiled.aot_compile(((torch.ones(2, 4),), {}))


def test_arguments_that_are_negated_or_conjugated_when_read(tmp_path: Path) -> None:
    """torch notes it in a bit, which a session does not see."""

    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x * (2 + 1j) + 1

    compiled = torch.compile(shifted, backend=OrtBackend())
    x = torch.randn(4, dtype=torch.complex64)
    compiled(x)
    dort_rewriter.save(compiled, tmp_path / "saved")
    loaded = dort_rewriter.load(tmp_path / "saved")
    for given in (x.conj(), torch._neg_view(x), torch._neg_view(x.conj())):
        torch.testing.assert_close(loaded(given), shifted(given))
