"""The demonstration at a small size: it is right, it says so, and it notices when it is not."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter.tools import cli, demo_command
from dort_rewriter.tools.demo import Competitor, DemoResult, run_demo
from dort_rewriter.tools.dot import find_dot

SMALL = ["--steps", "6", "--hidden", "8", "--batch", "16", "--backends", "onnxrt"]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_the_curves_coincide_and_the_page_shows_the_graphs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *SMALL, "--folder", "here"]) == 0
    text = capsys.readouterr().out
    assert "The curves of onnxrt coincide with that of eager mode." in text
    assert "NOT" not in text
    assert "times eager" in text
    models = sorted((tmp_path / "here").glob("*.onnx"))
    assert [model.name for model in models] == ["demo_0.onnx", "demo_1.onnx"]
    for model in models:
        assert f"{model.name}: {len(onnx.load(model).graph.node)} nodes" in text
    page = (tmp_path / "here" / "demo.html").read_text(encoding="utf-8")
    # Two charts, and the graphs where graphviz is installed; their texts in any case.
    assert page.count("<svg") == (4 if find_dot() is not None else 2)
    assert page.count("<pre>") == 2
    assert page.count("<h3>demo_") == 2
    assert "beside eager mode, on the same data" in page
    assert "Gemm" in page


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", *SMALL, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    eager, onnxrt = data["competitors"]
    assert (eager["backend"], onnxrt["backend"]) == ("eager", "onnxrt")
    assert len(eager["losses"]) == 6
    assert eager["losses"][-1] < eager["losses"][0]
    assert 0 <= onnxrt["worst_difference"] < 1e-4
    assert len(data["files"]) == 4
    assert Path(data["page"]).exists()


def test_a_backend_that_fails_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    def broken(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    torch._dynamo.register_backend(broken, "broken_for_the_demo")
    result = run_demo(
        tmp_path, backends=["broken_for_the_demo", "onnxrt"], steps=3, hidden=4, batch=8
    )
    _, broken_one, onnxrt = result.competitors
    assert "no compiler here" in broken_one.failure
    assert result.worst(broken_one) == float("inf")
    assert result.worst(onnxrt) < 1e-4
    lines = "\n".join(demo_command._text(result, tmp_path / "page.html"))
    assert "NOT those of broken_for_the_demo." in lines


def test_a_slow_machine_makes_fewer_steps(tmp_path: Path) -> None:
    result = run_demo(tmp_path, backends=[], steps=50, hidden=4, batch=8, seconds=0.0)
    assert len(result.eager.losses) == 5


def competitor(backend: str, losses: list[float], seconds: list[float]) -> Competitor:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    return Competitor(
        backend=backend, model=model, optimizer=optimizer, losses=losses, seconds=seconds
    )


def test_wrong_losses_end_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = DemoResult(
        competitors=(
            competitor("eager", [2.0, 1.0], [1.0, 1.0]),
            competitor("onnxrt", [2.0, 1.2], [1.0, 0.5]),
        ),
        files=(),
    )
    assert wrong.worst(wrong.competitors[1]) == pytest.approx(0.1)
    monkeypatch.setattr(demo_command, "run_demo", lambda *args, **options: wrong)
    Path("dort_demo").mkdir()
    assert cli.main(["demo"]) == 1
    assert "NOT those of onnxrt." in capsys.readouterr().out


def test_times_leave_the_first_steps_out() -> None:
    times = competitor("eager", [1.0] * 5, [9.0, 8.0, 7.0, 1.0, 3.0])
    assert (times.first, times.usual) == (9.0, 2.0)
    assert competitor("eager", [1.0], [9.0]).usual == 9.0


def test_without_tqdm_progress_is_plain(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert list(demo_command._progress(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err.endswith("training 3/3\n")


@pytest.mark.parametrize("wrong", ["--steps", "--hidden", "--batch"])
def test_sizes_are_checked(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", wrong, "0"]) == 1
    assert "at least 1" in capsys.readouterr().err


def test_the_page_is_well_formed(tmp_path: Path) -> None:
    cli.main(["demo", *SMALL, "--folder", "here"])
    page = (tmp_path / "here" / "demo.html").read_text(encoding="utf-8")
    for image in page.split("<svg")[1:]:
        ET.fromstring(f"<svg{image[: image.index('</svg>')]}</svg>")
