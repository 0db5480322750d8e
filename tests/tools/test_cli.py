"""The command line: every command exists, explains itself, and fails with a message."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from dort_rewriter import HookError, __version__
from dort_rewriter.tools import benchmark, cli, comparison


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"dort-rewriter {name}" in text
    assert "--json" in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_option_explains_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsers: list[argparse.ArgumentParser] = []

    def parse(parser: argparse.ArgumentParser, *_: object) -> None:
        parsers.append(parser)
        raise SystemExit(0)

    run = cli.find_command(name)
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(SystemExit):
        run([])
    (parser,) = parsers
    assert [a.option_strings or a.dest for a in parser._actions if not a.help] == []


@pytest.mark.parametrize(
    "more",
    [
        ["compare", "--exporters", "dort_rewriter", "--repeat", "1"],
        ["bench", "--modes", "inference", "--backends", "eager", "--seconds", "0.001"],
        ["explain"],
    ],
    ids=lambda more: more[0],
)
def test_what_a_model_prints_is_no_json(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "printing_model.py"
    print_in_forward = "" if more[0] == "explain" else "print('in forward')"
    source.write_text(
        "import torch\n"
        "print('imported')\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        f"        {print_in_forward}\n"
        "        return x + 1\n"
        "def make():\n"
        "    print('made')\n"
        "    return Model(), torch.ones(3)\n"
    )
    assert cli.main([more[0], f"{source}:make", *more[1:], "--json"]) == 0
    shown = capsys.readouterr()
    json.loads(shown.out)
    assert {"imported", "made"} <= set(shown.err.splitlines())


@pytest.mark.parametrize(("name", "words"), [("bench", benchmark), ("compare", comparison)])
def test_each_choice_is_explained(
    name: str, words: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each variant, and each exporter, has a line that says what it is."""
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    text = capsys.readouterr().out
    tables = ("VARIANTS", "INDUCTOR", "EXPORTERS")
    known = {word for table in tables for word in getattr(words, table, ())}
    assert known <= set(words.MEANING)
    for word, meaning in words.MEANING.items():
        assert re.search(rf"^  {word} +{re.escape(meaning)}$", text, flags=re.MULTILINE)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    for name, line in cli.COMMANDS.items():
        assert name in text
        assert line in text


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["patch"], ["status", "more"]])
def test_a_wrong_call_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out.strip() == __version__


def test_a_failure_on_purpose_ends_with_1_and_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> int:
        raise HookError(f"no: {arguments}")

    monkeypatch.setattr(cli, "find_command", lambda name: fail)
    assert cli.main(["patch", "--check"]) == 1
    assert capsys.readouterr().err == "dort-rewriter patch: no: ['--check']\n"


def test_status_reports_the_hook(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status"]) == 0
    assert capsys.readouterr().out.startswith("dort_rewriter hook: ")


def test_status_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["state"] in ("installed", "waiting")
    assert isinstance(data["applied"], list)
