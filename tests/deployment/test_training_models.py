"""Training steps of models that are built in unusual ways, beside torch's own loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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

pytest.importorskip("safetensors", reason="safetensors is an extra")

from tests.deployment.test_training_files import Runner, batches, safetensors

Loss = Callable[[Any, Any], torch.Tensor]


def check_beside_torch(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    given: Sequence[tuple[torch.Tensor, torch.Tensor]],
    folder: Path,
    *,
    steps: int = 6,
    tolerance: float = 1e-5,
    **options: Any,
) -> Runner:
    """Train in a file and in torch: the losses are equal, and the state, which torch takes."""
    export_training_step(model, loss, optimizer, given[0], folder, **options)
    run = Runner(folder)
    again = copy.deepcopy(model)
    got = [run(*given[i % len(given)]) for i in range(steps)]
    want = losses(model, loss, optimizer, given, steps, options.get("clip_norm"))
    np.testing.assert_allclose(got, want, rtol=tolerance)
    state = {name: np.asarray(value) for name, value in run.state.items()}
    safetensors.save_file(state, str(folder / "state.safetensors"))
    load_training_state(again, folder)
    close = {"rtol": 1e2 * tolerance, "atol": 1e2 * tolerance}
    torch.testing.assert_close(again.state_dict(), model.state_dict(), **close)
    check_evaluated(run, model, given[0][0], folder, close)
    return run


def check_evaluated(
    run: Runner, model: nn.Module, x: torch.Tensor, folder: Path, close: dict[str, float]
) -> None:
    session = onnxruntime.InferenceSession(str(folder / "eval.onnx"))
    fed = {i.name: run.state.get(i.name, x.numpy()) for i in session.get_inputs()}
    (got,) = session.run(None, fed)
    want = copy.deepcopy(model).eval()(x).detach()
    torch.testing.assert_close(torch.from_numpy(got), want, **close)


def losses(
    model: nn.Module,
    loss: Loss,
    optimizer: torch.optim.Optimizer,
    given: Sequence[tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    clip_norm: float | None = None,
) -> list[float]:
    """Those of torch's loop."""
    found = []
    for i in range(steps):
        x, y = given[i % len(given)]
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        found.append(value.item())
    return found


class Unused(nn.Module):
    """A layer that the loss does not reach, and one that is there under three names."""

    def __init__(self) -> None:
        super().__init__()
        same = nn.Linear(6, 6)
        self.a, self.b = nn.Sequential(same, nn.Tanh()), nn.Sequential(same, nn.Tanh(), same)
        self.head, self.other = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.b(self.a(x))
        self.other(found)
        return self.head(found)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.1),
    ],
)
def test_parameters_without_a_gradient(make: Any, before: int, tmp_path: Path) -> None:
    """They stay as they are, whatever the optimizer does with the others."""
    torch.manual_seed(0)
    model = Unused()
    optimizer = make(model.parameters())
    losses(model, F.cross_entropy, optimizer, batches(), before)
    kept = model.other.weight.detach().clone()
    run = check_beside_torch(model, F.cross_entropy, optimizer, batches(), tmp_path, clip_norm=0.5)
    assert "other.weight" not in run.said["optimizer"]["state"]
    np.testing.assert_array_equal(run.state["other.weight"], kept)


class Forces(nn.Module):
    """The gradient of an energy, which the last bias does not change."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0]


class ForcesOfFunctions(Forces):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(torch.func.grad(lambda row: self.energy(row).squeeze()))(x)


@pytest.mark.parametrize("make", [Forces, ForcesOfFunctions])
def test_a_loss_of_gradients(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    given = [(x, x.sin()) for x, _ in batches()]
    check_beside_torch(model, F.mse_loss, optimizer, given, tmp_path)


def test_groups_of_which_some_keep_nothing(tmp_path: Path) -> None:
    """SGD counts no steps of parameters without momentum."""
    torch.manual_seed(0)
    model = Unused()
    groups = [
        {"params": [*model.a.parameters()], "momentum": 0.9, "dampening": 0.1},
        {"params": [*model.head.parameters()], "lr": 0.01},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    losses(model, F.cross_entropy, optimizer, batches(), 2)
    check_beside_torch(model, F.cross_entropy, optimizer, batches(), tmp_path)


class CompiledInside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.compile(nn.Linear(6, 3), backend="eager")
        self.b = nn.Linear(3, 3)
        self.b.compile(backend="eager")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


def test_what_torch_has_compiled(tmp_path: Path) -> None:
    """Names are those of the model that was compiled."""
    torch.manual_seed(0)
    model = CompiledInside()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="eager")
    losses(compiled, F.cross_entropy, optimizer, batches(), 1)
    export_training_step(compiled, F.cross_entropy, optimizer, batches()[0], tmp_path)
    run = Runner(tmp_path)
    assert {"a._orig_mod.weight", "b.weight"} < set(run.state)
    got = [run(*batches()[i]) for i in range(3)]
    want = losses(compiled, F.cross_entropy, optimizer, batches(), 3)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    save_training_state(compiled, tmp_path, optimizer)
    again = CompiledInside()
    load_training_state(again, tmp_path)
    torch.testing.assert_close(again.state_dict(), model.state_dict())


class Scaled(nn.Module):
    """Parameters of several types, numbers and tensors."""

    def __init__(self, dtype: torch.dtype, other: torch.dtype) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3, dtype=dtype), nn.Linear(6, 3, dtype=other)
        self.scale = nn.Parameter(torch.tensor(0.5, dtype=dtype))
        self.shift = nn.Parameter(torch.tensor(0.5, dtype=other))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.a(x.to(self.a.weight.dtype)) * self.scale.exp()
        return one.to(x.dtype) + self.b(x.to(self.b.weight.dtype)).to(x.dtype) * self.shift


MAKERS: dict[
    str, Any
] = {  # NOTE: squares of float16 are 0 early: without such an eps all is noise
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, eps=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01, eps=1e-2),
}
TYPES = {
    "float16": (torch.float16, torch.float16, 5e-3),
    "float64": (torch.float64, torch.float64, 1e-12),
    "float64 and 32": (torch.float64, torch.float32, 1e-6),
    "float32 and 16": (torch.float32, torch.float16, 5e-3),
}


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", MAKERS)
def test_types(name: str, types: str, tmp_path: Path) -> None:
    """What is fed back has the type of what takes it; rates are as exact as the parameters."""
    torch.manual_seed(0)
    one, two, tolerance = TYPES[types]
    model = Scaled(one, two)
    given = [(x.double() if types == "float64" else x, y) for x, y in batches()]
    optimizer = MAKERS[name](model.parameters())
    before = copy.deepcopy(model.state_dict())
    run = check_beside_torch(
        model, F.cross_entropy, optimizer, given, tmp_path, tolerance=tolerance, clip_norm=0.7
    )
    for key, value in before.items():
        assert torch.from_numpy(np.asarray(run.state[key])).dtype == value.dtype
    if one is torch.float64:
        assert run.state["learning_rate"] == 0.01
        again = MAKERS[name](Scaled(one, two).parameters())
        load_training_state(model, tmp_path, optimizer)
        save_training_state(model, tmp_path, optimizer)
        assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        Runner(tmp_path)(*given[0])


class Spectral(nn.Module):
    """Complex parameters and buffers, of which a file knows pairs of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.head = nn.Linear(6, 3)
        self.register_buffer("turn", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.register_buffer("seen", torch.zeros(4, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(x) * self.filter * self.turn
        if self.training:
            self.seen.mul_(0.5).add_(spectrum.detach().mean(0))
        return self.head(torch.fft.irfft(spectrum, n=6) + (self.seen * self.turn).abs().sum())


@pytest.mark.parametrize("how", [{}, {"accumulate": 1, "clip_norm": 0.3}])
@pytest.mark.parametrize("name", MAKERS)
def test_complex_numbers(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Spectral()
    optimizer = MAKERS[name](model.parameters())
    losses(model, F.cross_entropy, optimizer, batches(), 1)
    run = check_beside_torch(model, F.cross_entropy, optimizer, batches(), tmp_path, **how)
    assert run.state["filter"].shape == (4, 2)
    again = Spectral()
    other = MAKERS[name](again.parameters())
    load_training_state(again, tmp_path, other)
    got = losses(again, F.cross_entropy, other, batches(), 3)
    want = losses(model, F.cross_entropy, optimizer, batches(), 3)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def _writing(*, frozen: bool) -> nn.Module:
    words = nn.Embedding(9, 6, max_norm=1.0).requires_grad_(not frozen)
    return nn.Sequential(words, nn.Linear(6, 9))


def _without_values() -> nn.Module:
    with torch.device("meta"):
        return nn.Linear(6, 3)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: _writing(frozen=False), "writes to one of its parameters .* max_norm"),
        (lambda: _writing(frozen=True), "writes to one of its parameters .* max_norm"),
        (lambda: nn.LazyLinear(3), "'weight' has no size before the model is called"),
        (_without_values, "'weight' is on the meta device"),
    ],
)
def test_models_that_are_refused(make: Any, said: str, tmp_path: Path) -> None:
    model = make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    ids = torch.arange(6) if isinstance(model, nn.Sequential) else torch.ones(6, 6)
    with pytest.raises(ExportError, match=said):
        export_training_step(
            model, F.cross_entropy, optimizer, (ids, torch.arange(6) % 3), tmp_path / "f"
        )
    assert not (tmp_path / "f").exists()


def test_weights_made_of_others(tmp_path: Path) -> None:
    torch.manual_seed(0)
    parts = nn.utils.parametrizations
    model = nn.Sequential(
        parts.weight_norm(nn.Linear(6, 8)),
        nn.Tanh(),
        parts.spectral_norm(nn.Linear(8, 8)),
        parts.weight_norm(nn.Linear(8, 8), dim=1),
        parts.orthogonal(nn.Linear(8, 8)),
        parts.weight_norm(nn.Linear(8, 3), dim=None),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    check_beside_torch(model, F.cross_entropy, optimizer, batches(), tmp_path)


def test_arguments_that_are_refused(tmp_path: Path) -> None:
    model: Any = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (tmp_path / "file").write_text("")
    rows = {0: "rows"}
    for given, place, shapes, said in (
        (model, "file", None, "file is a file, not a folder"),
        (model.forward, "f", None, "of a module of torch, not of a <class 'method'>"),
        (model, "f", ({7: "rows"}, rows), "axis 7 of a tensor of 2 axes"),
        (model, "f", (rows, None), r"Axis 0 of 'input' cannot vary: .* its size is 5"),
        (model, "f", (None, rows), r"Axis 0 of 'target' cannot vary: .* its size is 5"),
    ):
        with pytest.raises(ExportError, match=said):
            export_training_step(
                given, F.cross_entropy, optimizer, batches()[0], tmp_path / place,
                dynamic_shapes=shapes,
            )  # fmt: skip
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


class Spread(nn.Module):
    """A mean and a deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.a(x), F.softplus(self.b(x)) + 0.1


D = torch.distributions
LOSSES: dict[str, Loss] = {
    "gaussian_nll_loss": lambda o, y: F.gaussian_nll_loss(o[0], F.one_hot(y, 3).float(), o[1]),
    "Normal": lambda o, y: -D.Normal(*o).log_prob(F.one_hot(y, 3)).mean(),
    "Categorical": lambda o, y: -D.Categorical(logits=o[0]).log_prob(y).mean(),
    "kl_divergence": lambda o, _: D.kl_divergence(D.Normal(*o), D.Normal(0.0, 1.0)).mean(),
    "quantile": lambda o, _: o[0].abs().quantile(0.9) + o[1].mean(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_check_numbers(name: str, tmp_path: Path) -> None:
    """They are as for numbers that eager mode accepts."""
    torch.manual_seed(0)
    before = D.Distribution._validate_args  # torch's compiler changes it
    model = Spread()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    export_training_step(
        model, LOSSES[name], optimizer, batches()[0], tmp_path,
        dynamic_shapes=({0: "rows"}, {0: "rows"}) if name != "quantile" else None,
    )  # fmt: skip
    run = Runner(tmp_path)
    got = [run(*batches()[i]) for i in range(3)]
    want = losses(model, LOSSES[name], optimizer, batches(), 3)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    assert D.Distribution._validate_args == before


def test_encoder_layers_of_any_length(tmp_path: Path) -> None:
    """In evaluation mode torch has one operator for such a layer, which has no gradient."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(0, 1), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = [(x[None], y) for x, y in batches()]
    varying = ({1: "length"}, {0: "length"})
    check_beside_torch(model, F.cross_entropy, optimizer, given, tmp_path, dynamic_shapes=varying)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_a_weight_that_is_an_attribute(tmp_path: Path) -> None:
    """The export leaves no fake tensor at the model."""
    torch.manual_seed(0)
    model = nn.utils.weight_norm(nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight
    export_training_step(model, F.cross_entropy, optimizer, batches()[0], tmp_path)
    assert model.weight is before
    run = Runner(tmp_path)
    got = [run(*batches()[i]) for i in range(3)]
    want = losses(model, F.cross_entropy, optimizer, batches(), 3)
    np.testing.assert_allclose(got, want, rtol=1e-5)
