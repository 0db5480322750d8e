"""Write the pages of ``docs/`` that say what the code says: options, variables, versions, defects
of torch; and what runs of the zoo found.

usage: python scripts/make_docs.py [--check]

``--check`` writes nothing and ends with 1 if a page is not current. Only the standard library and
the package are needed.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# A test loads this file by its path: its folder is not known there.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from exporter_figures import page as exporters_page
from reliability import page
from training_figures import section as training_figures

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Written by scripts/make_docs.py. -->"
END = "<!-- End of what scripts/make_docs.py wrote. -->"


def options_page() -> str:
    """A section for each dataclass of options, read without being imported."""
    # What users meet first comes first; in a file, what is used must come before its user.
    classes = [
        node
        for name in ("options.py", "backends/arguments.py", "backends/debug.py")
        for node in reversed(ast.parse((ROOT / "dort_rewriter" / name).read_text("utf-8")).body)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Options")
    ]
    sections = [section(node) for node in classes]
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
        annotation = words_of(ast.unparse(field.annotation)).replace(" | ", " or ")
        text = to_markdown(" ".join(str(after.value.value).split()))
        yield field.target.id, f"`{annotation}`, `{default}`", text


def words_of(annotation: str) -> str:
    """An annotation with the words of a type instead of its name."""
    from dort_rewriter import options

    for name in ("OptimizationLevel",):
        annotation = annotation.replace(name, str(getattr(options, name)).removeprefix("typing."))
    return annotation


def to_markdown(text: str) -> str:
    return text.replace("``", "`")


def environment_page() -> str:
    from dort_rewriter.env import VARIABLES

    rows = []
    for name, variable in VARIABLES.items():
        default = f"`{variable.default}`" if variable.default else "not set"
        # Within a table a placeholder such as <prefix> would be taken for HTML.
        meaning = variable.meaning.replace("<", "&lt;").replace(">", "&gt;")
        rows.append(f"| `{name}` | {default} | {meaning} |")
    head = "| variable | default | meaning |\n| --- | --- | --- |"
    introduction = "All the variables that the package reads."
    table = "\n".join([head, *rows])
    return "\n\n".join([NOTE, "# Environment variables", introduction, table]) + "\n"


def versions_page() -> str:
    """Which versions work, and which are tested: what the sessions of nox install."""
    noxfile = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    sessions = [n for n in noxfile.body if isinstance(n, ast.FunctionDef)]
    (main,) = (s for s in sessions if s.name == "tests")  # it starts the others
    started = {n.value for n in ast.walk(main) if isinstance(n, ast.Constant)}
    rows = [
        f"| `{name_of(s)}` | {'always' if name_of(s) in started else 'on demand'} | {cells} |"
        for s in sessions
        for cells in tested(s, constants(noxfile))
    ]
    head = "| session | runs | Python | torch | onnxruntime | what it says |"
    tests = "\n".join([head, "| --- " * 6 + "|", *rows])
    parts = [NOTE, "# Supported versions", requirements(), series_table(), PYTHONS, SYSTEMS]
    parts += [TESTED, tests]
    return "\n\n".join(parts) + "\n"


PYTHONS = """## Python

| Python | what you get |
| --- | --- |
| 3.10 | onnxruntime 1.23.2 is the last with wheels for it: pip takes that one by \
itself. onnxruntime-training has wheels |
| 3.11 | all of it: both stacks are tested with this version |
| 3.12, 3.13, 3.14 | the newest onnxruntime; onnxruntime-training has no wheels. 3.14 is tested \
on demand, with torch 2.13.0 and onnxruntime 1.32.0 (`nox -s tests-python`) |
| 3.14, free-threaded | the same, for threads that run at once; safetensors has no wheels, which \
`export_training_step` wants; torch's own check of `fullgraph=True` fails now and then ("found no \
compiled frames", with `backend="eager"` too) where threads call one compiled function at once. \
Tested on demand (`nox -s tests-free-threaded`) |"""

SYSTEMS = """## Systems

| system | tested | kernels of this package |
| --- | --- | --- |
| Linux, x86-64 | yes | compiled by `c++` (GCC or Clang), or by what `CXX` names |
| Linux, other processors | no; expected to work | the same, for one level |
| macOS | no; expected to work | `c++` of the command line tools of Xcode |
| Windows | no; expected to work, without the kernels | none: the sources need vectors and \
functions that MSVC does not have |

Without the kernels no rule is applied that needs one; a warning says so once,
and `dort-rewriter doctor` says why."""

TESTED = """## What is tested

Each row is a session of nox, with the versions that it installs. Continuous integration
(`.ci/run`) runs those marked `always`; the others run on demand, `nox -s tests-latest`."""


def requirements() -> str:
    """The lowest versions, out of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = dict(re.findall(r'"(torch|onnx|onnxscript|onnx-ir|onnxruntime[\w-]*)>=([\d.]+)', text))
    python = re.search(r'requires-python = ">=([\d.]+)"', text)
    assert python is not None
    lowest = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    return f"The lowest versions: Python {python[1]}, {lowest}. No version has an upper bound."


def series_table() -> str:
    from dort_rewriter.hook.versions import OLDEST, PRISTINE, REMOVED_IN

    oldest, removed = (".".join(map(str, series)) for series in (OLDEST, REMOVED_IN))
    last = list(PRISTINE)[-1]
    return f"""| torch | `backend="onnxrt"` |
| --- | --- |
| {oldest} to {last} | torch's own class, lent by the hook while `ONNXRT_CHANGE_REWRITER=1`; \
`dort-rewriter patch` knows its file in {", ".join(PRISTINE)} |
| {removed} and newer | found by its name; the old import paths are back |""".replace("\\\n", "")


def constants(noxfile: ast.Module) -> dict[str, Any]:
    """The literals that have a name: the pins of each stack, versions of Python."""
    return {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in noxfile.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant | ast.Tuple)
    }


def name_of(session: ast.FunctionDef) -> str:
    named = re.search(r"name='([\w-]+)'", " ".join(map(ast.unparse, session.decorator_list)))
    return named[1] if named else session.name


def tested(session: ast.FunctionDef, known: dict[str, Any]) -> Iterator[str]:
    """Yield the cells of a session that runs tests: Python, torch, onnxruntime, its docstring."""
    for call in ast.walk(session):
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "install":
            continue
        extras = str(ast.literal_eval(call.args[1])).split(",")
        names = [ast.unparse(a.value) for a in call.args[2:] if isinstance(a, ast.Starred)]
        pins = [pin for name in names for pin in known.get(name, ())]
        if "test" not in extras and not any(pin.startswith("pytest") for pin in pins):
            continue
        wanted = re.search(r"\bpython=(\w+)", " ".join(map(ast.unparse, session.decorator_list)))
        runtime = {"cpu": "onnxruntime", "training": "onnxruntime-training"}[extras[0]]
        yield " | ".join(
            [
                known[wanted[1]] if wanted else "any",
                version_of("torch", pins),
                f"{runtime} {version_of(runtime, pins)}",
                ast.get_docstring(session) or "",
            ]
        )


def version_of(name: str, pins: list[str]) -> str:
    for pin in pins:
        if pin.startswith(f"{name}=="):
            return pin.partition("==")[2]
        if pin.startswith(f"{name}>="):
            return f"{pin.partition('>=')[2]} or newer"
    return "(the newest)"


DEFECTS = """torch answers wrongly in these places, whichever backend compiles through AOTAutograd:
`aot_eager` shows each. This package repairs or refuses them. `dort_rewriter/torch_defects/` has a
file for each, with a probe that says whether the torch that is installed still has it, and
`reports/`, texts that could be filed upstream for what has no thread. What is changed in torch
itself is changed while a graph is traced, and another thread that compiles with another backend
meanwhile sees torch as it is; where that does not hold, it is said.

Resizing operators are traced whole, which is faster and no defect: their decompositions are put
aside while a graph is traced, for the whole process."""


def defects_page() -> str:
    """A section for each record of ``torch_defects/``, read without being imported."""
    folder = ROOT / "dort_rewriter" / "torch_defects"
    found = [(path.stem, defect_of(path)) for path in sorted(folder.glob("*.py"))]
    sections = [section_of(name, known) for name, known in found if known]
    return "\n\n".join([NOTE, "# Defects of torch", DEFECTS, *sections]) + "\n"


def defect_of(path: Path) -> dict[str, Any]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEFECT":
            assert isinstance(node.value, ast.Call)
            return {str(k.arg): ast.literal_eval(k.value) for k in node.value.keywords}
    return {}


def section_of(name: str, known: dict[str, Any]) -> str:
    return f"""## `{name}`

- **Where**: {known["operators"]}
- **What differs**: {known["effect"]}
- **Seen in**: torch {", ".join(known["seen_in"])}
- **Here**: {known["remedy"]}.
- **Upstream**: {known["upstream"]}"""


def with_block(path: Path, text: str) -> str:
    """A page that is written by hand, but for what stands between its two marks."""
    before, first, rest = path.read_text(encoding="utf-8").partition(f"{NOTE}\n")
    _, last, after = rest.partition(f"{END}\n")
    assert first, f"{path} has no {NOTE}"
    assert last, f"{path} has no {END}"
    return f"{before}{first}\n{text}\n\n{last}{after}"


def pages() -> dict[Path, str]:
    docs = ROOT / "docs"
    return {
        docs / "options.md": options_page(),
        docs / "environment.md": environment_page(),
        docs / "versions.md": versions_page(),
        docs / "torch_defects.md": defects_page(),
        docs / "reliability.md": page(NOTE),
        docs / "exporters.md": exporters_page(NOTE),
        docs / "training_files.md": with_block(docs / "training_files.md", training_figures()),
    }


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
