"""Make the diffs of ``patches/`` from torch's own files, or check that they are what it makes.

    python scripts/make_patches.py FILE ...             # write the diffs of these files' series
    python scripts/make_patches.py --check FILE ...     # compare, write nothing
    python scripts/make_patches.py --download           # fetch the wheels: gigabytes

A FILE is ``torch/onnx/_internal/onnxruntime.py`` of an installed or unpacked torch 2.3 to 2.8, as
it was shipped. The diffs hold our lines and nothing else.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dort_rewriter.hook import diffs, sources, versions  # noqa: E402

METHODS = {
    "__call__": """\
        if os.environ.get("ONNXRT_CHANGE_REWRITER") == "1":
            from dort_rewriter.backends import onnxrt as rewriter

            return rewriter.call_backend(self, graph_module, args)

""",
    "compile": """\
        if os.environ.get("ONNXRT_CHANGE_REWRITER") == "1":
            from dort_rewriter.backends import onnxrt as rewriter

            return rewriter.compile_graph(self, graph_module, args)

""",
    "_ort_acclerated_call": """\
        import sys

        rewriter = sys.modules.get("dort_rewriter.backends.onnxrt")
        if os.environ.get("ONNXRT_CHANGE_REWRITER") == "1" or (
            rewriter is not None and rewriter.serves(self, graph_module)
        ):
            from dort_rewriter.backends import onnxrt as rewriter

            return rewriter.accelerated_call(self, graph_module, *args, **kwargs)

""",
    "get_cached_instance_for_options": """\
        if os.environ.get("ONNXRT_CHANGE_REWRITER") == "1":
            from dort_rewriter.backends import onnxrt as rewriter

            return rewriter.instance_of_torch(OrtBackend, options)

""",
    "clear_cached_instances": """\
        import sys

        rewriter = sys.modules.get("dort_rewriter.backends.onnxrt")
        if rewriter is not None:
            rewriter.clear_instances(OrtBackend)

""",
    "get_cached_instances": """\
        import sys

        rewriter = sys.modules.get("dort_rewriter.backends.onnxrt")
        if rewriter is not None:
            kept = rewriter.instances_of(OrtBackend)
            return (*OrtBackend.__instance_cache, *kept)

""",
}
"""What goes to the top of each method of ``OrtBackend``, under its docstring."""


def first_line(method: ast.FunctionDef) -> int:
    """The line after which a method's code starts: its docstring's, or its signature's."""
    first = method.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        assert first.end_lineno is not None
        return first.end_lineno
    if method.returns is None and not method.args.args:
        return method.lineno
    after = method.returns or method.args.args[-1]
    assert after.end_lineno is not None
    return after.end_lineno


def make_diff(source: str) -> str:
    """The diff for torch's file."""
    backend = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "OrtBackend"
    )
    methods = {node.name: node for node in backend.body if isinstance(node, ast.FunctionDef)}
    additions = [
        diffs.Addition(
            after=first_line(methods[name]), lines=tuple(lines.splitlines(keepends=True))
        )
        for name, lines in METHODS.items()
    ]
    path = f"torch/{versions.BACKEND_FILE}"
    return diffs.render(path, sorted(additions, key=lambda addition: addition.after))


def process(path: Path, *, check: bool) -> dict[str, str]:
    """Write or compare the diffs of the series that ship this file; say what was found."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    series = [name for name, known in versions.PRISTINE.items() if known == digest]
    if not series:
        raise SystemExit(f"{path} ({digest}) is not a file that hook/versions.py knows.")
    wanted = make_diff(content.decode())
    results = {}
    for name in series:
        target = sources.diff_of(name)
        same = target.exists() and target.read_text(encoding="utf-8") == wanted
        if not same and not check:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(wanted, encoding="utf-8")
        results[name] = "as made" if same else "differs" if check else "written"
    return results


def downloaded_files(folder: Path) -> Iterable[Path]:
    """Fetch a wheel of each series from the package index and keep the one file of it."""
    for series in versions.PRISTINE:
        place = folder / series
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version=3.11", f"--dest={place}"]
        subprocess.run([*command, f"torch=={series}.*"], check=True)
        wheel = next(place.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            yield Path(archive.extract(f"torch/{versions.BACKEND_FILE}", place))
        wheel.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--download", action="store_true", help="fetch the wheels of all series")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file")
    args = parser.parse_args()
    if not args.files and not args.download:
        parser.error("name files, or --download")
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        fetched = downloaded_files(Path(folder)) if args.download else ()
        for path in (*args.files, *fetched):
            results.update(process(path, check=args.check))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for series, result in results.items():
        print(f"torch {series}: {result}")
    return int("differs" in results.values())


if __name__ == "__main__":
    sys.exit(main())
