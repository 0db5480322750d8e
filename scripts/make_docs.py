"""Write the pages of ``docs/`` that say what the code says: options, environment variables.

usage: python scripts/make_docs.py [--check]

``--check`` writes nothing and ends with 1 if a page is not current. Only the standard library and
the package are needed.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Written by scripts/make_docs.py. -->"


def options_page() -> str:
    """Return a section for each dataclass of ``options.py``, read without being imported."""
    source = (ROOT / "dort_rewriter" / "options.py").read_text(encoding="utf-8")
    classes = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options")
    ]
    # What users meet first comes first; in the file, what is used must come before its user.
    sections = [section(node) for node in reversed(classes)]
    introduction = (
        "Frozen dataclasses of `dort_rewriter`, with keyword arguments only. Wherever one is "
        "expected, a mapping with the same keys will do; an unknown key is refused with the "
        "closest known one."
    )
    return "\n\n".join([NOTE, "# Options", introduction, *sections]) + "\n"


def section(node: ast.ClassDef) -> str:
    rows = [f"| `{name}` | {kind} | {text} |" for name, kind, text in fields(node)]
    head = "| option | type and default | meaning |\n| --- | --- | --- |"
    return "\n\n".join(
        [f"## {node.name}", to_markdown(ast.get_docstring(node) or ""), "\n".join([head, *rows])]
    )


def fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the type with the default, and the text after each field."""
    for field, after in zip(node.body, node.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        assert isinstance(after, ast.Expr)
        assert isinstance(after.value, ast.Constant)
        default = "" if field.value is None else ast.unparse(field.value)
        if default.startswith("dataclasses.field"):
            default = default.partition("default_factory=")[2].rstrip(")") + "()"
        # Readers of Markdown disagree on bars within code in tables.
        annotation = ast.unparse(field.annotation).replace(" | ", " or ")
        text = to_markdown(" ".join(str(after.value.value).split()))
        yield field.target.id, f"`{annotation}`, `{default}`", text


def to_markdown(text: str) -> str:
    return text.replace("``", "`")


def environment_page() -> str:
    from dort_rewriter.env import VARIABLES

    rows = []
    for variable in VARIABLES.values():
        default = f"`{variable.default}`" if variable.default else "not set"
        # Within a table a placeholder such as <prefix> would be taken for HTML.
        meaning = variable.meaning.replace("<", "&lt;").replace(">", "&gt;")
        rows.append(f"| `{variable.name}` | {default} | {meaning} |")
    head = "| variable | default | meaning |\n| --- | --- | --- |"
    introduction = "All the variables that the package reads."
    table = "\n".join([head, *rows])
    return "\n\n".join([NOTE, "# Environment variables", introduction, table]) + "\n"


def pages() -> dict[Path, str]:
    docs = ROOT / "docs"
    return {docs / "options.md": options_page(), docs / "environment.md": environment_page()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    old = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in old:
        print(f"{path.relative_to(ROOT)}: {'not current' if options.check else 'written'}")
        if not options.check:
            path.write_text(pages()[path], encoding="utf-8")
    return int(options.check and bool(old))


if __name__ == "__main__":
    sys.exit(main())
