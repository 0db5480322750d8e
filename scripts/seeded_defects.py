"""Seed defects in the package and count how many of them the tests catch.

usage: python scripts/seeded_defects.py draw  --into DEFECTS.json [--seed N] [--count 200]
       python scripts/seeded_defects.py touch --of DEFECTS.json --into TOUCHES.json
       python scripts/seeded_defects.py judge --of DEFECTS.json --touches TOUCHES.json \\
           --into VERDICTS.json [--first "pytest options of the suite that runs first"]
       python scripts/seeded_defects.py report VERDICTS.json

``draw`` takes places of the source at random: an operator flipped, a condition negated, a constant
changed, a statement left out, a fourth each. ``touch`` runs all tests once, in a copy of the tree
that notes which test reaches which place. ``judge`` puts one defect at a time into another copy
and runs the tests that reach it until one fails: first those that the shorter suite collects,
then, where these pass, all others. So it says at once what each of the two suites catches, and
what was judged is kept: a second call goes on where the first one ended.

A defect at module level is reached by the tests that enter a function of its module.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "dort_rewriter"
SEED = 20261128
KINDS = ("operator", "condition", "constant", "statement")

NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
FLIPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

PROBE = """
import os
_seen = set()
def hit(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if test and (number, test) not in _seen:
        _seen.add((number, test))
        path = os.path.join(os.environ["SEEDED_HITS"], str(os.getpid()))
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{number} {test}\\n")
"""
HIT = '__import__("seeded_hits").hit'
JUDGED = ("-x", "-q", "-p", "no:cacheprovider", "--exhaustive")
"""How tests are run that were chosen: none of them is left out as by ``tests/sampling.py``."""


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A place in the source, in bytes of its file, and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    kind: str
    before: str
    after: str
    at_import: bool


class Places(ast.NodeVisitor):
    """All defects that one file could have."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file = file
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.found: list[Defect] = []
        self.depth = 0
        self.visit(ast.parse(source))

    def add(self, node: ast.expr | ast.stmt, kind: str, after: str) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        self.found.append(
            Defect(
                file=self.file,
                line=node.lineno,
                start=start,
                end=end,
                kind=kind,
                before=self.source[start:end].decode(),
                after=after,
                at_import=not self.depth,
            )
        )

    # What no test is to see: types, texts that are put together, patterns of `match`.
    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None: ...

    def visit_match_case(self, node: ast.match_case) -> None:
        for child in node.body:
            self.visit(child)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        defaults = [*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)]
        for value in [*defaults, *getattr(node, "decorator_list", [])]:
            self.visit(value)
        self.depth += 1
        for child in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(child)
        self.depth -= 1

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def _negate(self, test: ast.expr) -> None:
        self.add(test, "condition", f"(not ({ast.unparse(test)}))")

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1:
            flipped = ast.Compare(node.left, [NEGATED[type(node.ops[0])]()], node.comparators)
            self.add(node, "operator", f"({ast.unparse(flipped)})")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        flipped = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        self.add(node, "operator", f"({ast.unparse(flipped)})")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if (other := FLIPPED.get(type(node.op))) is not None:
            flipped = ast.BinOp(node.left, other(), node.right)
            self.add(node, "operator", f"({ast.unparse(flipped)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add(node, "constant", f"{not value}")
        elif isinstance(value, int | float):
            self.add(node, "constant", f"({value + 1!r})")
        elif isinstance(value, str) and re.fullmatch(r"[\w:.]+", value):
            self.add(node, "constant", repr(value + "_"))

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add(node, "statement", "pass")
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add(node, "statement", "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add(node, "statement", "pass")

    def visit_Return(self, node: ast.Return) -> None:
        self.add(node, "statement", "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add(node, "statement", "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets):
            self.add(node, "statement", "pass")
        self.generic_visit(node)


def draw(seed: int, count: int) -> list[Defect]:
    places: dict[str, list[Defect]] = defaultdict(list)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        for defect in Places(str(path.relative_to(ROOT)), path.read_bytes()).found:
            places[defect.kind].append(defect)
    chosen = random.Random(seed)
    share = count // len(KINDS)
    return [d for kind in KINDS for d in chosen.sample(places[kind], share)]


def probed(source: bytes, defects: list[tuple[int, Defect]]) -> bytes:
    """The source of one file that notes when one of ``defects`` is reached."""
    edits: list[tuple[int, int, bytes]] = []
    for number, defect in defects:
        call = f"{HIT}({number})"
        if defect.at_import:
            edits += [
                _before(source, node.body[_after_docstring(node)], call)
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.FunctionDef) and not _is_one_line(node)
            ]
        elif defect.kind == "statement":
            edits.append((defect.start, defect.start, f"{call}; ".encode()))
        else:
            edits.append((defect.start, defect.start, f"({call}, (".encode()))
            edits.append((defect.end, defect.end, b"))[1]"))
    for start, end, text in sorted(edits, key=lambda e: e[0], reverse=True):
        source = source[:start] + text + source[end:]
    return source


def _is_one_line(node: ast.FunctionDef) -> bool:
    return node.body[0].lineno == node.lineno


def _after_docstring(node: ast.FunctionDef) -> int:
    first = node.body[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return int(is_text and len(node.body) > 1)


def _before(source: bytes, node: ast.stmt, call: str) -> tuple[int, int, bytes]:
    line = node.lineno
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.decorator_list:
        line = node.decorator_list[0].lineno
    start = sum(len(text) for text in source.splitlines(keepends=True)[: line - 1])
    return start, start, b" " * node.col_offset + call.encode() + b"\n"


@contextlib.contextmanager
def copied_tree() -> Iterator[Path]:
    """A copy of the tree with what was compiled for it."""
    with tempfile.TemporaryDirectory(prefix="seeded-") as folder:
        copy = Path(folder) / "tree"
        left = shutil.ignore_patterns(".nox", ".git", "__pycache__", "site", "dist", "*.egg-info")
        shutil.copytree(ROOT, copy, ignore=left)
        subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
        subprocess.run(["git", "add", "."], cwd=copy, check=True)
        yield copy


def environment(copy: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(copy),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def touch(defects: list[Defect], options: list[str]) -> dict[str, Any]:
    by_file: dict[str, list[tuple[int, Defect]]] = defaultdict(list)
    for number, defect in enumerate(defects):
        by_file[defect.file].append((number, defect))
    with copied_tree() as copy:
        for name, those in by_file.items():
            path = copy / name
            path.write_bytes(probed(path.read_bytes(), those))
            ast.parse(path.read_bytes())
        (copy / "seeded_hits.py").write_text(PROBE)
        hits = copy.parent / "hits"
        hits.mkdir()
        report = copy.parent / "report.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--junitxml={report}", *options],
            cwd=copy,
            env={**environment(copy), "SEEDED_HITS": str(hits)},
            check=False,
        )
        reached: dict[int, set[str]] = defaultdict(set)
        for path in hits.iterdir():
            for line in path.read_text().splitlines():
                number, _, test = line.partition(" ")
                reached[int(number)].add(test)
        seconds, wrong = {}, set()
        for case in ElementTree.parse(report).iter("testcase"):
            key = f"{case.get('classname')}::{case.get('name')}"
            seconds[key] = float(case.get("time", 0))
            if any(e.tag in ("failure", "error", "skipped") for e in case):
                wrong.add(key)
    kept = {n: sorted(t for t in tests if _key(t) not in wrong) for n, tests in reached.items()}
    return {
        "reached": [kept.get(n, []) for n in range(len(defects))],
        "seconds": seconds,
        "not passed": sorted(wrong),
    }


def _key(test: str) -> str:
    """The name of a test in a report of JUnit."""
    file, _, rest = test.partition("::")
    function, bracket, parameters = rest.partition("[")  # which may have colons too
    *classes, name = function.split("::")
    where = ".".join([file.removesuffix(".py").replace("/", "."), *classes])
    return f"{where}::{name}{bracket}{parameters}"


def judge(defect: Defect, tests: list[list[str]], copy: Path, seconds: dict[str, float]) -> str:
    """Which of two lists of tests first has one that fails: "first", "second" or "none"."""
    path = copy / defect.file
    source = path.read_bytes()
    try:
        path.write_bytes(source[: defect.start] + defect.after.encode() + source[defect.end :])
        for name, chosen in zip(("first", "second"), tests, strict=True):
            if chosen and fails(chosen, copy, sum(seconds.get(_key(t), 1) for t in chosen)):
                return name
        return "none"
    finally:
        path.write_bytes(source)


def fails(tests: list[str], copy: Path, expected: float) -> bool:
    """Whether a test fails, the process dies, or it takes far longer than it did."""
    listed = copy.parent / "tests.txt"
    listed.write_text("\n".join(tests))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *JUDGED, f"@{listed}"],
        cwd=copy,
        env=environment(copy),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (12 << 30, 12 << 30)),
    )
    try:
        return process.wait(timeout=120 + 4 * expected) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def collected(copy: Path, options: list[str]) -> set[str]:
    """The tests that pytest finds."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *options],
        cwd=copy,
        env=environment(copy),
        capture_output=True,
        text=True,
        check=False,
    )
    return {line for line in done.stdout.splitlines() if "::" in line}


def quickest_first(tests: list[str], seconds: dict[str, float], near: str) -> list[str]:
    """The tests file by file: those of the defect's own folder, then files of short tests."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_file[test.partition("::")[0]].append(test)

    def mean(file: str) -> float:
        return sum(seconds.get(_key(t), 1) for t in by_file[file]) / len(by_file[file])

    folder = near.split("/")[1:2]

    def order(file: str) -> tuple[bool, float]:
        return file.split("/")[1:2] != folder, mean(file)

    return [t for file in sorted(by_file, key=order) for t in by_file[file]]


def report(verdicts: list[dict[str, Any]]) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        folder = "/".join(verdict["file"].split("/")[1:-1][:1]) or "."
        counts[folder][verdict["caught"]] += 1
        counts["all"][verdict["caught"]] += 1
    print(f"{'folder':<12} {'defects':>8} {'longer':>8} {'shorter':>8} {'of these':>9}")
    for folder, found in counts.items():
        longer = found["first"] + found["second"]
        share = f"{found['first'] / longer:.1%}" if longer else "-"
        print(f"{folder:<12} {found.total():>8} {longer:>8} {found['first']:>8} {share:>9}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("draw")
    one.add_argument("--seed", type=int, default=SEED)
    one.add_argument("--count", type=int, default=200)
    one.add_argument("--into", type=Path, required=True)
    two = commands.add_parser("touch")
    two.add_argument("--of", type=Path, required=True)
    two.add_argument("--into", type=Path, required=True)
    two.add_argument("options", nargs="*", help="options of pytest: the longer suite")
    three = commands.add_parser("judge")
    three.add_argument("--of", type=Path, required=True)
    three.add_argument("--touches", type=Path, required=True)
    three.add_argument("--into", type=Path, required=True)
    three.add_argument("--shorter", type=Path, help="a list of its tests, in place of options")
    three.add_argument("--part", default="0/1", help="every Nth defect from the Mth: M/N")
    three.add_argument("options", nargs="*", help="options of pytest: the shorter suite")
    four = commands.add_parser("report")
    four.add_argument("verdicts", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        defects = draw(arguments.seed, arguments.count)
        arguments.into.write_text(json.dumps([asdict(d) for d in defects], indent=1) + "\n")
        return 0
    if arguments.command == "report":
        report([v for path in arguments.verdicts for v in json.loads(path.read_text())])
        return 0
    defects = [Defect(**d) for d in json.loads(arguments.of.read_text())]
    if arguments.command == "touch":
        arguments.into.write_text(json.dumps(touch(defects, arguments.options)))
        return 0
    touches = json.loads(arguments.touches.read_text())
    first, step = map(int, arguments.part.split("/"))
    done = json.loads(arguments.into.read_text()) if arguments.into.exists() else []
    with copied_tree() as copy:
        if arguments.shorter is None:
            shorter = collected(copy, arguments.options)
        else:
            shorter = set(arguments.shorter.read_text().splitlines())
        seconds = touches["seconds"]
        expected = [sum(seconds.get(_key(t), 1) for t in r) for r in touches["reached"]]
        for number in sorted(range(len(defects)), key=expected.__getitem__)[first::step]:
            if any(v["number"] == number for v in done):
                continue
            start = time.monotonic()
            reached = quickest_first(touches["reached"][number], seconds, defects[number].file)
            parts = [
                [t for t in reached if t in shorter],
                [t for t in reached if t not in shorter],
            ]
            caught = judge(defects[number], parts, copy, seconds)
            sizes = [len(p) for p in parts]
            verdict = {"number": number, "file": defects[number].file, "caught": caught}
            verdict |= {"tests": sizes, "seconds": round(time.monotonic() - start, 1)}
            done.append(verdict)
            arguments.into.write_text(json.dumps(done, indent=1) + "\n")
            print(json.dumps(verdict), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
