"""A file of torch is patched as a whole or not at all, and restored to the byte."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from dort_rewriter import files
from dort_rewriter.errors import HookError
from dort_rewriter.hook import sources, versions
from dort_rewriter.tools.cli import main
from tests.gates.sources import ROOT
from tests.hook.conftest import HAS_ORT_BACKEND, Program

SHIPPED = 'class OrtBackend:\n    def compile(self):\n        return "torch"\n'
HEAD = "--- a/f.py\n+++ b/f.py\n"
DIFF = f"{HEAD}@@ -2,0 +3,2 @@\n+        # ours\n+\n"

with_ort_backend = pytest.mark.skipif(not HAS_ORT_BACKEND, reason="torch has no such file now")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file that passes for torch's, with a diff of its own."""
    path = tmp_path / "onnxruntime.py"
    path.write_text(SHIPPED)
    path.chmod(0o640)
    diff = tmp_path / "made.diff"
    diff.write_text(DIFF)
    known = {"2.7": "0" * 64, "2.8": hashlib.sha256(SHIPPED.encode()).hexdigest()}
    monkeypatch.setattr(sources, "PRISTINE", known)
    monkeypatch.setattr(sources, "diff_of", lambda series: diff)
    return path


def test_apply_and_revert(shipped: Path) -> None:
    assert sources.check(shipped).state == "pristine"
    assert sources.check(shipped).series == ("2.8",)
    assert sources.apply(shipped).state == "patched"
    assert shipped.read_text() == SHIPPED.replace("self):\n", "self):\n        # ours\n\n")
    assert sources.apply(shipped).state == "patched"
    assert sources.revert(shipped).state == "pristine"
    assert shipped.read_text() == SHIPPED
    assert sources.revert(shipped).state == "pristine"
    assert sorted(os.listdir(shipped.parent)) == ["made.diff", "onnxruntime.py"]


def test_permissions_are_kept(shipped: Path) -> None:
    sources.apply(shipped)
    assert stat.S_IMODE(shipped.stat().st_mode) == 0o640


def test_the_owner_is_kept(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when another user patches; the mode is set after the owner, who would change it."""
    calls: list[tuple[str, Any]] = []
    real = os.stat(shipped)
    before = Path.stat

    def stat_of_another(self: Path, **kwargs: Any) -> os.stat_result:
        if self != shipped:
            return before(self, **kwargs)
        return os.stat_result((*real[:4], real.st_uid + 1, real.st_gid + 2, *real[6:]))

    monkeypatch.setattr(Path, "stat", stat_of_another)
    monkeypatch.setattr(os, "chown", lambda path, *ids: calls.append(("chown", ids)))
    copy = sources.shutil.copymode
    monkeypatch.setattr(
        sources.shutil, "copymode", lambda a, b: (calls.append(("mode", 0)), copy(a, b))
    )
    assert sources.apply(shipped).state == "patched"
    assert calls == [("chown", (real.st_uid + 1, real.st_gid + 2)), ("mode", 0)]


def test_an_owner_that_cannot_be_kept(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays as it is, and one line says so."""

    def refuse(*args: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    content = shipped.read_bytes()
    monkeypatch.setattr(sources, "_copy_rights", refuse)
    with pytest.raises(HookError, match="Cannot replace"):
        sources.apply(shipped)
    assert shipped.read_bytes() == content
    assert not list(shipped.parent.glob(".*"))


@pytest.mark.parametrize("action", ["--check", "--apply", "--revert"])
def test_a_file_that_is_not_there(
    action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, for a folder too."""
    for path in ("/nonexistent", str(tmp_path)):
        assert main(["patch", action, "--torch-file", path]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert path in error


def test_another_name_of_the_file_is_not_changed(shipped: Path) -> None:
    other = shipped.with_name("in_the_cache.py")
    os.link(shipped, other)
    sources.apply(shipped)
    assert other.read_text() == SHIPPED


def test_a_link_is_replaced_and_its_target_kept(shipped: Path) -> None:
    link = shipped.with_name("link.py")
    link.symlink_to(shipped)
    sources.apply(link)
    assert not link.is_symlink()
    assert shipped.read_text() == SHIPPED


@pytest.mark.parametrize("content", [SHIPPED + "\n", "", SHIPPED.replace("torch", "me"), "\xff"])
def test_what_is_not_known_is_left_alone(shipped: Path, content: str) -> None:
    shipped.write_bytes(content.encode("latin-1"))
    assert sources.check(shipped).state == "unknown"
    for action in (sources.apply, sources.revert):
        with pytest.raises(HookError, match="left alone"):
            action(shipped)
    assert shipped.read_bytes() == content.encode("latin-1")


def test_a_patched_file_that_someone_changed_is_left_alone(shipped: Path) -> None:
    sources.apply(shipped)
    changed = shipped.read_text() + "# more\n"
    shipped.write_text(changed)
    with pytest.raises(HookError, match="left alone"):
        sources.revert(shipped)
    assert shipped.read_text() == changed


def test_an_interruption_leaves_the_file_as_it_was(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        sources.apply(shipped)
    assert shipped.read_text() == SHIPPED
    assert sorted(os.listdir(shipped.parent)) == ["made.diff", "onnxruntime.py"]


def test_a_place_that_cannot_be_written_is_named(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(files, "mkstemp", fail)
    with pytest.raises(HookError, match=r"Cannot replace .*onnxruntime\.py: read-only"):
        sources.apply(shipped)


def test_a_diff_that_makes_no_python_is_never_written(shipped: Path) -> None:
    shipped.with_name("made.diff").write_text(f"{HEAD}@@ -1,0 +2 @@\n+not python\n")
    with pytest.raises(SyntaxError):
        sources.apply(shipped)
    assert shipped.read_text() == SHIPPED


@pytest.mark.parametrize("series", versions.PRISTINE)
def test_the_diffs_hold_our_lines_only(series: str) -> None:
    text = (ROOT / "patches" / f"torch-{series}" / "onnxruntime.diff").read_text()
    _, _, *lines = text.splitlines()
    assert sum(line.startswith("@@ ") for line in lines) == 6
    assert all(line.startswith(("@@ -", "+")) for line in lines)
    assert text.startswith(f"--- a/torch/{versions.BACKEND_FILE}\n")
    for function in ("call_backend", "compile_graph", "accelerated_call", "serves"):
        assert f"rewriter.{function}(self, graph_module" in text


def test_the_command(shipped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = ["--torch-file", str(shipped)]
    for action, answer in (
        ("--check", "pristine (torch 2.8)"),
        ("--apply", "patched (torch 2.8)"),
        ("--check", "patched (torch 2.8)"),
        ("--revert", "pristine (torch 2.8)"),
    ):
        assert main(["patch", action, *target]) == 0
        assert capsys.readouterr().out == f"{shipped}: {answer}\n"
    shipped.write_text("")
    assert main(["patch", "--check", *target]) == 1
    assert capsys.readouterr().out == f"{shipped}: unknown\n"
    assert main(["patch", "--apply", *target]) == 1
    assert "left alone" in capsys.readouterr().err


def test_torch_is_found_without_being_imported(program: Program) -> None:
    found = program(
        "import sys\n"
        "from dort_rewriter import HookError\n"
        "from dort_rewriter.hook import sources\n"
        "try: print(sources.find_torch_file())\n"
        "except HookError as error: print(error)\n"
        "assert 'torch' not in sys.modules"
    )
    if HAS_ORT_BACKEND:
        assert Path(found).name == "onnxruntime.py"
        assert sources.check(Path(found)).state == "pristine"
    else:
        assert "nothing to patch" in found


RUN = """
import importlib.util, os, sys, torch
spec = importlib.util.spec_from_file_location("patched_onnxruntime", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
x = torch.randn(2, 3, requires_grad=True)
model(x).sum().backward()
expected, x.grad = x.grad, None
options = {"fallback": False}
compiled = torch.compile(model, backend=module.torch_compile_backend, options=options)
compiled(x).sum().backward()
torch.testing.assert_close(x.grad, expected)
graph = torch.fx.symbolic_trace(lambda x: x + 1)
backend = module.OrtBackend(module.OrtBackendOptions(use_aot_autograd=False))
os.environ["ONNXRT_CHANGE_REWRITER"] = "0"
backend._partitioner_cache[graph] = "of torch"
assert backend(graph, (x,)) == "of torch"
(used,) = module.OrtBackend.get_cached_instances()
module.OrtBackend.clear_cached_instances()
assert module.OrtBackend.get_cached_instances() == ()
print(used.execution_count)
"""


@with_ort_backend
def test_a_copy_of_the_installed_file_runs(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "copied_onnxruntime.py"
    original = sources.find_torch_file()
    shutil.copy(original, path)
    assert main(["patch", "--apply", "--torch-file", str(path)]) == 0
    code = f"import sys; sys.argv.append({str(path)!r})\n{RUN}"
    assert program(code, DORT_DISABLE="1", ONNXRT_CHANGE_REWRITER="1") == "2"
    assert main(["patch", "--revert", "--torch-file", str(path)]) == 0
    assert path.read_bytes() == original.read_bytes()


def test_installed_from_a_wheel(tmp_path: Path, program: Program) -> None:
    """The diffs travel inside the package, and the command finds them there."""
    pytest.importorskip("setuptools", minversion="77", reason="builds a wheel")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("dort_rewriter", "patches"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    program(
        "import os, setuptools.build_meta as build\n"
        "os.environ['CXX'] = 'none'  # nothing is compiled\n"
        f"os.chdir({str(clone)!r})\n"
        f"build.build_wheel({str(tmp_path)!r})"
    )
    (wheel,) = tmp_path.glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    found = program(
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "from dort_rewriter.hook import sources, versions\n"
        "for series in versions.PRISTINE: print(sources.diff_of(series))"
    ).splitlines()
    assert len(found) == len(versions.PRISTINE)
    for path, series in zip(found, versions.PRISTINE, strict=True):
        assert path.startswith(str(tmp_path / "site" / "dort_rewriter"))
        assert Path(path).read_text() == sources.diff_of(series).read_text()
    entry = next((tmp_path / "site").glob("*.dist-info/entry_points.txt")).read_text()
    assert "[torch.backends]" in entry
    assert "dort-rewriter = dort_rewriter.tools.cli:main" in entry
