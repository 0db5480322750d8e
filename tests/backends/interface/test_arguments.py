"""What the arguments of the published functions become."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from dort_rewriter.backends.arguments import level_name, log_as_asked, select_patterns
from dort_rewriter.errors import OptionError

LOGGER = logging.getLogger("dort_rewriter")


@pytest.mark.parametrize(
    ("enabled", "disabled", "expected"),
    [
        ("default", None, "default"),
        (None, "CastCast", None),
        ("default+onnxruntime", "CastCast+Identity", "default+onnxruntime-CastCast-Identity"),
        ("default", ["CastCast"], "default-CastCast"),
        (["CastCast", "Identity"], "CastCast", ["CastCast", "Identity", "-CastCast"]),
    ],
)
def test_rules_are_one_selection(enabled: object, disabled: object, expected: object) -> None:
    assert select_patterns(enabled, disabled) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"), [(None, None), ("ORT_ENABLE_LAYOUT", "layout"), ("layout", "layout")]
)
def test_levels_have_two_names(given: str | None, expected: str | None) -> None:
    assert level_name(given) == expected


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(OptionError, match="'most'"):
        level_name("most")


@pytest.mark.parametrize(
    ("verbose", "level"), [(0, logging.ERROR), (1, logging.INFO), (3, logging.DEBUG)]
)
def test_verbosity_is_the_level_of_the_package(
    verbose: int, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = LOGGER.level
    LOGGER.setLevel(logging.ERROR)
    try:
        log_as_asked(verbose)
        assert LOGGER.level == level
    finally:
        LOGGER.setLevel(before)


@pytest.mark.load_sensitive
def test_a_program_without_logging_sees_the_lines() -> None:
    program = (
        "import logging\n"
        "from dort_rewriter.backends.arguments import log_as_asked\n"
        "log_as_asked(1)\nlog_as_asked(1)\n"
        "assert len(logging.getLogger('dort_rewriter').handlers) <= 1\n"
        "logging.getLogger('dort_rewriter.any').info('a line')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a line") == 1
