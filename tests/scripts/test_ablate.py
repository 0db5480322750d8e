"""What is taken away, how much slower a program gets, and the table of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = [pytest.mark.alternating, pytest.mark.load_sensitive]

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture(name="ablate")
def load_ablate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import ablate  # type: ignore[import-not-found]

    return ablate


def test_a_program_is_measured_once(tmp_path: Path) -> None:
    """A row for what takes part in it, and none for the rest."""
    file = tmp_path / "rows.jsonl"
    command = [sys.executable, str(SCRIPTS / "ablate.py"), str(file), "--seconds", "0"]
    command += ["--programs", "mlp-10-32-1/training", "--level", "rules"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    names = [row["without"] for row in rows]
    assert "ElementwiseChains" in names
    assert "products by MKL or torch" in names
    assert "RotaryEmbedding" not in names
    assert names[-1] is None
    assert all(0 < r["low"] <= r["ratio"] <= r["high"] for r in rows[:-1])
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (0, "")
    assert len(file.read_text().splitlines()) == len(rows)


def test_what_is_taken_away_is_gone(ablate: ModuleType) -> None:
    seen = ablate.Seen(converters={"softmax.softmax"})
    seen.operators |= {"aten::mm", "aten::convolution"}
    (found,) = (r for r in ablate.removals("sets", "kernels", seen) if r.kind == "ours")
    assert found.converters == {"softmax.softmax"}
    products, convolutions = (
        r for r in ablate.removals("modules", "kernels", seen) if r.kind == "torch"
    )
    backend = ablate.backend_without(products, "kernels", 2)
    assert backend._options.placement == {"aten::mm": "onnxruntime"}
    assert convolutions.operators == {"aten::convolution"}
    assert ablate.removals("sets", "default", seen) == []
    selected = ablate.Removal("one", "default", rules=frozenset({"CastCast"}))
    patterns = ablate.backend_without(selected, "default", 1)._options.optimization.patterns
    assert patterns == "default-NotNot+NotNot-CastCast"


def test_the_interval_of_a_gain(ablate: ModuleType) -> None:
    """Rounds that something disturbed are left out."""
    with_it = [1.0] * 16
    mean, low, high = ablate.interval(with_it, [1.1, 1.11] * 7 + [9.0, 0.1])
    assert 1.09 < low < mean < high < 1.12


def test_what_pays_is_first(ablate: ModuleType) -> None:
    def row(without: str | None, ratio: float, base: str = "kernels") -> dict[str, object]:
        return {"program": f"p{ratio}", "without": without, "base": base, "ratio": ratio,
                "low": ratio - 0.01, "high": ratio + 0.01}  # fmt: skip

    rows = [row("a", 1.0), row("b", 1.5), row("b", 1.0), row("c", 0.9), row(None, 0)]
    rows.append(row("a", 1.2, "default"))
    _, _, *lines = ablate.table(rows).splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| b", "| a", "| c"]
    assert "1.225, 1 of 2 gain (most 1.50: p1.5)" in lines[0]
    assert "1 lose (most 0.90: p0.9)" in lines[2]
