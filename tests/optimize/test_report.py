"""What an optimization says it did."""

from __future__ import annotations

import json
import logging

import pytest

from dort_rewriter import OptimizationOptions
from dort_rewriter.optimize.pipeline import optimize
from dort_rewriter.optimize.rewriting import OptimizeReport
from dort_rewriter.runtime.kernel_query import kernel_query
from tests.optimize.rewrites import model_of

TEXT = """(float16[N] x, float[N] w) => (double[N] y, float[N] z) {
    a = Cast<to=1>(x)
    y = Cast<to=11>(a)
    b = Cast<to=10>(w)
    z = Cast<to=1>(b)
}"""


def _report(**options: object) -> OptimizeReport:
    chosen = OptimizationOptions(patterns="CastCast", **options)  # type: ignore[arg-type]
    return optimize(model_of(TEXT), chosen, has_kernel=kernel_query())


def test_matches_and_near_misses_are_counted() -> None:
    """With nodes, tries, time, and the reason of each refusal with an example."""
    report = _report()
    rule = report.rules["CastCast"]
    assert (rule.matches, rule.removed, rule.added) == (1, 2, 1)
    assert (report.nodes_before, report.nodes_after) == (4, 3)
    assert rule.tried >= 3
    assert list(rule.refusals) == ["the type between rounds"]
    assert rule.examples == {"the type between rounds": "FLOAT -> FLOAT16"}
    assert 0 < rule.seconds <= report.seconds


def test_a_report_is_json() -> None:
    """As scripts write it."""
    report = _report()
    stored = json.loads(json.dumps(report.to_dict()))
    assert stored["rules"]["CastCast"]["matches"] == report.rules["CastCast"].matches
    assert stored["rounds"] == report.rounds


@pytest.mark.parametrize(("verbose", "applied", "refused"), [(0, 0, 0), (1, 1, 0), (2, 1, 1)])
def test_verbose_logs_the_report(
    verbose: int, applied: int, refused: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Silent, what was done, what was refused too."""
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        _report(verbose=verbose)
    assert ("CastCast:" in caplog.text and " applied" in caplog.text) == applied
    assert ("refused" in caplog.text) == refused
