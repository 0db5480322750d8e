"""What an installation brings: the kernels, if they can be compiled, and what torch imports.

A copy of the sources is built; the compiler is a script, so that this takes no time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dort_rewriter.kernels import build as kernel_build
from tests.gates.sources import ROOT

BUILT = "dort_rewriter/kernels/built/"
LEVELS = kernel_build.processor_levels(kernel_build.platform.machine())
TAG = r"dort_rewriter-[\w.]+?(?:-0\.editable)?-(.*)\.whl"
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""


class Project:
    """A copy of the sources, and a compiler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "built")
        for name in ("dort_rewriter", "patches"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
        for path in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / path, self.folder)
        shutil.copy(ROOT / "dort_rewriter_autoload.py", self.folder)
        self.built = self.folder / BUILT

    def compiler(self, script: str = 'echo code > "$target"') -> str:
        path = self.folder.parent / "compiler"
        path.write_text(
            f'#!/bin/sh\necho call >> {path}.calls\nfor target in "$@"; do :; done\n{script}\n'
        )
        path.chmod(0o755)
        return str(path)

    def compilations(self) -> int:
        calls = self.folder.parent / "compiler.calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def build(self, compiler: str, kind: str = "build_wheel") -> tuple[str, list[str]]:
        """The tag of the wheel and the names in it."""
        for path in self.wheels.iterdir():
            path.unlink()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", BUILD, kind, str(self.wheels)],
            cwd=self.folder,
            env={**os.environ, "CXX": compiler, "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (wheel,) = self.wheels.glob("*.whl")
        match = re.fullmatch(TAG, wheel.name)
        assert match is not None
        with zipfile.ZipFile(wheel) as archive:
            return match[1], archive.namelist()


@pytest.fixture(name="project")
def copy_the_project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def libraries(names: list[str]) -> set[str]:
    return {name.removeprefix(BUILT) for name in names if name.startswith(BUILT)}


@pytest.mark.load_sensitive
def test_a_wheel_with_kernels_is_for_a_platform(project: Project) -> None:
    """And for all versions of Python; they are not compiled again for the next wheel."""
    tag, names = project.build(project.compiler())
    assert re.fullmatch(r"py3-none-(?!any)\w+", tag)
    assert libraries(names) == {"built.json", *map(kernel_build.library_name, LEVELS)}
    assert {"dort_rewriter_autoload.py", "dort_rewriter/kernels/cpp/half.h"} <= set(names)
    assert project.compilations() == len(LEVELS)
    assert project.build(project.compiler()) == (tag, names)
    assert project.compilations() == len(LEVELS)


def test_what_an_older_build_left_is_not_in_a_wheel(project: Project) -> None:
    """Modules that are gone, in `build/lib` and in what an interrupted build has put together."""
    project.build("none")
    (laid_out,) = (project.folder / "build").glob("bdist.*")
    gone = ("dort_rewriter/gone.py", "dort_rewriter/export/gone/__init__.py")
    for place in (project.folder / "build" / "lib", laid_out / "wheel"):
        for name in gone:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).touch()
    _, names = project.build("none")
    assert not set(gone) & set(names)
    assert {"dort_rewriter/__init__.py", "dort_rewriter_autoload.py"} <= set(names)


@pytest.mark.load_sensitive
@pytest.mark.parametrize("compiler", ["none", "one that fails"])
def test_a_wheel_without_kernels_is_for_all_platforms(project: Project, compiler: str) -> None:
    """Also where there was one with kernels before."""
    project.build(project.compiler())
    if compiler != "none":
        compiler = project.compiler("exit 1")
        shutil.rmtree(project.folder / "build")
    tag, names = project.build(compiler)
    assert tag == "py3-none-any"
    assert libraries(names) == set()
    assert "dort_rewriter_autoload.py" in names


def test_the_source_distribution_needs_no_compiler(project: Project, tmp_path: Path) -> None:
    """What `pip install` does of it: a wheel with the sources of the kernels, without kernels."""
    command = [sys.executable, "-W", "ignore", "-c", BUILD, "build_sdist", str(project.wheels)]
    shutil.copy(ROOT / "MANIFEST.in", project.folder)
    subprocess.run(command, cwd=project.folder, check=True, capture_output=True)
    (archive,) = project.wheels.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (project.folder,) = (tmp_path / "unpacked").iterdir()
    tag, names = project.build("none")
    assert tag == "py3-none-any"
    assert libraries(names) == set()
    assert "dort_rewriter/kernels/cpp/library.cpp" in names


def test_what_the_compiler_does_not_know_is_left_out(project: Project) -> None:
    """As AVX-512 by an old one; the record has the others."""
    failing = kernel_build.library_name(LEVELS[0])
    script = f'case "$target" in *{failing}) exit 1;; esac; echo code > "$target"'
    _, names = project.build(project.compiler(script))
    others = {kernel_build.library_name(level) for level in LEVELS[1:]}
    assert libraries(names) == ({"built.json", *others} if others else set())


@pytest.mark.load_sensitive
def test_an_editable_installation_compiles_for_this_processor(project: Project) -> None:
    """In the sources, where other environments find it; again when they change."""
    best = kernel_build.supported_levels()[0]
    for expected in (1, 1):
        tag, names = project.build(project.compiler(), "build_editable")
        assert tag == "py3-none-any"
        assert project.compilations() == expected
    assert {p.name for p in project.built.iterdir()} == {
        "built.json",
        kernel_build.library_name(best),
    }
    assert list(json.loads((project.built / "built.json").read_text())) == [best.name]
    assert "dort_rewriter_autoload.py" in names
    with (project.folder / "dort_rewriter/kernels/cpp/half.h").open("a") as file:
        file.write("// edited\n")
    project.build(project.compiler(), "build_editable")
    assert project.compilations() == 2
