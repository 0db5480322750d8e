"""One folder serves several calls: each with its graph, with weights that are there once."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import CaptureError, ExecutionError, OptionError, OrtBackend
from dort_rewriter.tools.cli import main
from dort_rewriter.tools.saved_text import read_saved
from tests.deployment.forged import rewrite
from tests.deployment.test_saving import assert_same, compiled_of
from tests.torch_facts import TELLS_SQUARES_APART


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 64), nn.LayerNorm(64), nn.GELU())
        self.head = nn.Linear(64, 2)

    def forward(self, x: torch.Tensor, *, head: bool = True) -> torch.Tensor:
        y = self.layers(x)
        return self.head(y) if head else y.sum(-1)


def files(folder: Path, suffix: str) -> list[Path]:
    return sorted(folder.glob(f"*{suffix}"))


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"freeze": True}])
def test_a_dynamic_model_serves_a_batch_of_one(options: dict[str, Any], tmp_path: Path) -> None:
    """As the compiled model does, whatever came before; saved by its arguments or after a call."""
    compiled = compiled_of(Network().eval(), dynamic=True, **options)
    x = torch.randn(16, 4)
    dort_rewriter.save(compiled, tmp_path / "given", x)
    compiled(x)
    dort_rewriter.save(compiled, tmp_path / "seen")
    for name in ("given", "seen"):
        loaded = dort_rewriter.load(tmp_path / name)
        for rows in (1, 5, 1, 16, 1, 2):
            assert_same(loaded(x[:rows]), compiled(x[:rows]))
        assert repr(loaded).endswith("x: (2+, 4) | x: (1, 4))")
    weights = sum(p.numel() * 4 for p in Network().parameters())
    kept = sum(f.stat().st_size for f in files(tmp_path / "given", ".bin"))
    assert kept == 0 if options else weights <= kept < weights + 64 * 8


@torch.no_grad()
@pytest.mark.parametrize("weights", [None, "int8"])
def test_frozen_weights_are_on_disk_once(weights: Any, tmp_path: Path) -> None:
    """Whatever graphs hold them: they are parts of several models."""
    low_bits = [] if weights is None else [{"weights": weights}]
    options = {"freeze": True, **{k: v for d in low_bits for k, v in d.items()}}
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 128)).eval()
    try:
        compiled = compiled_of(model, dynamic=True, **options)
        dort_rewriter.save(compiled, tmp_path / "all", torch.randn(4, 256))
    except OptionError as error:
        pytest.skip(f"this onnxruntime has no such kernel: {error}")
    static = compiled_of(model, dynamic=False, **options)
    dort_rewriter.save(static, tmp_path / "one", torch.randn(4, 256))
    sizes = [sum(f.stat().st_size for f in (tmp_path / n).iterdir()) for n in ("all", "one")]
    assert sizes[0] < sizes[1] * 1.4
    loaded = dort_rewriter.load(tmp_path / "all")
    for rows in (1, 3, 1):
        x = torch.randn(rows, 256)
        assert_same(loaded(x), compiled(x))
    shown, alone = (read_saved(tmp_path / name) for name in ("all", "one"))
    assert shown.saved.calls[1].graph.insertions
    assert sum(shown.counts[0].values()) >= sum(alone.counts[0].values()) > 0
    assert main(["show", str(tmp_path / "all"), "--count"]) == 0


@torch.no_grad()
@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["parts"][0].update(offset=2**40),
        lambda c: c["parts"][0].update(bytes=2**40),
        lambda c: c["parts"][0].update(digest=1),
        lambda c: c["parts"].clear(),
        lambda c: c["calls"][0]["graph"]["insertions"].reverse(),
        lambda c: c["calls"][0]["graph"]["insertions"][0].update(position=0),
        lambda c: c["calls"][0]["graph"]["insertions"].extend(
            [{"position": 10**6, "part": 0}] * 10**5
        ),
        lambda c: c["calls"][0]["graph"].update(insertions=None),
        lambda c: c["files"].pop("parts"),
    ],
)
def test_forged_parts_are_refused(change: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    compiled = compiled_of(model, dynamic=True, freeze=True)
    dort_rewriter.save(compiled, tmp_path, torch.randn(4, 64))
    rewrite(tmp_path, change)
    with pytest.raises(ExecutionError):
        dort_rewriter.load(tmp_path)


@torch.no_grad()
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_has_the_parts_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    compiled = compiled_of(nn.Linear(64, 64), dynamic=True, freeze=True, intra_op_threads=2)
    x = torch.randn(4, 64)
    dort_rewriter.save(compiled, tmp_path / "saved", x)
    loaded = dort_rewriter.load(tmp_path / "saved")
    expected = loaded(x), loaded(x[:1])
    shutil.rmtree(tmp_path / "saved")
    child = os.fork()
    if child == 0:
        try:
            same = torch.equal(loaded(x), expected[0]) and torch.equal(loaded(x[:1]), expected[1])
            os._exit(0 if same else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0


@torch.no_grad()
def test_sizes_found_by_calls_have_ones_too(tmp_path: Path) -> None:
    compiled = compiled_of(Network().eval())
    for rows in (3, 5):
        compiled(torch.randn(rows, 4))
    dort_rewriter.save(compiled, tmp_path)
    loaded = dort_rewriter.load(tmp_path)
    for rows in (1, 7):
        x = torch.randn(rows, 4)
        assert_same(loaded(x), compiled(x))


class Tokens(nn.Module):
    """Two sizes that vary, one of which two arguments have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.project = nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = self.project(self.embed(ids)) * mask.unsqueeze(-1)
        return y.cumsum(1)


@torch.no_grad()
def test_each_combination_of_ones(tmp_path: Path) -> None:
    compiled = compiled_of(Tokens().eval(), dynamic=True)
    ids, mask = torch.randint(0, 16, (4, 6)), torch.ones(4, 6)
    dort_rewriter.save(compiled, tmp_path, ids, mask)
    loaded = dort_rewriter.load(tmp_path)
    for rows, length in ((4, 6), (1, 6), (4, 1), (1, 1), (2, 3), (1, 3)):
        given = ids[:rows, :length].contiguous(), mask[:rows, :length].contiguous()
        assert_same(loaded(*given), compiled(*given))
    assert "ids: (2+, 2+), mask: (2+, 2+) | ids: (1, 2+), mask: (1, 2+) | " in repr(loaded)
    with pytest.raises(ExecutionError, match=r"None of the graphs.* \(1\) .*\(2\)"):
        loaded(ids[:2], mask)


@torch.no_grad()
def test_of_many_sizes_the_batch_may_be_any(tmp_path: Path) -> None:
    """And more than the 15 that torch's choice of a convolution leaves to a graph."""
    compiled = compiled_of(nn.Conv2d(2, 3, 3, padding=1).eval(), dynamic=True)
    x = torch.randn(2, 2, 6, 5)
    dort_rewriter.save(compiled, tmp_path, x)
    loaded = dort_rewriter.load(tmp_path)
    for given in (x, x[:1], *(torch.randn(n, 2, 9, 4) for n in (1, 15, 16, 17, 64))):
        assert_same(loaded(given), compiled(given))
    assert len(files(tmp_path, ".onnx")) <= 3


@torch.no_grad()
def test_bounds_of_a_graph_do_not_bound_the_folder(tmp_path: Path) -> None:
    """Sizes on either side of what the model itself chooses by."""

    def chosen(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] > 8:
            return x * 2
        return x[1:] - x[:-1] if x.shape[0] > 1 else x + 1

    dort_rewriter.save(compiled_of(chosen, dynamic=True), tmp_path, torch.randn(5, 3))
    loaded = dort_rewriter.load(tmp_path)
    for rows in (1, 2, 3, 8, 9, 100):
        x = torch.randn(rows, 3)
        assert_same(loaded(x), chosen(x))
    assert all(f"x: ({sizes}, " in repr(loaded) for sizes in ("3-8", "1", "2", "9+"))


@torch.no_grad()
def test_what_the_model_refuses_at_one_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def pairs(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            raise ValueError("one is not enough")
        return x[1:] - x[:-1]

    with caplog.at_level("INFO", "dort_rewriter.deployment"):
        dort_rewriter.save(compiled_of(pairs, dynamic=True), tmp_path, torch.randn(4))
    assert "No graph is saved for x.shape[0] == 1" in caplog.text
    loaded = dort_rewriter.load(tmp_path)
    assert loaded(torch.randn(7)).shape == (6,)
    with pytest.raises(ExecutionError, match=r"x.shape\[0\] >= 3"):
        loaded(torch.randn(1))


@torch.no_grad()
def test_calls_choose_their_graphs(tmp_path: Path) -> None:
    """By sizes and by values; what one graph takes needs no second."""
    compiled = compiled_of(Network().eval())
    calls = [((8, 4),), ((3, 4),), {"x": torch.randn(2, 5, 4)}, {"x": (6, 4), "head": False}]
    dort_rewriter.save(compiled, tmp_path, calls=calls)
    loaded = dort_rewriter.load(tmp_path)
    for shape in ((8, 4), (11, 4), (1, 4), (2, 5, 4)):
        x = torch.randn(shape)
        assert_same(loaded(x), compiled(x))
    x = torch.randn(6, 4)
    assert_same(loaded(x, head=False), compiled(x, head=False))
    with pytest.raises(ExecutionError, match=r"None of the graphs"):
        loaded(torch.randn(2, 6, 4))
    shown = repr(loaded)
    assert "x: (2+, 4), head: True" in shown
    assert "x: (2, 5, 4), head: True" in shown
    assert "head: False" in shown
    state = loaded.state
    assert len(state) == 6
    text = str(read_saved(tmp_path))
    assert f"graphs: {len(files(tmp_path, '.onnx'))}; the first that takes" in text
    assert "graph 1 of " in text
    assert "x: float32 (2+, 4)" in text


@torch.no_grad()
@pytest.mark.parametrize(
    "masked",
    [
        pytest.param({"x": torch.ones(4, 9), "mask": torch.ones(4, 9)}, id="by name"),
        pytest.param((torch.ones(4, 9), torch.ones(4, 9)), id="by place"),
    ],
)
def test_what_one_call_has_alone_varies_with_what_others_have(masked: Any, tmp_path: Path) -> None:
    """However the arguments are given: by place in one call, by name in another."""

    def total(x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x * 2 if mask is None else x * mask

    dort_rewriter.save(compiled_of(total), tmp_path, calls=[((3, 7),), masked])
    loaded = dort_rewriter.load(tmp_path)
    for shape in ((4, 9), (1, 9), (5, 1), (2, 3)):
        x, mask = torch.randn(shape), torch.randn(shape)
        assert_same(loaded(x), total(x))
        assert_same(loaded(x, mask), total(x, mask))


@torch.no_grad()
def test_arguments_in_containers_vary_as_well(tmp_path: Path) -> None:
    def total(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return batch["a"] * 2 + batch["b"]

    def entry(rows: int) -> Any:
        return ({"a": torch.ones(rows, 3), "b": torch.ones(rows, 3)},)

    dort_rewriter.save(compiled_of(total), tmp_path, calls=[entry(4), entry(9)])
    loaded = dort_rewriter.load(tmp_path)
    for rows in (1, 2, 30):
        assert_same(loaded(*entry(rows)), torch.full((rows, 3), 3.0))


class Cache(nn.Module):
    """A prompt and tokens that follow write to one cache."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.register_buffer("keys", torch.zeros(2, 16, 4))
        self.register_buffer("length", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        place = torch.arange(x.shape[1]) + self.length
        self.length.add_(x.shape[1])
        self.keys.index_copy_(1, place, self.project(x))
        return self.keys.sum(1)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["inside", "reference"])
def test_graphs_write_to_the_same_buffers(weights: Any, tmp_path: Path) -> None:
    module = Cache().eval()
    compiled = compiled_of(module)
    before = {name: b.clone() for name, b in module.named_buffers()}
    dort_rewriter.save(compiled, tmp_path, weights=weights, calls=[((2, 6, 4),), ((2, 1, 4),)])
    assert all(torch.equal(b, before[name]) for name, b in module.named_buffers())
    other = Cache().eval()
    other.load_state_dict(module.state_dict())
    loaded = dort_rewriter.load(tmp_path, other if weights == "reference" else None)
    for length in (6, 1, 1, 3, 1):
        x = torch.randn(2, length, 4)
        assert_same(loaded(x), compiled(x))
    assert torch.equal(loaded.state["keys"], module.keys)
    assert int(loaded.state["length"]) == 12


class Step(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), y)


@pytest.mark.parametrize("weights", ["inside", "reference"])
def test_training_steps_of_several_sizes(weights: Any, tmp_path: Path) -> None:
    module = Step()
    compiled = compiled_of(module, dynamic=True)

    def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(rows, 4), torch.randint(0, 3, (rows,))

    dort_rewriter.save(compiled, tmp_path, *batch(4), training=True, weights=weights)
    mine = Step()
    mine.load_state_dict(module.state_dict())
    loaded = dort_rewriter.load(tmp_path, mine if weights == "reference" else None)
    wanted = list(loaded.parameters())
    assert len(wanted) == 4
    names = [name for name, t in loaded.state.items() if t.requires_grad]
    for rows in (6, 1, 3, 1):
        given = batch(rows)
        got, expected = loaded(*given), compiled(*given)
        assert_same(got, expected)
        by_name = dict(zip(names, torch.autograd.grad(got, wanted), strict=True))
        expected.backward()
        for name, parameter in module.named_parameters():
            assert_same(by_name[name], parameter.grad)
            parameter.grad = None


@torch.no_grad()
def test_threads_call_it_with_all_sizes(tmp_path: Path) -> None:
    """Numbers and sizes of one call are never those of another."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        summed = (x * x.shape[0]).cumsum(0)
        return summed if TELLS_SQUARES_APART else summed.t()

    # NOTE: a batch of 4 beside 4 columns is a size of its own all the same.
    dort_rewriter.save(compiled_of(turned, dynamic=True), tmp_path, torch.randn(4, 4))
    loaded = dort_rewriter.load(tmp_path)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(60):
            rows = int(torch.randint(1, 17, (), generator=generator))
            x = torch.randn(rows, 4, generator=generator)
            try:
                if not torch.equal(loaded(x), turned(x)):
                    wrong.append(rows)
            except ExecutionError as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_calls_that_are_none(tmp_path: Path) -> None:
    compiled = compiled_of(Network().eval())
    with pytest.raises(OptionError, match="calls is a list"):
        dort_rewriter.save(compiled, tmp_path, calls=[])
    with pytest.raises(OptionError, match="not both"):
        dort_rewriter.save(compiled, tmp_path, torch.ones(2, 4), calls=[((2, 4),)])
    with pytest.raises(OptionError, match="Each entry"):
        dort_rewriter.save(compiled, tmp_path, calls=[3])  # type: ignore[list-item]
    with pytest.raises(CaptureError):
        dort_rewriter.save(compiled, tmp_path, calls=[((2, 4),), ((2, 5),)])
    assert not list(tmp_path.iterdir())


@torch.no_grad()
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("damage", ["gone", "changed", "other"])
def test_a_damaged_graph_is_refused(place: int, damage: str, tmp_path: Path) -> None:
    """Each of them, when it is loaded: not at the call that needs it."""
    compiled = compiled_of(lambda x: x * 2, dynamic=True)
    dort_rewriter.save(compiled, tmp_path, torch.ones(4, 3))
    content: dict[str, Any] = {}
    rewrite(tmp_path, content.update)
    path = tmp_path / content["files"][f"model {place}"]["file"]
    if damage == "gone":
        path.unlink()
    elif damage == "changed":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        rewrite(tmp_path, lambda c: c["files"].pop(f"model {place}"))
    with pytest.raises(ExecutionError):
        dort_rewriter.load(tmp_path)(torch.ones(4 - 3 * place, 3))


def test_other_formats_are_refused(tmp_path: Path) -> None:
    compiled = torch.compile(nn.Linear(4, 2), backend=OrtBackend())
    dort_rewriter.save(compiled, tmp_path, torch.ones(3, 4))
    rewrite(tmp_path, lambda content: content.update(format=4))
    with pytest.raises(ExecutionError, match="is of format 4, this dort_rewriter reads 6"):
        dort_rewriter.load(tmp_path)
