"""Every published name is on a page of the reference, once, and has a docstring."""

from __future__ import annotations

import inspect
import re

import pytest

import dort_rewriter
from tests.gates.sources import ROOT, parse

OPTIONS = ROOT / "docs" / "options.md"
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))


def names_on_pages() -> list[str]:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    return [n for t in texts for n in re.findall(r"^::: dort_rewriter\.(\w+)$", t, re.MULTILINE)]


def test_each_published_name_is_on_one_page() -> None:
    assert sorted(names_on_pages()) == sorted(dort_rewriter.__all__)


@pytest.mark.parametrize("name", [n for n in dort_rewriter.__all__ if n != "__version__"])
def test_each_published_name_says_what_it_does(name: str) -> None:
    """Functions that take something name each argument in their docstring."""
    value = getattr(dort_rewriter, name)
    text = inspect.getdoc(value)
    assert text
    if inspect.isclass(value):
        return
    own = list(inspect.signature(value).parameters)
    # The fields that ``settings`` of some backends stands for have their rows.
    listed = re.findall(r"^\| `(\w+)` \|", OPTIONS.read_text(encoding="utf-8"), re.MULTILINE)
    settings = set(listed) if "settings" in text else set()
    parts = [p for p in own if p not in settings and not re.search(rf"\b{p}\b", text)]
    assert parts == []


def test_the_extension_of_the_site_is_there() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    extensions = re.findall(r"- (scripts/\w+\.py)", text)
    assert extensions
    for name in extensions:
        assert parse(ROOT / name).body
