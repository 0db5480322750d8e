from __future__ import annotations

import logging

import pytest
import torch

from dort_rewriter import OptionError, get_pattern_list, make_aot_ort
from dort_rewriter.compiler.block import _few


def test_a_pair_of_the_same_backend_that_trains() -> None:
    torch._dynamo.reset()
    backend, same = make_aot_ort(dynamic=True, rewrite=True, verbose=0)
    assert backend is same
    model = torch.nn.Linear(3, 2)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    x = torch.randn(4, 3)
    compiled(x).sum().backward()
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    assert len(got) == 2
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_without_rewriting_the_model_is_as_exported() -> None:
    assert make_aot_ort(rewrite=False)[0]._options.optimization.patterns is None
    assert make_aot_ort(rewrite=False)[0]._options.optimization.remove_unused is False


def test_left_out_rules_are_written_into_the_selection() -> None:
    backend, _ = make_aot_ort(enable_pattern="default", disable_pattern="CastCast,Identity")
    assert backend._options.optimization.patterns == "default-CastCast-Identity"


def test_rules_are_left_out_of_a_list_of_sets_and_instances() -> None:
    for enabled in (["default"], get_pattern_list("default")):
        backend, _ = make_aot_ort(enable_pattern=enabled, disable_pattern=["CastCast"])
        chosen = get_pattern_list(backend._options.optimization.patterns)
        assert {r.name for r in get_pattern_list("default")} - {r.name for r in chosen} == {
            "CastCast"
        }


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "disable"])
def test_levels_have_two_names(level: str) -> None:
    backend, _ = make_aot_ort(ort_optimization_level=level)
    assert backend._options.ort_optimization_level == "disable"
    with pytest.raises(OptionError, match=r"not 'most'"):
        make_aot_ort(ort_optimization_level="most")


def test_the_log_says_what_runs_in_onnxruntime(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    backend, _ = make_aot_ort()
    with caplog.at_level(logging.INFO, logger="dort_rewriter"), torch.no_grad():
        torch.compile(torch.nn.Linear(3, 2), backend=backend)(torch.randn(4, 3))
    (line,) = (r.getMessage() for r in caplog.records if "is a model of" in r.getMessage())
    assert "on CPUExecutionProvider, inputs ['input" in line


def test_the_log_does_not_list_hundreds_of_names() -> None:
    assert _few(["a", "b"]) == "['a', 'b']"
    assert _few([str(i) for i in range(600)]).endswith("'7', ... 600 in all]")
