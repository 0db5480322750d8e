"""The documentation is true: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import dort_rewriter
from dort_rewriter import env
from dort_rewriter.tools.cli import COMMANDS
from tests.gates.sources import PACKAGE, ROOT, nodes
from tests.gates.test_readme import nox_sessions

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[Any]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                place = f"{page.relative_to(ROOT).as_posix()}:{line}"
                found.append(pytest.param(match[2], id=place))
    return found


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a block in an empty folder, with the rewriter on, which older torch needs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONNXRT_CHANGE_REWRITER", "1")
    torch._dynamo.reset()
    yield
    dort_rewriter.install()  # a block may have taken it back
    torch._dynamo.reset()


@pytest.mark.alternating
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("block", blocks("python"))
def test_each_block_of_python_runs_on_its_own(block: str) -> None:
    exec(compile(block, "<documentation>", "exec"), {"__name__": "__main__"})


@pytest.mark.usefixtures("fresh")
def test_the_line_of_log_is_as_quoted(caplog: pytest.LogCaptureFixture) -> None:
    """What Troubleshooting says that its first block logs."""
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    (block,) = [m[2] for m in FENCE.finditer(text) if "logging.basicConfig()" in m[2]]
    (quoted,) = re.findall(r"`(A graph of \d+ nodes is a model of \d+ on \w+)", text)
    level = logging.getLogger("dort_rewriter").level
    try:
        exec(compile(block, "<documentation>", "exec"), {"__name__": "__main__"})
    finally:
        logging.getLogger("dort_rewriter").setLevel(level)
    assert quoted in caplog.text


@pytest.mark.parametrize("block", blocks("bash"))
def test_each_command_exists(block: str) -> None:
    for command in re.findall(r"^dort-rewriter (\w+)", block, flags=re.MULTILINE):
        assert command in COMMANDS
    for session in re.findall(r"nox -s ([\w-]+)", block):
        assert session in nox_sessions()
    for name in re.findall(r"^export (\w+)", block, flags=re.MULTILINE):
        assert name in env.VARIABLES
    for script in re.findall(r"python ((?:scripts|tests)/\S+)", block):
        assert (ROOT / script).exists()


def test_blocks_have_a_language() -> None:
    assert [str(block.id) for block in blocks("")] == []


def test_no_variable_is_declared_twice() -> None:
    (declared,) = (
        [ast.literal_eval(key) for key in node.value.keys if key is not None]
        for node in nodes(PACKAGE / "env.py")
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    )
    assert declared == list(env.VARIABLES)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name) if name else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_is_in_the_navigation() -> None:
    # Without a YAML reader: each entry of the navigation ends with the name of its page.
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"^ +- .*?([\w/]+\.md)$", text, flags=re.MULTILINE)
    assert sorted(listed) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def test_each_folder_has_a_page_that_names_its_files() -> None:
    folders = {path.parent for path in PACKAGE.glob("*/__init__.py")}
    assert {f.name for f in folders} == {p.stem for p in (DOCS / "how_it_works").glob("*.md")}
    for folder in folders:
        text = (DOCS / "how_it_works" / f"{folder.name}.md").read_text(encoding="utf-8")
        listed = re.findall(r"`([\w/]+\.py|\w+/)`", text)
        missing = [
            name
            for name in listed
            if not any((place / name).exists() for place in (folder, PACKAGE, ROOT))
        ]
        assert missing == [], folder.name


def test_messages_of_troubleshooting_are_in_the_code() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    modules = [ROOT / "dort_rewriter_autoload.py", *PACKAGE.rglob("*.py")]
    said = [literal for path in modules for literal in literals(path)]
    titles = re.findall(r"^## `(.+)`$", text, flags=re.MULTILINE)
    assert len(titles) > 5
    headers = (PACKAGE / "kernels" / "cpp").rglob("*.h")
    said += [path.read_text(encoding="utf-8") for path in headers]
    said += ["Support for dynamo_export has been dropped"]  # of onnxscript
    # Of torch.
    said += ["Metric(s) {'is_forward'} have already been set in the current context"]
    unknown = [t for t in titles if not any(t in s for s in said)]
    assert unknown == []


def literals(path: Path) -> Iterator[str]:
    """Yield the texts of a module, f-strings with a gap where they have a value."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else " " for v in node.values)
