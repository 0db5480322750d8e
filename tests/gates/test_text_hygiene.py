"""What must not be written: each test names the offending lines."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gates.sources import PACKAGE, ROOT, nodes, place, python_files

CODE = [*python_files("dort_rewriter", "scripts", "tests"), ROOT / "noxfile.py"]
TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".diff", ".patch", ".sh", ".json"}
TEXT_FOLDERS = (".ci", "docs", "dort_rewriter", "patches", "scripts", "tests")

POSTPONED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
MACHINE_PATH = re.compile(r"(?<![\w.}])/(?:work|root|home|Users|opt)/\w")
BROAD = {"Exception", "BaseException"}


def text_files() -> Iterator[Path]:
    """Yield every file that a person wrote, at the top and in our folders."""
    yield from (path for path in ROOT.iterdir() if path.suffix in TEXT_SUFFIXES)
    for folder in TEXT_FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and (path.suffix in TEXT_SUFFIXES or folder == ".ci"):
                yield path


def comments(source: str) -> dict[int, str]:
    """The comments of a Python source by line, without the orders given to tools."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    words = {line: re.sub(r"#\s*(noqa|type:|pragma)[^#]*|#", "", c) for line, c in found.items()}
    return {line: text.strip() for line, text in words.items() if text.strip()}


def unjustified_handlers(source: str) -> list[int]:
    """The lines of broad ``except`` clauses with no comment on them or just below."""
    said = comments(source)
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or BROAD & set(re.findall(r"\w+", ast.unparse(node.type))))
        and not {node.lineno, node.lineno + 1} & said.keys()
    ]


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in {"environ", "getenv", "putenv"} for alias in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) in {
        "os.environ",
        "os.environb",
        "os.getenv",
        "os.putenv",
    }


def is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in {"print", "pprint"}


def test_postponed_work_has_an_issue() -> None:
    offenders = [
        f"{place(path, line)}: {text}"
        for path in CODE
        for line, text in comments(path.read_text(encoding="utf-8")).items()
        if POSTPONED.search(text)
    ]
    assert offenders == []


def test_only_tools_print() -> None:
    offenders = [
        place(path, node.lineno)  # type: ignore[attr-defined]
        for path in python_files("dort_rewriter")
        if not path.is_relative_to(PACKAGE / "tools")
        for node in nodes(path)
        if is_print(node)
    ]
    assert offenders == []


def test_only_env_reads_the_environment() -> None:
    offenders = [
        place(path, node.lineno)  # type: ignore[attr-defined]
        for path in python_files("dort_rewriter")
        if path != PACKAGE / "env.py"
        for node in nodes(path)
        if reads_environment(node)
    ]
    assert offenders == []


def test_broad_handlers_are_justified() -> None:
    offenders = [
        place(path, line)
        for path in CODE
        for line in unjustified_handlers(path.read_text(encoding="utf-8"))
    ]
    assert offenders == []


def test_no_file_names_a_place_of_one_machine() -> None:
    offenders = [
        f"{place(path, number)}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert offenders == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("try: f()\nexcept Exception:\n    pass", [2]),
        ("try: f()\nexcept:\n    pass", [2]),
        ("try: f()\nexcept (ValueError, Exception) as e:\n    pass", [2]),
        ("try: f()\nexcept Exception:  # noqa: BLE001\n    pass", [2]),
        (
            "try: f()\nexcept Exception:  # noqa: BLE001  # a plugin may raise anything\n    pass",
            [],
        ),
        ("try: f()\nexcept Exception:\n    # A plugin may raise anything.\n    pass", []),
        ("try: f()\nexcept ValueError:\n    pass", []),
    ],
)
def test_the_gate_sees_broad_handlers(source: str, lines: list[int]) -> None:
    assert unjustified_handlers(source) == lines


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("os.environ['A']", True), ("os.getenv('A')", True), ("os.path.join('A')", False)],
)
def test_the_gate_sees_the_environment(expression: str, expected: bool) -> None:
    assert any(reads_environment(node) for node in ast.walk(ast.parse(expression))) is expected


def test_the_gate_sees_postponed_work_and_machine_paths() -> None:
    assert POSTPONED.search("TODO later")
    assert not POSTPONED.search("TODO(#12): later")
    assert MACHINE_PATH.search('"' + "/home" + '/someone"')
    assert not MACHINE_PATH.search("docs/work/notes")
