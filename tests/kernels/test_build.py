"""How the library of our own kernels is compiled."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels import build as kernel_build
from dort_rewriter.kernels.build import (
    Level,
    find_compiler,
    find_installed,
    library_name,
    processor_levels,
    recipe,
    record,
    supported_levels,
)
from dort_rewriter.kernels.library import _compiled_library
from dort_rewriter.tools.doctor import check_kernels
from tests.gates.sources import ROOT

SKYLAKE = (
    "fpu sse sse2 ht pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c lahf_lm abm bmi1 avx2 "
    "bmi2"
)
LEVELS = {
    "": ["x86-64"],
    "fpu sse sse2": ["x86-64"],
    SKYLAKE: ["x86-64-v3", "x86-64"],
    SKYLAKE.replace("fma ", ""): ["x86-64"],
    SKYLAKE.replace(" bmi2", ""): ["x86-64"],
    f"{SKYLAKE} avx512f avx512dq avx512cd avx512bw": ["x86-64-v3", "x86-64"],
    f"{SKYLAKE} avx512f avx512dq avx512cd avx512bw avx512vl": ["x86-64-v4", "x86-64-v3", "x86-64"],
}


@pytest.mark.parametrize("features", LEVELS)
def test_a_processor_runs_what_it_has_all_features_of(
    features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instruction that is missing would end the process."""
    monkeypatch.setattr(kernel_build, "features", lambda: frozenset(features.split()))
    monkeypatch.setattr(kernel_build.platform, "machine", lambda: "x86_64")
    assert [level.name for level in supported_levels()] == LEVELS[features]


def test_a_processor_of_another_kind_has_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its compiler takes for granted."""
    for machine, name in (("aarch64", "aarch64"), ("AMD64", "x86-64"), ("", "unknown")):
        assert processor_levels(machine)[-1].name == name
        assert processor_levels(machine)[-1].flags == ()
    monkeypatch.setattr(kernel_build.platform, "machine", lambda: "arm64")
    assert [level.name for level in supported_levels()] == ["arm64"]


def test_what_a_level_uses_it_needs() -> None:
    """In the words of the kernel, which has other names for two of them."""
    kernel = {"bmi": "bmi1", "lzcnt": "abm"}
    for level in processor_levels("x86_64"):
        used = {flag.removeprefix("-m") for flag in level.flags}
        assert {kernel.get(name, name) for name in used} <= level.needs


@pytest.mark.load_sensitive
@pytest.mark.parametrize("level", supported_levels(), ids=lambda level: level.name)
def test_the_compiler_knows_the_flags(level: Level, tmp_path: Path) -> None:
    """A library of nothing is made, in silence."""
    if (compiler := find_compiler("")) is None:
        pytest.skip("there is no C++ compiler")
    (tmp_path / "nothing.cpp").write_text("")
    command = kernel_build.command(compiler, level, tmp_path / "nothing.so")
    given = [*kernel_build.includes(), str(kernel_build.SOURCES / "library.cpp")]
    first = command.index(given[0])
    command[first : first + len(given)] = [f"{tmp_path}/nothing.cpp"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_command_of_several_words_is_a_compiler(tmp_path: Path) -> None:
    """As in CXX="ccache g++"; a name may also have a space in it."""
    program = tmp_path / "my compiler"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    plain = tmp_path / "g++"
    program.replace(plain)
    assert find_compiler(f"{plain} -m64 '-DA=b c'") == [str(plain), "-m64", "-DA=b c"]
    plain.replace(program)
    assert find_compiler(str(program)) == [str(program)]
    assert find_compiler(f"'{program}' -m64") == [str(program), "-m64"]


@pytest.mark.parametrize("named", ["no-such-compiler", "ccache-that-is-not-there g++", "'g++"])
def test_what_cannot_be_run_is_none(named: str) -> None:
    assert find_compiler(named) is None


@pytest.mark.parametrize("named", ["", "  "])
def test_an_empty_name_is_the_default(named: str) -> None:
    assert find_compiler(named) == find_compiler(kernel_build.COMPILER)


@pytest.fixture(name="sources")
def copy_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    shutil.copytree(kernel_build.SOURCES, folder, dirs_exist_ok=True)
    monkeypatch.setattr(kernel_build, "SOURCES", folder)
    return folder


def test_a_library_is_made_from_sources_and_flags(sources: Path) -> None:
    """Whatever the folder is called, and whatever else is in it."""
    (level, *others) = processor_levels("x86_64")
    before = recipe(level)
    (sources / ".half.h.swp").write_text("")
    assert recipe(level) == before
    assert all(recipe(other) != before for other in others)
    (sources / "half.h").write_text((sources / "half.h").read_text() + "\n")
    changed = recipe(level)
    assert changed != before
    (sources / "half.h").rename(sources / "halves.h")
    assert recipe(level) not in (before, changed)


def test_an_installed_library_is_found_while_it_is_right(sources: Path, tmp_path: Path) -> None:
    """It is no more when it, its record or the sources change."""
    level, other, _ = processor_levels("x86_64")
    library = tmp_path / library_name(level)
    library.write_bytes(b"machine code")
    record(tmp_path, [level, other])
    assert find_installed(tmp_path, level) == library
    assert find_installed(tmp_path, other) is None
    assert find_installed(tmp_path / "elsewhere", level) is None
    for damaged in (b"", b"machine", b"Machine code", b"machine code "):
        library.write_bytes(damaged)
        assert find_installed(tmp_path, level) is None
    library.write_bytes(b"machine code")
    assert find_installed(tmp_path, level) == library
    (sources / "half.h").write_text("")
    assert find_installed(tmp_path, level) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"x86-64": 1}', '{"x86-64": {}}', "\xff"])
def test_a_record_that_says_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "built.json").write_bytes(text.encode("latin-1"))
    assert find_installed(tmp_path, processor_levels("x86_64")[-1]) is None


def test_the_sources_are_installed() -> None:
    """Packages leave out what is no Python, unless they are told."""
    root = Path(kernel_build.__file__).parents[1]
    sources = {p for p in kernel_build.SOURCES.rglob("*") if p.is_file()}
    assert {p.suffix for p in sources} == {".h", ".cpp"}
    patterns = re.findall(r'"(kernels/[^"]+)"', (ROOT / "setup.py").read_text(encoding="utf-8"))
    found = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    assert found == sources == set(kernel_build.sources())


def test_windows_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever CXX names: MSVC lacks what the sources use."""
    assert kernel_build.excuse() == ""
    monkeypatch.setattr(kernel_build, "sys", SimpleNamespace(platform="win32"))
    why = kernel_build.excuse()
    with pytest.raises(ExecutionError, match=why):
        _compiled_library(supported_levels()[-1])
    for compile_now in (None, Path):
        found = check_kernels(None, compile_now)
        assert (found.state, found.subject) == ("note", "kernels")
        assert why in found.text
