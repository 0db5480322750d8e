"""Selections of rules: strings, lists, classes and instances."""

from __future__ import annotations

from typing import Any

import pytest

from dort_rewriter import OptionError, get_pattern_list
from dort_rewriter.optimize.patterns.standard.arithmetic import CastCast
from dort_rewriter.optimize.pipeline import RETIRED, SETS, asks_for_kernels


def _names(*args: object) -> list[str]:
    return [p.name for p in get_pattern_list(*args)]  # type: ignore[arg-type]


def test_a_set_is_named() -> None:
    """With what is in it, in its order."""
    assert _names("default") == [kind.__name__ for kind in SETS["default"]]
    assert _names("default+onnxruntime") == [
        kind.__name__ for name in ("default", "onnxruntime") for kind in SETS[name]
    ]


def test_a_rule_is_left_out() -> None:
    """By name, in the string or beside it."""
    everything = _names("default")
    assert "CastCast" in everything
    rest = [n for n in everything if n != "CastCast"]
    assert _names("default-CastCast") == rest
    assert _names("default", "CastCast") == rest
    assert _names("default", ["CastCast"]) == rest


def test_rules_are_listed() -> None:
    """Names, classes and instances, each once."""
    rule = CastCast()
    assert get_pattern_list([rule, CastCast, "CastCast"]) == [rule]
    assert _names(["Identity", CastCast]) == ["Identity", "CastCast"]
    assert _names(CastCast) == ["CastCast"]
    assert _names(None) == []


@pytest.mark.parametrize("wrong", ["defautl", "default+CastCats", ["Nothing"]])
def test_an_unknown_name_is_an_error(wrong: object) -> None:
    """It names the closest one."""
    with pytest.raises(OptionError, match="Unknown pattern"):
        get_pattern_list(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["default++CastCast", "a b;c", 3])
def test_what_is_no_selection_is_an_error(wrong: object) -> None:
    """It says what one looks like."""
    with pytest.raises(OptionError):
        get_pattern_list(wrong)  # type: ignore[arg-type]


def test_each_name_is_used_once() -> None:
    """Reports and selections go by name. A rule may be in two sets."""
    names = [kind.__name__ for kind in {kind for kinds in SETS.values() for kind in kinds}]
    assert len(names) == len(set(names))
    assert not set(names) & set(SETS)


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ("default+onnxruntime+kernels", True),
        ("default+onnxruntime+experimental", True),
        (["default", "kernels"], True),
        ("default+kernels-experimental", False),
        ("default+kernels-Sums", True),
        ("default+Sums", False),
        ("default+onnxruntime", False),
        (None, False),
    ],
)
def test_whether_the_exporter_writes_own_operators(patterns: Any, wanted: bool) -> None:
    """The set says it, under either of its names: its rules one by one do not."""
    assert asks_for_kernels(patterns) == wanted


def test_experimental_is_another_name_of_kernels() -> None:
    names = [[r.name for r in get_pattern_list(s)] for s in ("kernels", "experimental")]
    assert names[0] == names[1]


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_published_name_that_is_gone_does_nothing(name: str) -> None:
    assert _names(f"default+{name}") == _names("default")
    assert _names(f"default-{name}") == _names("default")
    assert name not in {kind.__name__ for kinds in SETS.values() for kind in kinds}
