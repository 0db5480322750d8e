"""Diffs without context: written, read, applied and reverted to the same text."""

from __future__ import annotations

import pytest

from dort_rewriter.errors import HookError
from dort_rewriter.hook import diffs
from dort_rewriter.hook.diffs import Addition

SOURCE = "a\nb\nc\n"
ADDITIONS = [
    Addition(after=0, lines=("first\n",)),
    Addition(after=2, lines=("x\n", "\n")),
    Addition(after=3, lines=("last\n",)),
]
PATCHED = "first\na\nb\nx\n\nc\nlast\n"
DIFF = """\
--- a/f.py
+++ b/f.py
@@ -0,0 +1,1 @@
+first
@@ -2,0 +4,2 @@
+x
+
@@ -3,0 +7,1 @@
+last
"""


def test_written_and_read() -> None:
    assert diffs.render("f.py", ADDITIONS) == DIFF
    assert diffs.parse(DIFF) == ADDITIONS


def test_a_single_line_may_have_no_count() -> None:
    assert diffs.parse("@@ -2,0 +3 @@\n+x\n") == [Addition(after=2, lines=("x\n",))]


def test_applied_and_reverted() -> None:
    assert diffs.apply(ADDITIONS, SOURCE) == PATCHED
    assert diffs.revert(ADDITIONS, PATCHED) == SOURCE


@pytest.mark.parametrize(
    "text",
    [SOURCE, PATCHED.replace("x\n", "y\n"), PATCHED.replace("a\n", "a\na\n"), "first\n", ""],
)
def test_other_content_is_not_reverted(text: str) -> None:
    assert diffs.revert(ADDITIONS, text) is None


@pytest.mark.parametrize(
    ("diff", "message"),
    [
        ("@@ -1,1 +1,1 @@\n-a\n+b\n", "Line 1"),
        ("@@ -1,0 +2,2 @@\n+a\n b\n", "takes lines away or is cut"),
        ("@@ -1,0 +2,2 @@\n+a\n", "takes lines away or is cut"),
        ("@@ -1,0 +2,1 @@\n+a\n+b\n", "Line 3"),
        ("nonsense\n", "Line 1"),
    ],
)
def test_a_diff_that_does_more_is_refused(diff: str, message: str) -> None:
    with pytest.raises(HookError, match=message):
        diffs.parse(diff)


def test_a_file_that_is_too_short_is_refused() -> None:
    with pytest.raises(HookError, match="has 1 lines"):
        diffs.apply(ADDITIONS, "a\n")
