"""Which file of our own kernels is loaded, and how one is compiled.

Compilers here are scripts: they note how they are called and copy a library that is known to load.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels import build as kernel_build
from dort_rewriter.kernels import library as kernel_library
from dort_rewriter.kernels.loading import custom_ops_library, is_available, register
from dort_rewriter.kernels.operators import OWN_DOMAIN
from dort_rewriter.runtime.kernel_query import has_kernel
from dort_rewriter.runtime.session import session_options
from tests.gates.sources import ROOT

pytestmark = pytest.mark.load_sensitive

LEVEL = kernel_build.supported_levels()[0]
COPY = 'cp "$LIBRARY" "$target"'
"""What a compiler that works does."""
ANOTHER_USER = 54321
LIMIT = 500
"""Seconds for a process that takes one on a quiet machine."""

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


class Place:
    """A machine of a test: folders and a compiler of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.spare = folder / "tmp" / f"dort_rewriter-{os.geteuid()}"
        self.built = folder / "built"
        self._monkeypatch = monkeypatch
        (folder / "tmp").mkdir()
        self.set(DORT_CACHE_DIR=str(self.cache), LIBRARY=str(a_library()))
        monkeypatch.setattr(kernel_build, "BUILT", self.built)
        monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
        self.compiler(COPY)

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def compiler(self, script: str = COPY, version: str = "1.0") -> Path:
        """Name a compiler: its version is a text for printf, its script finds ``$target``."""
        path = self.folder / "compiler"
        path.write_text(
            f'#!/bin/sh\necho "$@" >> {self.folder}/calls\n'
            f'for target in "$@"; do :; done\n'
            f"[ \"$target\" = --version ] && {{ printf '{version}'; exit; }}\n{script}\n"
        )
        path.chmod(0o755)
        self.set(CXX=str(path))
        return path

    def compilations(self) -> int:
        calls = self.folder / "calls"
        return calls.read_text().count(" -o ") if calls.exists() else 0

    def library(self) -> Path:
        """What a new process would load."""
        for function in (kernel_library.kernel_library, is_available):
            function.cache_clear()
        return Path(custom_ops_library())

    def process(self, first: str = "") -> subprocess.Popen[str]:
        """Ask the same in another process, that runs a line of Python first."""
        code = (
            "import pathlib, signal, sys, tempfile\n"
            f"{first}\n"
            "from dort_rewriter.kernels import build as kernel_build, library as kernel_library\n"
            "kernel_build.BUILT, tempfile.tempdir = pathlib.Path(sys.argv[1]), sys.argv[2]\n"
            "print(kernel_library.kernel_library())"
        )
        return subprocess.Popen(
            [sys.executable, "-c", code, str(self.built), str(self.folder / "tmp")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def a_library() -> Path:
    """The library of this machine, made now or long ago."""
    global _library
    _library = _library or kernel_library.kernel_library()
    return _library


_library: Path | None = None


@pytest.fixture(name="place")
def make_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    a_library()
    yield Place(tmp_path, monkeypatch)
    monkeypatch.undo()
    for function in (kernel_library.kernel_library, is_available):
        function.cache_clear()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_is_compiled_once(place: Place) -> None:
    """And again for another compiler; nothing else is left in the folder."""
    first = place.library()
    assert place.library() == first
    assert place.compilations() == 1
    assert first.parent == place.cache.resolve() / "kernels"
    assert names(first.parent) == {first.name, first.with_suffix(".sha256").name, "lock"}
    assert first.read_bytes() == a_library().read_bytes()
    place.compiler(version="2.0")
    assert place.library() != first
    assert place.compilations() == 2


def test_it_is_private(place: Place) -> None:
    """Whatever the umask."""
    before = os.umask(0o002)
    try:
        library = place.library()
    finally:
        os.umask(before)
    for path in (library.parent, library.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in library.parent.iterdir()} == {0o600}


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:4096]),
    "altered": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"?"),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"?"),
    "gone": lambda path: path.unlink(),
    "no digest": lambda path: path.with_suffix(".sha256").unlink(),
    "empty digest": lambda path: path.with_suffix(".sha256").write_text(""),
    "other digest": lambda path: path.with_suffix(".sha256").write_text("0" * 64),
    "no text": lambda path: path.with_suffix(".sha256").write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_made_again(place: Place, damage: str) -> None:
    """A library that is cut short ends every process that loads it."""
    library = place.library()
    DAMAGES[damage](library)
    assert place.library() == library
    assert place.compilations() == 2
    assert library.read_bytes() == a_library().read_bytes()
    assert is_available()


def install(place: Place, *levels: kernel_build.Level) -> None:
    place.built.mkdir()
    for level in levels:
        (place.built / kernel_build.library_name(level)).write_bytes(a_library().read_bytes())
    kernel_build.record(place.built, levels)


def test_an_installed_one_is_taken(place: Place) -> None:
    """No compiler is asked for, no folder is made."""
    install(place, LEVEL)
    place.set(CXX="no-such-compiler")
    assert place.library() == place.built / kernel_build.library_name(LEVEL)
    assert is_available()
    assert not place.cache.exists()


def test_a_lesser_one_is_taken_where_the_best_was_not_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a compiler that does not know the best."""
    lesser, best = kernel_build.Level("lesser"), kernel_build.Level("best", ("-best",))
    monkeypatch.setattr(kernel_build, "supported_levels", lambda: [best, lesser])
    install(place, lesser)
    assert place.library().name == "kernels-lesser.so"
    assert place.compilations() == 0


@pytest.mark.parametrize("damage", ["empty", "cut", "altered", "longer", "gone"])
def test_a_damaged_installation_is_not_loaded(place: Place, damage: str) -> None:
    install(place, LEVEL)
    DAMAGES[damage](place.built / kernel_build.library_name(LEVEL))
    assert place.library().parent.parent == place.cache.resolve()


def test_an_installation_of_other_sources_is_not_loaded(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a source folder, after an edit."""
    install(place, LEVEL)
    sources = place.folder / "sources"
    shutil.copytree(kernel_build.SOURCES, sources)
    for path in sources.glob("*.h"):
        path.write_text(path.read_text() + "// edited\n")
    monkeypatch.setattr(kernel_build, "SOURCES", sources)
    with caplog.at_level(logging.INFO):
        assert place.library().parent.parent == place.cache.resolve()
    assert "not of these sources" in caplog.text


def test_an_installation_for_another_system_is_not_loaded(place: Place) -> None:
    """One that the system refuses."""
    place.built.mkdir()
    (place.built / kernel_build.library_name(LEVEL)).write_text("no library")
    kernel_build.record(place.built, [LEVEL])
    assert place.library().parent.parent == place.cache.resolve()


def plant(folder: Path, name: str) -> Path:
    """Put a library where the one of the cache would be, digest and all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(a_library().read_bytes())
    path.with_suffix(".sha256").write_text(f"{kernel_build.digest(path)}\n")
    return path


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o770])
def test_no_code_is_loaded_from_a_folder_of_others(
    place: Place, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither from it nor from below it: another folder is used, and one line says so."""
    name = place.library().name
    (place.folder / "shared").mkdir()
    for folder in ("shared", "shared/kernels"):
        plant(place.folder / folder, name)
    (place.folder / "shared").chmod(mode)
    place.set(DORT_CACHE_DIR=str(place.folder / "shared"))
    with caplog.at_level(logging.WARNING):
        assert place.library() == place.spare.resolve() / "kernels" / name
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert f"shared can be written by others (mode {mode:04o})" in record.message


def test_a_folder_above_counts_too(place: Place) -> None:
    """Who can write to it can put another folder in the place of ours."""
    name = place.library().name
    planted = plant(place.folder / "open" / "cache" / "kernels", name)
    planted.parent.chmod(0o700)
    planted.parent.parent.chmod(0o700)
    (place.folder / "open").chmod(0o777)
    place.set(DORT_CACHE_DIR=str(place.folder / "open" / "cache"))
    assert place.library() == place.spare.resolve() / "kernels" / name


@needs_root
@pytest.mark.parametrize("folder", ["cache/kernels", "cache"])
def test_a_folder_of_another_user_is_not_used(place: Place, folder: str) -> None:
    """Even if nobody else can write to it."""
    library = place.library()
    os.chown(place.folder / folder, ANOTHER_USER, -1)
    assert place.library() == place.spare.resolve() / "kernels" / library.name


def test_with_no_private_folder_there_are_no_kernels(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says why, for each folder."""
    for folder in (place.cache, place.spare):
        folder.mkdir()
        folder.chmod(0o777)
    with pytest.raises(ExecutionError, match="no private folder to compile to") as caught:
        place.library()
    for folder in (place.cache, place.spare):
        assert f"{folder} can be written by others" in str(caught.value)
    assert not is_available()
    (record,) = caplog.records
    assert "\n" not in record.message


@pytest.mark.parametrize("wrong", ["a file", "read-only"])
def test_a_folder_that_cannot_be_written(
    place: Place, wrong: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a read-only home: the spare one is used."""
    if wrong == "a file":
        place.cache.write_text("")
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: str(place.cache) not in str(path))
    assert place.library().parent.parent == place.spare.resolve()
    assert str(place.cache) in caplog.text


def test_what_is_there_is_used_from_a_folder_that_cannot_be_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that an image of a container brings."""
    library = place.library()
    monkeypatch.setattr(os, "access", lambda path, mode: str(place.cache) not in str(path))
    assert place.library() == library
    assert place.compilations() == 1


def test_without_a_home(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is only a number."""

    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DORT_CACHE_DIR")
    monkeypatch.setattr(Path, "home", fail)
    assert place.library().parent.parent == place.spare.resolve()


def test_the_default_folder_is_closed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is this package's alone: one that a umask of 002 left open is used again."""
    monkeypatch.delenv("DORT_CACHE_DIR")
    place.set(HOME=str(place.folder))
    default = place.folder / ".cache" / "dort_rewriter"
    default.mkdir(parents=True)
    for folder in (default.parent, default):
        folder.chmod(0o755 if folder == default.parent else 0o775)
    assert place.library().parent.parent == default.resolve()
    assert stat.S_IMODE(default.stat().st_mode) == 0o700


def test_the_folder_at_hand(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is relative stands for where the program was then."""
    (place.folder / "here").mkdir()
    monkeypatch.chdir(place.folder / "here")
    place.set(DORT_CACHE_DIR=".")
    library = place.library()
    assert library.is_absolute()
    assert library.parent == (place.folder / "here" / "kernels").resolve()
    monkeypatch.chdir(place.folder)
    register(session_options())


@pytest.mark.parametrize("words", ["{0} -DA=1", "'{0}' '-DA=1'"])
def test_a_compiler_of_several_words(place: Place, words: str) -> None:
    """As in CXX="ccache g++"."""
    place.set(CXX=words.format(place.compiler()))
    assert place.library().exists()
    assert "-DA=1 -std" in (place.folder / "calls").read_text()


def test_a_compiler_that_speaks_no_utf_8(place: Place) -> None:
    """What it says is shown as far as it can be."""
    place.compiler(version="g++ \\351\\377 (Debian)")
    assert place.library().exists()
    place.compiler("printf '\\351: option inconnue' >&2; exit 1", version="g++ \\351")
    with pytest.raises(ExecutionError, match=r"cannot compile the kernels: .: option inconnue"):
        place.library()


@pytest.mark.parametrize("script", ["echo 'unknown flag' >&2; exit 1", "echo 'unknown flag' >&2"])
def test_a_failing_compiler_is_quoted(place: Place, script: str) -> None:
    """With its own words; nothing is left but the lock."""
    place.compiler(script)
    with pytest.raises(ExecutionError, match="cannot compile the kernels: unknown flag"):
        place.library()
    assert names(place.cache / "kernels") == {"lock"}


@pytest.mark.parametrize(("script", "works"), [(COPY, True), ("echo 'unknown flag' >&2", False)])
def test_where_the_status_of_children_is_ignored(place: Place, script: str, works: bool) -> None:
    """Servers do so; the system then keeps no status of a compiler that ended."""
    place.compiler(f"{script}; exit {int(not works)}")
    process = place.process(first="signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    said, complaint = process.communicate(timeout=LIMIT)
    if works:
        assert said == f"{place.library()}\n", complaint
        assert place.compilations() == 1
    else:
        assert "cannot compile the kernels: unknown flag" in complaint
        assert names(place.cache / "kernels") == {"lock"}


def test_a_compiler_writes_on_the_side_where_it_works(place: Place) -> None:
    """What it leaves there goes with the folder."""
    place.compiler(f'touch "$TMPDIR/left"; echo "$TMPDIR" > {place.folder}/side; {COPY}')
    library = place.library()
    side = Path((place.folder / "side").read_text().strip())
    assert side.parent == library.parent
    assert not side.exists()


def test_without_a_compiler_it_is_said_once(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """And no rule finds a kernel."""
    place.set(CXX="no-such-compiler")
    is_available.cache_clear()
    kernel_library.kernel_library.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert not has_kernel("Rotary", OWN_DOMAIN, 1, [1] * 3)
    assert [r.message for r in caplog.records] == [
        "No rule that needs a kernel of our own is applied: there is no C++ compiler "
        "'no-such-compiler': install one, or name it in the variable CXX."
    ]


def test_a_library_that_does_not_load(place: Place) -> None:
    """As on a disk that programs cannot be run from: it is no crash."""
    place.compiler('echo > "$target"')
    place.library()
    assert not is_available()
    with pytest.raises(ExecutionError, match="cannot load"):
        register(session_options())


def test_processes_that_start_together_compile_once(place: Place) -> None:
    place.compiler(f"sleep 0.5; {COPY}")
    processes = [place.process() for _ in range(4)]
    said = {process.communicate(timeout=LIMIT) for process in processes}
    assert said == {(f"{place.library()}\n", "")}
    assert place.compilations() == 1


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < end, f"{path} was not written"
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_process_may_end_while_it_compiles(place: Place, number: signal.Signals) -> None:
    """The next one does not wait for it, and removes what is left."""
    started = place.folder / "started"
    place.compiler(f'echo half > "$target"; echo $$ > {started}; exec sleep 60')
    # a shell may have started the tests with SIGINT ignored, which is inherited
    process = place.process("signal.signal(signal.SIGINT, signal.default_int_handler)")
    wait_for(started)
    process.send_signal(number)
    process.communicate(timeout=LIMIT)
    assert process.returncode != 0
    try:
        place.compiler()
        library = place.library()
        assert library.read_bytes() == a_library().read_bytes()
        assert names(library.parent) == {library.name, library.with_suffix(".sha256").name, "lock"}
    finally:
        _end(int(started.read_text()))


def _end(process: int) -> None:
    """End a compiler that outlived who started it."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_who_holds_the_lock_and_stands_still_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its work is left alone."""
    folder = place.library().parent
    for path in folder.iterdir():
        path.unlink()
    (folder / "building-by-another").mkdir()
    monkeypatch.setattr(kernel_build, "TIME_LIMIT", 0.2)
    with kernel_library._locked(folder / "lock") as held:
        assert held
        monkeypatch.setattr(kernel_library, "_run", _run_without_limit)
        assert place.library().exists()
    assert "building-by-another" in names(folder)


def _run_without_limit(command: list[str], folder: Path | None = None) -> Any:
    return subprocess.run(command, capture_output=True, check=False)


def test_where_there_are_no_locks_it_is_compiled_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network disks."""

    def fail(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(kernel_library.fcntl, "flock", fail)
    assert place.library().exists()
