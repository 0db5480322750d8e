"""A saved model is loaded as it was, by the versions that saved it, for arguments that fit."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import dort_rewriter
from dort_rewriter import ExecutionError, OrtBackend
from dort_rewriter.deployment.folder import file_entry, read_description
from tests.deployment.forged import FORGED, rewrite
from tests.gates.sources import ROOT


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, *, scale: float = 1.0
    ) -> torch.Tensor:
        y = self.layers(x) * scale
        return y if mask is None else y * mask


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """A folder with a saved model, an argument, and what the compiled model makes of it."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    compiled = torch.compile(Network().eval(), backend=OrtBackend())
    x, folder = torch.randn(3, 4), tmp_path_factory.mktemp("saved")
    with torch.no_grad():
        expected = compiled(x)
        dort_rewriter.save(compiled, folder)
    return folder, x, expected


@pytest.fixture
def saved(original: Any, tmp_path: Path) -> tuple[Path, torch.Tensor, torch.Tensor]:
    """The same, to be changed."""
    folder, x, expected = original
    copied = Path(shutil.copytree(folder, tmp_path / "saved"))
    return copied, x, expected


PROGRAM = """
import sys
import torch
import dort_rewriter

x, expected = torch.load({tensors!r})
with torch.no_grad():
    result = dort_rewriter.load({folder!r})(x)
assert torch.equal(result, expected)
heavy = ("torch._dynamo", "onnxscript", "dort_rewriter.export", "dort_rewriter.optimize")
heavy += {more!r}
print(*(name for name in heavy if name in sys.modules))
"""


def test_another_process(saved: Any, tmp_path: Path) -> None:
    """It loads the model without what exports and optimizes, nor Dynamo, nor what reads ONNX."""
    folder, x, expected = saved
    tensors = str(folder / "tensors.pt")
    torch.save((x, expected), tensors)
    # The import of onnxruntime-training brings onnx's users along.
    more = (
        ()
        if "onnxruntime-training" in read_description(folder)["made_by"]["onnxruntime"]
        else ("onnx_ir", "onnx", "google.protobuf")
    )
    code = PROGRAM.format(tensors=tensors, folder=str(folder), more=more)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_an_error_of_a_run_says_which_node(tmp_path: Path) -> None:
    """The model is read for it: it was not before."""
    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.Embedding(4, 2), backend=OrtBackend())
    with torch.no_grad():
        dort_rewriter.save(compiled, tmp_path, torch.tensor([1]))
        loaded = dort_rewriter.load(tmp_path)
        with pytest.raises(ExecutionError, match=r"Node '.*' is Gather\("):
            loaded(torch.tensor([9]))
        loaded = dort_rewriter.load(tmp_path)
        (path,) = tmp_path.glob("*.onnx")
        path.unlink()
        with pytest.raises(ExecutionError, match="Gather"):  # less is said
            loaded(torch.tensor([9]))


def test_weights_elsewhere_are_not_read(saved: Any) -> None:
    """A model that refers to a file is looked at before onnxruntime sees it."""
    folder, _, _ = saved
    (path,) = folder.glob("*.onnx")
    model = onnx.load(path)
    weight = model.graph.initializer.add()
    weight.name, weight.data_type, weight.data_location = "w", 1, onnx.TensorProto.EXTERNAL
    weight.dims.append(2)
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "/etc/passwd"
    onnx.save(model, path)

    def change(content: dict[str, Any]) -> None:
        content["files"]["model 0"] = file_entry(path)

    rewrite(folder, change)
    with pytest.raises(ExecutionError, match="refers to another file"):
        dort_rewriter.load(folder)


def test_a_model_that_is_none_is_refused(saved: Any) -> None:
    folder, _, _ = saved
    (path,) = folder.glob("*.onnx")
    path.write_bytes(b"no model at all")

    def change(content: dict[str, Any]) -> None:
        content["files"]["model 0"] = file_entry(path)

    rewrite(folder, change)
    with pytest.raises(ExecutionError):
        dort_rewriter.load(folder)


def test_no_pickle(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, x, expected = saved

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle is read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    with torch.no_grad():
        assert torch.equal(dort_rewriter.load(folder)(x), expected)


BAD_CALLS: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "another size": (lambda x: ((x[:2],), {}), r"shape \(2, 4\); what was saved takes \(3, 4\)"),
    "another rank": (lambda x: ((x[0],), {}), "of rank 1; what was saved takes 2"),
    "another type": (lambda x: ((x.double(),), {}), "float64; what was saved takes torch.float32"),
    "another device": (lambda x: ((x.to("meta"),), {}), "on meta; what was saved takes cpu"),
    "another class": (lambda x: ((Special(x),), {}), "is a Special, not a Tensor"),
    "no tensor": (lambda x: (("x",), {}), "was a tensor when it was saved, not 'x'"),
    "a list": (lambda x: (([x],), {}), "was a tensor"),
    "a tensor more": (lambda x: ((x, x), {}), "mask was None when it was saved"),
    "another number": (lambda x: ((x,), {"scale": 2.0}), "scale was 1.0 .* it cannot be 2.0"),
    "a whole number": (lambda x: ((x,), {"scale": 1}), "scale was 1.0 .* it cannot be 1"),
    "no argument": (lambda x: ((), {}), "The argument x is missing"),
    "too many": (lambda x: ((x, None, None), {}), "There is no place for 1 arguments"),
    "an unknown name": (lambda x: ((x,), {"size": 1}), "There is no place for 'size'"),
    "a gradient": (lambda x: ((x.clone().requires_grad_(),), {}), "computes none of it"),
}


class Special(torch.Tensor):
    """A subclass."""


@pytest.mark.parametrize("case", BAD_CALLS)
def test_arguments_that_do_not_fit(case: str, saved: Any) -> None:
    folder, x, expected = saved
    loaded = dort_rewriter.load(folder)
    change, why = BAD_CALLS[case]
    args, kwargs = change(x)
    if isinstance(args[0] if args else None, Special):
        args = (x.as_subclass(Special),)
    with pytest.raises(ExecutionError, match=why):
        loaded(*args, **kwargs)
    assert torch.equal(loaded(x), expected)


def test_arguments_that_fit(saved: Any) -> None:
    """By place, by name, with what was the default, and however they lie in memory."""
    folder, x, expected = saved
    loaded = dort_rewriter.load(folder)
    for args, kwargs in (
        ((x, None), {}),
        ((), {"x": x, "scale": 1.0}),
        ((x.t().contiguous().t(),), {}),
        ((torch.cat([x, x], 1)[:, :4],), {}),
        ((nn.Parameter(x, requires_grad=False),), {}),
    ):
        assert torch.equal(loaded(*args, **kwargs), expected)
        assert torch.equal(loaded(x), expected)
    with torch.inference_mode():
        assert torch.equal(loaded(x.clone()), expected)


@pytest.mark.parametrize("package", ["torch", "onnxruntime", "dort_rewriter"])
def test_other_versions_are_refused(package: str, saved: Any) -> None:
    folder, _, _ = saved
    rewrite(folder, lambda content: content["made_by"].update({package: "0.0.1"}))
    with pytest.raises(
        ExecutionError, match=f"saved with {package} 0.0.1; here is .*Save it again"
    ):
        dort_rewriter.load(folder)
    rewrite(folder, lambda content: content.update(format=0))
    with pytest.raises(ExecutionError, match="is of format 0"):
        dort_rewriter.load(folder)


@pytest.mark.parametrize("name", ["saved.json", "model", "tensors"])
@pytest.mark.parametrize("damage", ["changed", "short", "long", "empty", "missing"])
def test_damaged_files_are_refused(name: str, damage: str, saved: Any) -> None:
    folder, _, _ = saved
    (path,) = [p for p in folder.iterdir() if p.name.startswith(name)]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {
        "changed": bytes(content),
        "short": path.read_bytes()[:-2],
        "long": path.read_bytes() + b"{",
        "empty": b"",
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(damaged[damage])
    with pytest.raises(ExecutionError, match=r"is damaged|is missing|cannot be read"):
        dort_rewriter.load(folder)


def test_weights_may_go_unread(saved: Any) -> None:
    """Their size is checked all the same."""
    folder, x, expected = saved
    (path,) = folder.glob("tensors-*")
    assert torch.equal(dort_rewriter.load(folder, check=False)(x), expected)
    path.write_bytes(path.read_bytes() + b"1")
    with pytest.raises(ExecutionError, match="is damaged"):
        dort_rewriter.load(folder, check=False)


@pytest.mark.parametrize("case", FORGED)
def test_forged_descriptions_run_nothing(
    case: str, saved: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever a description says, with the right digest: it is refused, and none of it is run."""
    folder, x, _ = saved
    rewrite(folder, FORGED[case])
    with pytest.raises(ExecutionError):
        dort_rewriter.load(folder)(x)
    assert capsys.readouterr().out == ""


def test_links_are_not_followed(saved: Any, tmp_path: Path) -> None:
    folder, _, _ = saved
    (path,) = folder.glob("tensors-*")
    elsewhere = tmp_path.parent / f"{path.name}.elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(ExecutionError, match="is damaged"):
        dort_rewriter.load(folder)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ExecutionError, match=r"holds no saved model.*save\(compiled, path\)"):
            dort_rewriter.load(folder)


def test_weights_of_ones_own_take_no_model(saved: Any) -> None:
    with pytest.raises(dort_rewriter.OptionError, match="without a model"):
        dort_rewriter.load(saved[0], Network())


def test_threads_share_a_loaded_model(saved: Any) -> None:
    folder, x, expected = saved
    loaded = dort_rewriter.load(folder)
    right: list[bool] = []

    def work() -> None:
        right.extend(torch.equal(loaded(x), expected) for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == 200
    assert all(right)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_goes_on(saved: Any) -> None:
    folder, x, expected = saved
    loaded = dort_rewriter.load(folder)
    loaded(x)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if torch.equal(loaded(x), expected) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_loaded_model_says_what_it_is(saved: Any) -> None:
    loaded = dort_rewriter.load(saved[0])
    assert repr(loaded) == f"SavedModel({str(saved[0])!r}, x: (3, 4))"
    assert loaded.state["layers.0.weight"].shape == (8, 4)
