"""The benchmarks of deployment at their smallest sizes: what they measure is there, and right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dort_rewriter.runtime.kernel_query import BITS, has_low_bit_products

pytestmark = [pytest.mark.alternating, pytest.mark.load_sensitive]

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def rows_of(script: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows that a script writes."""
    figures = folder / "figures.json"
    command = [sys.executable, str(SCRIPTS / script), *arguments, "--json", str(figures)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(figures.read_text())
    return rows


@pytest.mark.parametrize("more", [[], ["--training"]])
def test_the_first_answer_of_a_loaded_model_is_measured(more: list[str], tmp_path: Path) -> None:
    rows = rows_of("bench_load.py", tmp_path, "--layers", "1", "--width", "16", *more)
    assert [(r["layers"], r["way"]) for r in rows] == [
        (1, "compiled"),
        (1, "on disk"),
        (1, "loaded"),
    ]
    assert all(0 < r["answer"] < r["process"] for r in rows)


def test_steps_with_weights_of_few_bits_are_measured(tmp_path: Path) -> None:
    ways = ["onnxrt-freeze", *(way for way, bits in BITS.items() if has_low_bit_products(bits))]
    small = ["--length", "8", "--width", "128", "--layers", "1", "--heads", "2", "--groups", "1"]
    (row,) = rows_of(
        "bench_decode.py",
        tmp_path,
        *(*small, "--seconds", "0", "--threads", "1", "--backends", ",".join(ways)),
    )
    assert list(row["ms"]) == ways
    assert (row["width"], row["groups"], row["threads"]) == (128, 1, 1)
    assert all(ms > 0 for ms in row["ms"].values())
    exact, *rounded = (row["difference"][way] for way in ways)
    assert exact < 1e-4
    assert all(1e-4 < far < 1 for far in rounded)
