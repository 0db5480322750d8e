"""Training steps that are saved: results and gradients of the compiled model, bit for bit."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dort_rewriter
from dort_rewriter import OrtBackend
from dort_rewriter.errors import CallMismatchError, CaptureError, ExecutionError
from dort_rewriter.tools.saved_text import read_saved
from tests.deployment.forged import FORGED_GRAPHS, rewrite
from tests.deployment.test_saving import assert_same
from tests.torch_facts import REFUSES_GRADIENTS_OF_TYPES


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Classifier(nn.Module):
    """A loss, what it is made of, and a number of right answers: it updates buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.body(x))
        loss = functional.cross_entropy(logits, y)
        return {"loss": loss, "logits": logits, "right": (logits.argmax(1) == y).sum()}


def batch(rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 8), torch.randint(0, 4, (rows,))


def compiled_of(target: Any, **options: Any) -> Any:
    return torch.compile(target, backend=OrtBackend(), **options)


def gradients_of(tensors: Any) -> list[torch.Tensor | None]:
    found = [t.grad for t in tensors]
    for t in tensors:
        t.grad = None
    return found


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("weights", ["inside", "reference"])
def test_a_step(weights: Any, dynamic: bool, tmp_path: Path) -> None:
    model = Classifier()
    compiled = compiled_of(model, dynamic=dynamic)
    before = copy.deepcopy(model.state_dict())
    dort_rewriter.save(compiled, tmp_path, *batch(), training=True, weights=weights)
    assert_same(dict(model.state_dict()), dict(before))
    assert all(p.grad is None for p in model.parameters())

    mine = copy.deepcopy(model)
    loaded = dort_rewriter.load(tmp_path, None if weights == "inside" else mine)
    wanted = list(loaded.parameters())
    assert len(wanted) == len(list(model.parameters()))
    for rows in (6, 9) if dynamic else (6, 6):
        given = batch(rows)
        got, expected = loaded(*given), compiled(*given)
        assert_same(got, expected)
        got["loss"].backward()
        expected["loss"].backward()
        names = [n for n, t in loaded.state.items() if t.requires_grad]
        by_name = dict(zip(names, gradients_of(wanted), strict=True))
        for name, parameter in model.named_parameters():
            assert_same(by_name[name], parameter.grad)
            parameter.grad = None
    for name, buffer in model.named_buffers():
        assert_same(loaded.state[name], buffer)


def test_steps_of_an_optimizer(tmp_path: Path) -> None:
    model = Classifier()
    compiled = compiled_of(model)
    dort_rewriter.save(compiled, tmp_path, *batch(), training=True)
    loaded = dort_rewriter.load(tmp_path)
    mine = torch.optim.AdamW(loaded.parameters(), lr=0.01)
    theirs = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(4):
        given = batch()
        for call, optimizer in ((loaded, mine), (compiled, theirs)):
            call(*given)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        assert_same(loaded.state[name].detach(), parameter.detach())


def test_a_step_that_was_called_before(tmp_path: Path) -> None:
    model = Classifier()
    compiled = compiled_of(model)
    given = batch()
    compiled(*given)["loss"].backward()
    dort_rewriter.save(compiled, tmp_path, training=True, weights="reference")
    loaded = dort_rewriter.load(tmp_path, model)
    state = copy.deepcopy(model.state_dict())
    expected = compiled(*given)
    model.load_state_dict(state)
    assert_same(loaded(*given), expected)


def test_gradients_of_arguments(tmp_path: Path) -> None:
    def program(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x @ w.t()).sin() * y, w.exp().sum()

    compiled = compiled_of(program)
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    y = torch.randn(3, 5)
    dort_rewriter.save(compiled, tmp_path, x, w, y, training=True)
    assert x.grad is None
    loaded = dort_rewriter.load(tmp_path)
    for first, second in ((1.0, 1.0), (0.5, 0.0)):
        for call in (loaded, compiled):
            a, b = call(x, w, y)
            (first * a.sum() + second * b).backward()
            if call is loaded:
                mine = gradients_of((x, w))
        assert_same(mine, gradients_of((x, w)))
    # Gradients that lie in memory otherwise, and those of one result alone.
    transposed = torch.randn(5, 3).t()
    for call in (loaded, compiled):
        call(x, w, y)[0].backward(transposed)
        if call is loaded:
            mine = gradients_of((x, w))
    assert_same(mine, gradients_of((x, w)))
    with torch.no_grad():
        assert_same(loaded(x, w, y), compiled(x, w, y))
    with pytest.raises(CallMismatchError, match="y requires a gradient"):
        loaded(x, w, y.requires_grad_())


def test_a_parameter_that_is_frozen_stays_so(tmp_path: Path) -> None:
    model = Classifier()
    model.body[0].requires_grad_(False)
    compiled = compiled_of(model)
    dort_rewriter.save(compiled, tmp_path, *batch(), training=True, weights="reference")
    loaded = dort_rewriter.load(tmp_path, model)
    loaded(*batch())["loss"].backward()
    assert model.body[0].weight.grad is None
    assert model.head.weight.grad is not None
    model.body[0].requires_grad_(True)
    with pytest.raises(ExecutionError, match=r"body.0.weight.* required no gradient"):
        dort_rewriter.load(tmp_path, model)
    with pytest.raises(ExecutionError, match="required a gradient"):
        dort_rewriter.load(tmp_path, copy.deepcopy(model).requires_grad_(False))


def test_backward_passes_as_of_eager_mode(tmp_path: Path) -> None:
    w = nn.Parameter(torch.randn(4, 4))
    compiled = compiled_of(lambda x, w: (x @ w).tanh().sum())
    x = torch.randn(3, 4)
    dort_rewriter.save(compiled, tmp_path, x, w, training=True)
    loaded = dort_rewriter.load(tmp_path)
    loss = loaded(x, w)
    loss.backward(retain_graph=True)
    (first,) = gradients_of((w,))
    loss.backward()
    assert_same(gradients_of((w,)), [first])
    with pytest.raises(RuntimeError, match="a second time"):
        loss.backward()
    loss = loaded(x, w)
    (gradient,) = torch.autograd.grad(loss, (w,), create_graph=True)
    with pytest.raises(RuntimeError, match="have no gradients themselves"):
        (gradient.sum() + w.sum()).backward()
    loss = loaded(x, w)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_number_in_a_tensor_is_an_argument(tmp_path: Path) -> None:
    """Of float64 and without axes, as torch hands over the numbers of Python."""
    compiled = compiled_of(lambda x, scale: x * scale, dynamic=True)
    x, scale = torch.randn(3, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    with torch.no_grad():
        dort_rewriter.save(compiled, tmp_path / "inference", x, scale)
    x.requires_grad_()
    dort_rewriter.save(compiled, tmp_path / "training", x, scale, training=True)
    for name in ("inference", "training"):
        loaded = dort_rewriter.load(tmp_path / name)
        for number in (2.0, 3.0, 0.0):
            other = torch.tensor(number, dtype=torch.float64)
            assert_same(loaded(x.detach(), other), x.detach() * other)


def test_an_argument_that_is_written_to(tmp_path: Path) -> None:
    """The backward graph needs its value of before, or of after."""

    def program(w: torch.Tensor, count: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        before = w * count.clone()
        count.add_(1)
        mean.mul_(0.5).add_(w.detach(), alpha=0.5)
        return (before * count + w.exp() * mean).sum()

    compiled = compiled_of(program)
    w = torch.randn(3, requires_grad=True)
    state = [torch.ones(3), torch.zeros(3)]
    dort_rewriter.save(compiled, tmp_path, w, *state, training=True)
    assert_same(state, [torch.ones(3), torch.zeros(3)])
    loaded = dort_rewriter.load(tmp_path)
    theirs = [t.clone() for t in state]
    for _ in range(2):
        got, expected = loaded(w, *state), compiled(w, *theirs)
        assert_same([got, *state], [expected, *theirs])
        got.backward()
        mine = gradients_of((w,))
        expected.backward()
        assert_same(mine, gradients_of((w,)))


def test_arguments_that_share_their_memory(tmp_path: Path) -> None:
    """Each is the one that it was, when it is loaded."""
    compiled = compiled_of(lambda x, w, y: (x * w * y.sin()).sum())
    w = torch.randn(3, requires_grad=True)
    dort_rewriter.save(compiled, tmp_path, torch.ones(3), w, w.detach(), training=True)
    loaded = dort_rewriter.load(tmp_path)
    x, y = torch.randn(3), torch.randn(3)
    got, expected = loaded(x, w, y), compiled(x, w, y)
    assert_same(got, expected)
    got.backward()
    mine = gradients_of((w,))
    expected.backward()
    assert_same(mine, gradients_of((w,)))


def test_what_was_written_to_is_restored_if_saving_fails(tmp_path: Path) -> None:
    def program(w: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return torch.linalg.eigvalsh(w @ w.t()).sum() * count

    w, count = torch.randn(3, 3, requires_grad=True), torch.zeros(())
    with pytest.raises(CaptureError):
        dort_rewriter.save(compiled_of(program), tmp_path / "saved", w, count, training=True)
    assert float(count) == 0


def test_an_argument_is_returned_itself(tmp_path: Path) -> None:
    x = torch.randn(3, requires_grad=True)
    dort_rewriter.save(compiled_of(lambda x: (x, x.exp())), tmp_path, x, training=True)
    same, other = dort_rewriter.load(tmp_path)(x)
    assert same is x
    other.sum().backward()
    assert_same(x.grad, x.detach().exp())


CANNOT = {
    "nothing has a gradient": (lambda x: x.detach() * 2, "has a gradient"),
    "random numbers": (lambda x: functional.dropout(x * 2, 0.5), "torch"),
    "a view of an argument": (lambda x: (x.t(), x * 2), "returns an argument"),
    "a view of a result": (lambda x: (lambda y: (y, y.t()))(x * 2), "views of what it returns"),
}
if REFUSES_GRADIENTS_OF_TYPES:
    CANNOT["a gradient that torch refuses"] = (
        lambda x: torch.special.i1(x.bfloat16()),
        "torch refuses the types",
    )


@pytest.mark.parametrize("case", CANNOT)
def test_what_cannot_be_saved_says_why(case: str, tmp_path: Path) -> None:
    program, reason = CANNOT[case]
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(CaptureError, match=reason):
        dort_rewriter.save(compiled_of(program), tmp_path / "saved", x, training=True)
    assert not (tmp_path / "saved").exists() or not list((tmp_path / "saved").iterdir())


def test_inference_is_saved_as_before(tmp_path: Path) -> None:
    model = Classifier()
    dort_rewriter.save(compiled_of(model), tmp_path, *batch())
    loaded = dort_rewriter.load(tmp_path)
    assert list(loaded.parameters()) == []
    with pytest.raises(CallMismatchError, match="training=True"):
        loaded(batch()[0].requires_grad_(), batch()[1])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("results", 7), ("numbers", 99), ("derived", [5]), ("derived", [0, 0])),
        *(("wanted", [99]), ("wanted", []), ("wanted", [1, 0]), ("wanted", [0, 0])),
        *(("orders", [[0, 0]]), ("orders", [[0, 1, 2]])),
    ],
)
def test_a_description_that_does_not_fit(key: str, value: Any, tmp_path: Path) -> None:
    dort_rewriter.save(compiled_of(Classifier()), tmp_path, *batch(), training=True)
    rewrite(tmp_path, lambda content: content["calls"][0]["backward"]["plan"].update({key: value}))
    with pytest.raises(ExecutionError, match="damaged"):
        dort_rewriter.load(tmp_path)


@pytest.mark.parametrize("kind", ["none", "int"])
@pytest.mark.parametrize("graph", ["graph", "backward"])
def test_a_result_that_is_no_tensor(graph: str, kind: str, tmp_path: Path) -> None:
    """What a model computes is one."""
    dort_rewriter.save(compiled_of(Classifier()), tmp_path, *batch(), training=True)

    def change(content: dict[str, Any]) -> None:
        slots = content["calls"][0][graph]["signature"]["outputs"]
        next(s for s in slots if s["source"] == "model").update(kind=kind)

    rewrite(tmp_path, change)
    with pytest.raises(ExecutionError, match="damaged"):
        dort_rewriter.load(tmp_path)


def backward_as_graph(content: dict[str, Any]) -> dict[str, Any]:
    return {"calls": [{"graph": content["calls"][0]["backward"]}]}


@pytest.mark.parametrize("case", FORGED_GRAPHS)
def test_forged_graphs_of_gradients_run_nothing(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    dort_rewriter.save(compiled_of(lambda x: x.exp().sum()), tmp_path, x, training=True)
    rewrite(tmp_path, lambda content: FORGED_GRAPHS[case](backward_as_graph(content)))
    with pytest.raises(ExecutionError):
        dort_rewriter.load(tmp_path)(x).backward()
    assert capsys.readouterr().out == ""


def test_a_gradient_of_another_shape_than_its_argument(tmp_path: Path) -> None:
    """It is inside of the memory that it reads; autograd has an error of its own for it."""
    x = torch.randn(3, 4, requires_grad=True)
    dort_rewriter.save(compiled_of(lambda x: x.exp().sum()), tmp_path, x, training=True)
    part = ["ViewStep", "aten::slice.Tensor", ["tuple", 0, 0, 2, 1], ["tuple"]]

    def change(content: dict[str, Any]) -> None:
        (gradient,) = content["calls"][0]["backward"]["signature"]["outputs"]
        gradient.update(views=[part])

    rewrite(tmp_path, change)
    result = dort_rewriter.load(tmp_path)(x)
    with pytest.raises(ExecutionError, match=r"argument 0 .*\[2, 4\]"):
        result.backward()


def test_a_result_that_is_none_of_the_call(tmp_path: Path) -> None:
    """What the backward graph needs is a result of the forward graph, too."""
    x = torch.randn(3, 4, requires_grad=True)
    dort_rewriter.save(compiled_of(lambda x: x.exp().sum()), tmp_path, x, training=True)
    rewrite(tmp_path, lambda content: content["calls"][0].update(result={"result": 1}))
    with pytest.raises(ExecutionError, match="result 1 is named, of 1"):
        dort_rewriter.load(tmp_path)


def test_what_is_shown_of_it(tmp_path: Path) -> None:
    dort_rewriter.save(compiled_of(Classifier()), tmp_path, *batch(), training=True)
    shown = read_saved(tmp_path)
    assert shown.to_dict()["gradients"] is True
    gradients = r"^gradients: backward-\w+\.onnx, \d+ (bytes|kB), on CPUExecutionProvider$"
    assert re.search(gradients, str(shown), re.MULTILINE)


_OTHER = """
import sys, torch, dort_rewriter
loaded = dort_rewriter.load(sys.argv[1])
x, y = torch.load(sys.argv[2])
loaded(x, y)["loss"].backward()
print(float(loaded.state["head.weight"].grad.double().sum()).hex())
assert "torch._dynamo.convert_frame" not in sys.modules
"""


def test_in_another_process(tmp_path: Path) -> None:
    model = Classifier()
    compiled = compiled_of(model)
    given = batch()
    dort_rewriter.save(compiled, tmp_path / "saved", *given, training=True)
    torch.save(given, tmp_path / "given.pt")
    command = [sys.executable, "-c", _OTHER, str(tmp_path / "saved"), str(tmp_path / "given.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled(*given)["loss"].backward()
    assert model.head.weight.grad is not None
    assert done.stdout.split()[-1] == float(model.head.weight.grad.double().sum()).hex()
