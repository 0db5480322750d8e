"""Importing the package costs nothing: what is heavy is imported when it is first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gates.sources import ROOT

pytestmark = pytest.mark.load_sensitive

HEAVY = ("torch", "numpy", "onnx", "onnx_ir", "onnxscript", "onnxruntime")


def loaded_by(statement: str) -> set[str]:
    """The heavy modules that a new interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(*sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["", ".env", ".errors", ".options"])
def test_nothing_heavy_is_imported(module: str) -> None:
    assert loaded_by(f"import dort_rewriter{module}") == set()


def test_listing_the_names_imports_nothing() -> None:
    assert (
        loaded_by("import dort_rewriter; dir(dort_rewriter), dort_rewriter.__version__") == set()
    )


def test_the_probe_sees_a_heavy_import() -> None:
    assert "numpy" in loaded_by("import numpy")
