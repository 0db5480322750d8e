from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dort_rewriter.export.converters import expansions

pytestmark = pytest.mark.alternating

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/fit_expansions.py"


@pytest.mark.parametrize("name", ["ERFCX", "I1_FAR", "Q0"])
def test_the_coefficients_are_those_of_the_script(name: str) -> None:
    spec = importlib.util.spec_from_file_location("fit_expansions", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.mp.mp.dps = 60
    fitted = script.to_powers(script.chebyshev(script.EXPANSIONS[name][1]))
    assert getattr(expansions, name) == pytest.approx(fitted, rel=1e-12, abs=1e-15)
