"""The loop of processes that measure: what ends one, or hangs, is told, and the others go on."""

from __future__ import annotations

import importlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alternating

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(name="children")
def load_script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("children")


def measure(name: str) -> Iterator[tuple[str, int]]:
    os.write(1, b"noise")
    yield name, os.getpid()
    if name == "crashes":
        os._exit(3)
    if name == "hangs":
        time.sleep(60)
    if name == "raises":
        raise RuntimeError(name)
    yield name, os.getpid()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_lost_process_is_told_of_and_replaced(
    children: Any, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ["works", "crashes", "hangs", "raises", "works too"]
    found: dict[str, list[Any]] = defaultdict(list)
    options = {"workers": workers, "limit": 1.0, "quiet": True}
    for name, record in children.measured(names, measure, **options):
        found[name].append(record)
    assert {name: len(records) for name, records in found.items()} == dict.fromkeys(names, 2)
    ends = {name: str(records[1]) for name, records in found.items()}
    assert ends["crashes"] == "the process ended with 3"
    assert ends["hangs"] == "no answer in 1 s"
    assert ends["raises"] == "the process ended with 1"
    processes = {records[0][1] for records in found.values()}
    assert os.getpid() not in processes
    assert len(processes) >= 4
    assert found["works"][0] == found["works"][1]
    assert "noise" not in capfd.readouterr().out


def test_what_is_left_alone_ends(children: Any) -> None:
    started = children.measured(["works", "hangs"], measure, workers=2)
    _, (_, process) = next(started)
    started.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
