"""The demonstration at a small size: it is right, it says so, and it notices when it is not."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter.tools import cli, demo, demo_command, demo_worker
from dort_rewriter.tools.demo import Competitor, DemoResult, Times, catches_up, demonstrate
from dort_rewriter.tools.demo_command import overtaking, write_page
from dort_rewriter.tools.demo_model import Size, make_batch, make_model

pytestmark = pytest.mark.alternating

SMALL = [
    "--steps",
    "50",
    "--seconds",
    "0",
    "--layers",
    "1",
    "--hidden",
    "32",
    "--batch",
    "2",
    "--length",
    "16",
]
TINY = Size(layers=1, hidden=24, vocabulary=16, batch=1, length=4)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_curves_coincide_and_the_page_shows_the_graphs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[DemoResult] = []

    monkeypatch.setattr(demo, "busy", lambda threads: "")

    def kept(*args: Any, **options: Any) -> DemoResult:
        made.append(demonstrate(*args, **options))
        return made[0]

    monkeypatch.setattr(demo_command, "demonstrate", kept)
    assert cli.main(["demo", *SMALL, "--backends", "onnxrt", "--folder", "here"]) == 0
    text = capsys.readouterr().out
    for competitor in made[0].competitors:  # the time was over: fewer steps than asked for
        assert len(competitor.losses) == 5
        assert len(competitor.training.seconds) == len(competitor.inference.seconds) == 5
    assert "A Llama of 1 layers, 32 wide, 2 x 16 tokens, on " in text
    assert "The curves of onnxrt coincide with that of eager mode." in text
    assert "NOT" not in text
    assert "first call (s)" in text
    assert "memory (MB)" in text
    models = sorted((tmp_path / "here").glob("*.onnx"))
    assert [model.name for model in models] == ["demo_0.onnx", "demo_1.onnx"]
    for model in models:
        assert f"{model.name}: {len(onnx.load(model).graph.node)} nodes" in text
    page = (tmp_path / "here" / "demo.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 6  # four charts and two graphs
    assert (tmp_path / "here" / "demo.svg").read_text(encoding="utf-8").strip() in page
    assert page.count("<pre>") == 2
    assert page.count("<h3>demo_") == 2
    assert "beside eager mode, on the same data" in page
    assert "Gemm" in page
    for image in page.split("<svg")[1:]:
        ET.fromstring(f"<svg{image[: image.index('</svg>')]}</svg>")


def test_a_process_answers_until_it_is_asked_no_more(tmp_path: Path) -> None:
    made = {"backend": "eager", "size": dataclasses.asdict(TINY), "folder": None}
    questions = [made, *["training"] * 30, "inference", "memory"]
    answers = io.StringIO()
    demo_worker.serve(io.StringIO("\n".join(map(json.dumps, questions))), answers)
    first, *training, inference, memory = map(json.loads, answers.getvalue().splitlines())
    assert first == {}
    assert training[-1]["loss"] < training[0]["loss"]
    assert inference["seconds"] > 0
    assert memory["megabytes"] is None or memory["megabytes"] > 50


def test_a_backend_that_is_not_there_is_a_failure() -> None:
    made = {"backend": "nobody", "size": dataclasses.asdict(TINY), "folder": None}
    answers = io.StringIO()
    demo_worker.serve(io.StringIO("\n".join(map(json.dumps, [made, "training"]))), answers)
    assert "nobody" in json.loads(answers.getvalue().splitlines()[0])["failure"]


@pytest.mark.parametrize(
    ("ours", "theirs", "step"),
    [
        ([1.0, 0.2], [11.0, 0.1], 101),
        ([1.0, 0.1], [11.0, 0.1], None),
        ([1.0, 0.1], [11.0, 0.2], None),
        ([2.0, 0.1], [1.0, 0.2], 1),
    ],
)
def test_when_inductor_has_made_as_many_steps(
    ours: list[float], theirs: list[float], step: int | None
) -> None:
    assert catches_up(Times(seconds=ours), Times(seconds=theirs)) == step
    both = (
        Competitor(backend="onnxrt", training=Times(seconds=ours)),
        Competitor(backend="inductor", training=Times(seconds=theirs)),
    )
    text = overtaking(dataclasses.replace(WRONG, competitors=both))
    assert {101: "after 101 steps", 1: "first training step first", None: "never"}[step] in text
    assert overtaking(WRONG) == ""


def test_what_fails_is_in_the_tables() -> None:
    failed = Competitor(backend="nobody", failure="There is none.")
    result = dataclasses.replace(WRONG, competitors=(WRONG.eager, failed))
    lines = "\n".join(demo_command._text(result, Path("page.html")))
    assert "NOT those of nobody." in lines
    assert lines.count("There is none.") == 3
    assert "There is none." in write_page(result, Path("page.html")).read_text(encoding="utf-8")


def test_memory_is_unknown_where_the_system_does_not_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo_worker, "RESET", tmp_path / "nowhere" / "clear_refs")
    assert demo_worker.Worker("eager", TINY).memory() == {"megabytes": None}


def test_an_answer_after_the_end_of_a_process_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    result = demonstrate(tmp_path, backends=[], steps=2, size=TINY)
    assert result.eager.failure == "Its process ended."


def test_the_model_sees_nothing_of_what_follows() -> None:
    model, (tokens, following) = make_model(TINY), make_batch(TINY)
    assert torch.equal(tokens[:, 1:], following[:, :-1])
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % TINY.vocabulary
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def competitor(backend: str, losses: list[float], seconds: list[float]) -> Competitor:
    return Competitor(
        backend=backend,
        losses=losses,
        inference=Times(seconds=seconds),
        training=Times(seconds=seconds),
    )


WRONG = DemoResult(
    size=TINY,
    competitors=(
        competitor("eager", [2.0, 1.0], [1.0, 1.0]),
        competitor("onnxrt", [2.0, 1.2], [1.0, 0.5]),
    ),
    files=(),
)


@pytest.fixture
def _wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command, "demonstrate", lambda *args, **options: WRONG)


@pytest.mark.usefixtures("_wrong")
def test_wrong_losses_end_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert WRONG.worst(WRONG.competitors[1]) == pytest.approx(0.1)
    assert cli.main(["demo"]) == 1
    assert "NOT those of onnxrt." in capsys.readouterr().out


@pytest.mark.usefixtures("_wrong")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["demo", "--json"])
    data = json.loads(capsys.readouterr().out)
    eager, onnxrt = data["competitors"]
    assert (eager["backend"], onnxrt["backend"]) == ("eager", "onnxrt")
    assert onnxrt["losses"] == [2.0, 1.2]
    assert onnxrt["worst_difference"] == pytest.approx(0.1)
    assert onnxrt["memory_mb"] is None
    for mode in ("inference", "training"):
        assert (onnxrt[f"first_{mode}_s"], onnxrt[f"{mode}_s"]) == (1.0, 0.5)
    assert Path(data["page"]).exists()


@pytest.mark.parametrize("words", ["", "the machine is busy: a load of 9.0 on 2 processors"])
def test_a_busy_machine_is_said(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the text and on the page: nobody is to believe its times."""
    result = dataclasses.replace(WRONG, busy=words)
    monkeypatch.setattr(demo_command, "demonstrate", lambda *args, **options: result)
    cli.main(["demo"])
    page = Path("dort_demo/demo.html").read_text(encoding="utf-8")
    for text in (capsys.readouterr().out, page):
        assert ("busy" in text) == bool(words)


def test_times_leave_the_first_steps_out() -> None:
    times = Times(seconds=[9.0, 8.0, 7.0, 1.0, 3.0])
    assert (times.first, times.usual) == (9.0, 2.0)
    assert Times(seconds=[9.0]).usual == 9.0


def test_progress_is_shown_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(demo_command._progress(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(demo_command._progress(range(3))) == [0, 1, 2]
    assert capsys.readouterr().err.endswith("training 3/3\n")


@pytest.mark.parametrize("wrong", ["--steps", "--layers", "--hidden", "--batch", "--length"])
def test_sizes_are_checked(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", wrong, "0"]) == 1
    assert "at least 1" in capsys.readouterr().err


def test_the_width_is_cut_into_heads(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--hidden", "30"]) == 1
    assert "multiple of 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--backends", "onnxrt,foo"], "Unknown backend 'foo': known are "),
        (["--folder", "file/inside"], "The folder cannot be made: "),
    ],
)
def test_what_cannot_be_done_is_said_first(
    more: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo_command, "demonstrate", lambda *args, **options: WRONG)
    Path("file").touch()
    assert cli.main(["demo", *more]) == 1
    said = capsys.readouterr().err.removeprefix("dort-rewriter demo: ")
    assert said.startswith(message)
    assert not Path("dort_demo").exists()
