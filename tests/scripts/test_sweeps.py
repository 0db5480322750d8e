"""A sweep that judged nothing ends with an error, and says why."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dort_rewriter

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(name="load")
def scripts_on_the_path(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")  # as the scripts do
    return importlib.import_module


class Entry:
    def __init__(self, name: str) -> None:
        self.name, self.variant_test_name = name, ""


def measure(entry: Entry) -> Iterator[dict[str, Any]]:
    if entry.name.startswith("broken"):
        raise RuntimeError("a library is missing")
    if not entry.name.startswith("without"):
        yield {"status": "right"}


@pytest.mark.parametrize(
    ("broken", "works", "without", "told"),
    [
        (1, 9, 0, ""),
        (2, 9, 9, "9 judged, 2 skipped, which is no sweep; the first: broken0: a library is"),
        (3, 0, 0, "0 judged, 3 skipped"),
        (0, 0, 2, "0 judged, 0 skipped, which is no sweep"),
        (0, 0, 0, "0 judged, 0 skipped"),
    ],
)
def test_what_is_skipped_is_no_verdict(
    load: Any, broken: int, works: int, without: int, told: str
) -> None:
    """Entries without a case count neither as judged nor as skipped."""
    sweep = load("op_db_entries").sweep
    counts = {"broken": broken, "works": works, "without": without}
    entries = [Entry(f"{kind}{i}") for kind, n in counts.items() for i in range(n)]
    args = argparse.Namespace(workers=1, timeout=60.0)
    threads = torch.get_num_threads()
    try:
        if told:
            with pytest.raises(SystemExit, match=told):
                sweep(entries, measure, args)
        else:
            assert len(sweep(entries, measure, args)) == broken + works
    finally:
        torch.set_num_threads(threads)


def test_a_backend_that_is_not_found_ends_a_sweep(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookup(name: str) -> None:
        raise torch._dynamo.exc.InvalidBackend(name)

    require = load("sweeps").require_backend
    require()
    monkeypatch.setattr(torch._dynamo, "lookup_backend", lookup)
    with pytest.raises(SystemExit, match="dort-rewriter is not installed"):
        require()


@pytest.mark.parametrize("differs", [{"state": "disabled"}, {"rewriter": False}])
def test_another_backend_of_the_name_ends_a_sweep(
    load: Any, differs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has had one of its own, which is there without the hook."""
    status = dataclasses.replace(dort_rewriter.install(), **differs)
    monkeypatch.setattr(dort_rewriter, "install", lambda: status)
    with pytest.raises(SystemExit, match="onnxrt is not this package's backend"):
        load("sweeps").require_backend()
