"""Training steps as files of ONNX, run by plain onnxruntime beside torch's own loop."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dort_rewriter import (
    ExportError,
    export_training_step,
    load_training_state,
    save_training_state,
)

safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is an extra")

BATCHES = 3


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.dropout(torch.relu(self.norm(self.a(x)))))


def batches(rows: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(rows, 6, generator=generator), torch.arange(rows) % 3) for _ in range(BATCHES)
    ]


class Runner:
    """What any program does with a folder, and nothing of this package."""

    def __init__(self, folder: Path) -> None:
        self.said = json.loads((folder / "training.json").read_text())
        self.state = safetensors.load_file(str(folder / "state.safetensors"))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(
            str(folder / "step.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.names = [o.name for o in self.session.get_outputs()]

    def __call__(self, *leaves: torch.Tensor) -> float:
        fed = dict(zip(self.said["batch"], [leaf.numpy() for leaf in leaves], strict=True))
        results = dict(zip(self.names, self.session.run(None, {**fed, **self.state}), strict=True))
        for output, name in self.said["feeds_back"].items():
            self.state[name] = results[output]
        return float(results[self.said["loss"]])


def losses_of_torch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    accumulate: int = 1,
    clip_norm: float | None = None,
) -> list[float]:
    losses = []
    for i in range(steps):
        x, y = batches()[i % BATCHES]
        loss = F.cross_entropy(model(x), y)
        losses.append(loss.item())
        (loss / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            optimizer.step()
            optimizer.zero_grad()
    return losses


Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, betas=(0.8, 0.9)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.1),
    "centered": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(
        p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5
    ),
}


@pytest.mark.alternating
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_those_of_torch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        *("eval.onnx", "state.safetensors", "step.onnx", "training.json")
    ]
    proto = onnx.load(tmp_path / "step.onnx")
    onnx.checker.check_model(proto)
    assert {o.domain for o in proto.opset_import} == {""}
    run = Runner(tmp_path)
    got = [run(*batches()[i % BATCHES]) for i in range(8)]
    np.testing.assert_allclose(got, losses_of_torch(model, optimizer, 8), rtol=1e-5)


@pytest.mark.parametrize(
    "how", [{"accumulate": 3}, {"clip_norm": 0.1}, {"accumulate": 2, "clip_norm": 0.2}]
)
def test_accumulated_and_clipped_gradients(how: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], tmp_path, **how)
    run = Runner(tmp_path)
    got = [run(*batches()[i % BATCHES]) for i in range(8)]
    np.testing.assert_allclose(got, losses_of_torch(model, optimizer, 8, **how), rtol=1e-5)


def test_groups_frozen_parameters_and_any_number_of_rows(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net()
    model.a.requires_grad_(False)
    groups = [
        {"params": [*model.norm.parameters()], "lr": 0.5},
        {"params": [*model.a.parameters(), *model.b.parameters()], "weight_decay": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)

    def rows_together(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))

    export_training_step(
        model, rows_together, optimizer, batches()[0], tmp_path,
        dynamic_shapes=({0: "rows"}, {0: "rows"}),
    )  # fmt: skip
    run = Runner(tmp_path)
    assert "a.weight" in run.state
    assert not any(name.startswith("a.") for name in run.said["feeds_back"].values())
    assert run.said["learning_rates"] == ["learning_rate_0", "learning_rate_1"]
    assert run.said["inputs"]["input"] == {"dtype": "float32", "shape": [5, 6], "varies": [0]}
    for rows in (5, 2, 7):
        x, y = batches(rows)[0]
        loss = F.cross_entropy(model(x), y)
        assert run(x, y) == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_the_learning_rate_is_the_runners(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], tmp_path)
    run = Runner(tmp_path)
    run.state["learning_rate"] = np.array(0, dtype=np.float32)
    before = run.state["b.weight"].copy()
    run(*batches()[0])
    np.testing.assert_array_equal(run.state["b.weight"], before)
    assert run.state["norm.num_batches_tracked"] == 1


class Shared(nn.Module):
    """Weights under two names, and two biases with one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(9, 6), nn.LSTM(6, 6, batch_first=True)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(self.words(ids))[0]).flatten(0, 1)


def test_shared_weights_and_equal_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Shared()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ids, target = torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (10,))
    export_training_step(model, F.cross_entropy, optimizer, (ids, target), tmp_path)
    run = Runner(tmp_path)
    assert "head.weight" not in run.state
    for _ in range(4):
        loss = F.cross_entropy(model(ids), target)
        assert run(ids, target) == pytest.approx(loss.item(), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_dropout_follows_the_seed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Dropout(0.25), nn.Linear(4000, 1))
    nn.init.ones_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.ones(2, 4000)
    export_training_step(
        model, lambda output, target: output.mean() / 4000, optimizer, (x, x), tmp_path
    )
    runs = [Runner(tmp_path) for _ in range(2)]
    kept = [[run(x, x) for _ in range(20)] for run in runs]
    assert kept[0] == kept[1]
    assert len(set(kept[0])) > 15
    assert np.mean(kept[0]) == pytest.approx(1, abs=0.01)
    assert np.std(kept[0]) == pytest.approx((0.25 / 0.75 / 8000) ** 0.5, rel=0.5)
    runs[0].state["seed"] = np.array(12345)
    runs[1].state["seed"] = np.array(54321)
    assert runs[0](x, x) != runs[1](x, x)
    expected = model.eval()(x).detach()
    session = onnxruntime.InferenceSession(str(tmp_path / "eval.onnx"))
    fed = {i.name: runs[0].state[i.name] for i in session.get_inputs() if i.name != "input"}
    (output,) = session.run(None, {"input": x.numpy(), **fed})
    np.testing.assert_allclose(output, expected, rtol=1e-5)


def test_mappings_tuples_and_modules_of_losses(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": self.a(x) * scale}

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.tensor([1.0, 2.0, 3.0]))

        def forward(self, output: Any, target: Sequence[torch.Tensor]) -> torch.Tensor:
            return F.cross_entropy(output["logits"], target[0], self.weight) + target[1].sum()

    torch.manual_seed(0)
    model, loss = Two(), Weighted()
    x, y = batches()[0]
    given, target = {"x": x, "scale": torch.tensor(2.0)}, (y, torch.ones(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    export_training_step(model, loss, optimizer, (given, target), tmp_path)
    run = Runner(tmp_path)
    assert run.said["batch"] == ["x", "scale", "target_0", "target_1"]
    assert "loss.weight" in run.state
    assert run(x, torch.tensor(2.0), *target) == pytest.approx(
        loss(model(**given), target).item(), rel=1e-5
    )


def test_factorizations(tmp_path: Path) -> None:
    """Their checks, which AOTAutograd keeps in order by tokens, are no part of a file."""

    class Solving(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            square = x.mT @ x + torch.eye(6)
            whitened = torch.linalg.solve(torch.linalg.cholesky(square), x.mT).mT
            return super().forward(whitened @ torch.linalg.inv(square))

    torch.manual_seed(0)
    model = Solving()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], tmp_path)
    run = Runner(tmp_path)
    got = [run(*batches()[i % BATCHES]) for i in range(4)]
    np.testing.assert_allclose(got, losses_of_torch(model, optimizer, 4), rtol=1e-5)


def test_a_state_goes_there_and_back(tmp_path: Path) -> None:
    """Trained here, then in the file, then here again, as if it had been here all the time."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], tmp_path)
    alone = copy.deepcopy(model)
    want = losses_of_torch(alone, torch.optim.Adam(alone.parameters(), lr=0.01), 9)
    got = losses_of_torch(model, optimizer, 3)
    save_training_state(model, tmp_path, optimizer)
    run = Runner(tmp_path)
    got += [run(*batches()[i % BATCHES]) for i in range(3)]
    safetensors.save_file(
        {k: np.asarray(v) for k, v in run.state.items()}, str(tmp_path / "state.safetensors")
    )
    again = Net()
    other = torch.optim.Adam(again.parameters(), lr=1.0)
    load_training_state(again, tmp_path, other)
    assert other.param_groups[0]["lr"] == pytest.approx(0.01)
    got += losses_of_torch(again, other, 3)
    np.testing.assert_allclose(got, want, rtol=2e-5)


def _branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x
    return -x


def _draw(x: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(torch.ones(5, 3), 1)


def _count(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x > 0).sum()


def _select(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum()


def _eigen(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(x[:3, :3]).abs().sum()


def _gamma(x: torch.Tensor) -> torch.Tensor:
    return torch.igamma(torch.ones(()), x.abs() + 1)


def _zeta(x: torch.Tensor) -> torch.Tensor:
    return torch.special.zeta(x.abs() + 2, x.abs() + 1)


class Asking(Net):
    """A net that adds what a function makes of its results."""

    def __init__(self, asks: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found if self.asks is None else found + self.asks(found)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"optimizer": torch.optim.Adamax}, "one of torch.optim's SGD, Adam"),
        ({"loss": lambda output, target: output}, "a tensor of one number"),
        ({"example": torch.ones(2)}, r"a pair \(input, target\)"),
        ({"trainable": ["no.such"]}, "no parameter 'no.such'"),
        ({"trainable": "a.weight"}, r"a list of names: \['a.weight'\]"),
        ({"accumulate": 0}, "1 or more, not 0"),
        ({"accumulate": 2.5}, "1 or more, not 2.5"),
        ({"loss": lambda output, target: torch.fft.fft(output).sum()}, "of one number, a float"),
        ({"loss": lambda output, target: output.detach().sum()}, "has no gradient"),
        ({"loss": lambda output, target: output.sum() * torch.unique(target).sum()},
         r"aten::_unique2 makes a tensor whose size .*, at .*test_training_files.py:\d+ in"),
        ({"averages": None}, r"norm: BatchNorm1d\(momentum=None\) .* give it a momentum"),
        ({"asks": _branch}, r"reads a number .*, at .*: if x.sum\(\) > 0:"),
        ({"asks": _draw}, r"multinomial draws random numbers .*, at .*: return torch.multinomial"),
        ({"asks": _count}, r"aten::nonzero makes a tensor whose size .*: return torch.nonzero"),
        ({"asks": _select}, r"aten::nonzero makes a tensor whose size .*: return x\[x > 0\]"),
        ({"asks": _eigen}, r"(?s)aten::linalg_eig: .*at .*: return torch.linalg.eigvals\(x"),
        ({"asks": _gamma}, r"(?s)igamma: no converter\n      at .*: return torch.igamma"),
        ({"asks": _zeta}, r"the derivative for 'zeta' is not .*: return torch.special.zeta"),
    ],
)  # fmt: skip
def test_what_is_not_exported(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    """It says why, with the operator and its line, and nothing is written."""
    model = Asking(how.get("asks"))
    if "averages" in how:
        model.norm.momentum = None
    optimizer = how.get("optimizer", torch.optim.SGD)(model.parameters(), lr=0.1)
    rest = {k: v for k, v in how.items() if k in ("trainable", "accumulate")}
    before = {n: (p.detach().clone(), p) for n, p in model.named_parameters()}
    with pytest.raises(ExportError, match=said):
        export_training_step(
            model, how.get("loss", F.cross_entropy), optimizer,
            how.get("example", batches()[0]), tmp_path / "f", **rest,
        )  # fmt: skip
    assert not (tmp_path / "f").exists()
    assert model.training
    for name, p in model.named_parameters():
        assert p is before[name][1]
        torch.testing.assert_close(p.detach(), before[name][0])


def test_a_state_of_another_model_changes_nothing(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], tmp_path)
    other = Net()
    other.b = nn.Linear(8, 4)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ExportError, match=r"'b.weight' is of shape \(3, 8\)"):
        load_training_state(other, tmp_path)
    for name, tensor in other.state_dict().items():
        torch.testing.assert_close(tensor, before[name])
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(ExportError, match="holds no training step"):
        load_training_state(model, tmp_path)


class Longer(Net):
    """A model that grew a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Linear(3, 3)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that Adam trains."""
    model = Net()
    folder = tmp_path_factory.mktemp("written")
    optimizer = torch.optim.Adam(model.parameters())
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], folder)
    return folder


Case = tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.optim.Optimizer], str]


def adam_of(*names: str, **options: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def made(model: nn.Module) -> torch.optim.Optimizer:
        groups = [getattr(model, name) for name in names] or [model]
        return torch.optim.Adam([{"params": [*group.parameters()]} for group in groups], **options)

    return made


OTHERS: dict[str, Case] = {
    "a larger model": (Longer, adam_of(), r"only the model has 'c.weight', 'c.bias'"),
    "a smaller model": (
        lambda: nn.Sequential(), lambda _: torch.optim.Adam(Net().parameters()),
        r"only .+ has 'a.weight', 'a.bias', 'norm.weight', 'norm.bias', 'b.weight' and 4 more",
    ),
    "other names": (
        lambda: nn.Sequential(Net()), adam_of(), r"'a.weight'.+; only the model has '0.a",
    ),
    "another optimizer": (
        Net, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), "SGD.+ of Adam"
    ),
    "other options": (Net, adam_of(amsgrad=True), r"only the optimizer has .+max_exp_avg_sq"),
    "fewer parameters": (Net, adam_of("a"), "optimizer has no 'norm.weight', 'norm.bias', 'b.we"),
    "more groups": (Net, adam_of("a", "norm", "b"), "3 groups, .+ 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_what_does_not_fit_is_named(case: str, written: Path) -> None:
    """Nothing is changed, in either direction."""
    make, optimizer_of, said = OTHERS[case]
    model = make()
    optimizer = optimizer_of(model)
    before = copy.deepcopy(model.state_dict())
    content = (written / "state.safetensors").read_bytes()
    for act in (load_training_state, save_training_state):
        with pytest.raises(ExportError, match=said):
            act(model, written, optimizer)
        torch.testing.assert_close(model.state_dict(), before)
        assert not optimizer.state
        assert optimizer.param_groups[0]["lr"] in (0.1, 0.001)
        assert (written / "state.safetensors").read_bytes() == content


@pytest.mark.parametrize("act", [load_training_state, save_training_state])
def test_a_state_with_other_names(act: Callable[..., None], written: Path, tmp_path: Path) -> None:
    """A runner that wrote one name for another: both are said."""
    state = safetensors.load_file(str(written / "state.safetensors"))
    state["a.wieght"] = state.pop("a.weight")
    (tmp_path / "training.json").write_bytes((written / "training.json").read_bytes())
    safetensors.save_file(state, str(tmp_path / "state.safetensors"))
    with pytest.raises(
        ExportError, match=r"only training.json .*'a.weight'; only .*safetensors .*'a.wieght'"
    ):
        act(Net(), tmp_path)


def test_tensors_of_a_loss_are_none_of_the_models(tmp_path: Path) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(output, target, self.weight)

    model = Net(0.5)
    model.a.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    export_training_step(model, Weighted(), optimizer, batches()[0], tmp_path, accumulate=2)
    save_training_state(model, tmp_path, optimizer)
    load_training_state(model, tmp_path, optimizer)
