"""The programs of ``scripts/examples`` at a small size, as a user would start them."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import onnx
import pytest

from tests.gates.sources import ROOT

pytestmark = pytest.mark.alternating

EXAMPLES = ROOT / "scripts" / "examples"


def run(name: str, folder: Path, *arguments: str) -> str:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DORT_", "ONNXRT_"))}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_has_a_test() -> None:
    tests = Path(__file__).parent.glob("test_*.py")
    tested = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    missing = [path.name for path in EXAMPLES.glob("*.py") if f'{path.name}"' not in tested]
    assert missing == []


def test_custom_exporter_llama(tmp_path: Path) -> None:
    text = run("custom_exporter_llama.py", tmp_path, "--sequence", "8")
    folder = tmp_path / "dump_llama"
    for place in (folder, folder / "baseline"):
        models = sorted(place.glob("*.onnx"))
        assert [m.name for m in models] == ["dort-llama-ort_0.onnx", "dort-llama-ort_1.onnx"]
        for model in models:
            count = len(onnx.load(model).graph.node)
            assert f"{model.relative_to(tmp_path)}: {count} nodes" in text
    differences = [float(d) for d in re.findall(r"gradients off by (\S+)", text)]
    assert len(differences) == 2
    # Relative to the largest element of each gradient, some of which are tiny.
    assert max(differences) < 1e-3
    before, after = map(int, re.findall(r"^  all +(\d+) +(\d+)$", text, flags=re.M)[0])
    assert 0 < after < before


def test_llama_fused(tmp_path: Path) -> None:
    text = run("llama_fused_102.py", tmp_path, "--size", "small", "--repeat", "2", "--warmup", "1")
    with (tmp_path / "llama_fused" / "llama_fused.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:7] == [
        *("optim", "processor", "avg_time", "warmup", "N", "n_custom_ops", "speedup")
    ]
    names = ["default", "default+onnxruntime", "default+onnxruntime+experimental"]
    assert [row["optim"] for row in rows] == ["eager", *names]
    assert all(float(row["avg_time"]) > 0 and row["N"] == "2" for row in rows)
    assert all(float(row["difference"]) < 1e-3 for row in rows)
    assert rows[1]["n_custom_ops"] == "0"
    assert int(rows[2]["n_custom_ops"]) > 0
    for name in names:
        assert re.search(rf"^{re.escape(name)} +CPU +", text, flags=re.M)
    image = ET.parse(tmp_path / "llama_fused" / "llama_fused.svg").getroot()
    assert len(image.findall("{http://www.w3.org/2000/svg}rect")) == 4
