"""Files that are there whole, and folders in which nobody else can change one."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dort_rewriter.files import (
    cache_folder,
    private_folder,
    spare_folder,
    staged,
    why_not_private,
    write_whole,
)

ANOTHER_USER = 54321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(name="umask", params=[0o000, 0o002, 0o022, 0o077])
def set_umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_it_is_made_for_one_user(tmp_path: Path, umask: int) -> None:
    """With all that is missing above it, whatever the umask."""
    made = private_folder(tmp_path / "a" / "b" / "c")
    assert made == tmp_path.resolve() / "a" / "b" / "c"
    for folder in (made, made.parent, made.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert private_folder(made) == made


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o500, 0o1755])
def test_others_may_read(tmp_path: Path, mode: int) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    assert private_folder(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o770, 0o1777, 0o707, 0o720])
def test_others_may_not_write(tmp_path: Path, mode: int) -> None:
    """Not with the sticky bit either: they could add files of their own."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(mode)
    with pytest.raises(PermissionError, match=rf"a can be written by others \(mode {mode:04o}\)"):
        private_folder(tmp_path / "a")


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_others_may_not_write_above(tmp_path: Path, mode: int) -> None:
    """They could put another folder in its place."""
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    (tmp_path / "a").chmod(mode)
    with pytest.raises(PermissionError, match=r"a can be written by others"):
        private_folder(tmp_path / "a" / "b" / "c")


def test_above_it_the_sticky_bit_is_enough(tmp_path: Path) -> None:
    """As in /tmp."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o1777)
    assert private_folder(tmp_path / "a" / "b")


@needs_root
@pytest.mark.parametrize("place", ["a/b", "a"])
def test_it_belongs_to_nobody_else(tmp_path: Path, place: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / place, ANOTHER_USER, -1)
    with pytest.raises(PermissionError, match=rf"another user \(uid {ANOTHER_USER}\)"):
        private_folder(tmp_path / "a" / "b")


@pytest.mark.load_sensitive
@needs_root
def test_what_is_root_s_is_trusted(tmp_path: Path) -> None:
    """A folder that the image of a container brings."""
    code = (
        "import os, sys; from pathlib import Path\n"
        "from dort_rewriter.files import why_not_private\n"
        f"os.seteuid({ANOTHER_USER}); print(why_not_private(Path(sys.argv[1])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "/usr"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_links_are_followed_to_the_folder_itself(tmp_path: Path) -> None:
    """What counts is where the files are."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(PermissionError, match="open can be written by others"):
        private_folder(tmp_path / "link")
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "open" / "link").symlink_to(tmp_path / "private")
    assert private_folder(tmp_path / "open" / "link") == (tmp_path / "private").resolve()


def test_what_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    """A file is in the way, or a link leads nowhere."""
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for wrong in ("file", "file/below", "link"):
        with pytest.raises(OSError, match=wrong.partition("/")[0]):
            private_folder(tmp_path / wrong)


def test_the_cache_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the variable is not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DORT_CACHE_DIR", ".")
    assert cache_folder() == tmp_path
    monkeypatch.delenv("DORT_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for of_programs in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", of_programs)
        assert cache_folder() == tmp_path / "home" / ".cache" / "dort_rewriter"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "programs"))
    assert cache_folder() == tmp_path / "programs" / "dort_rewriter"


def test_without_a_home_there_is_no_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is a number."""

    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("DORT_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(OSError, match="no home folder"):
        cache_folder()


def test_the_spare_folder_is_of_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert spare_folder().name == f"dort_rewriter-{os.geteuid()}"
    assert why_not_private(private_folder(spare_folder())) == ""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_staged_gets_its_names_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with staged(tmp_path) as aside:
        (aside / "a").write_text("new")
        (aside / "folder").mkdir()
        assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a", "folder"]
    assert (tmp_path / "a").read_text() == "new"


def test_nothing_is_left_of_a_block_that_raises(tmp_path: Path) -> None:
    def interrupted() -> None:
        with staged(tmp_path) as aside:
            (aside / "a").write_text("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_what_makes_the_others_found_moves_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it cannot, the others go."""
    moved = []
    replace = os.replace

    def note(source: Path, target: Path) -> None:
        moved.append(Path(target).name)
        if len(moved) == 3:
            raise OSError("no")
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)

    def write() -> None:
        with staged(tmp_path, last="a") as aside:
            for name in "abc":
                (aside / name).write_text(name)

    with pytest.raises(OSError, match="no"):
        write()
    assert moved == ["b", "c", "a"]
    assert names(tmp_path) == []


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    for content in (b"1", b"22"):
        write_whole(target, content)
        assert target.read_bytes() == content
        assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert names(tmp_path) == ["file.txt"]


def test_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("shared")
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    write_whole(tmp_path / "link", b"own")
    assert (tmp_path / "shared").read_text() == "shared"
    assert (tmp_path / "link").read_text() == "own"


def test_a_file_that_is_refused_in_the_end_has_no_name(tmp_path: Path) -> None:
    def refuse(aside: Path) -> None:
        assert aside.read_bytes() == b"new"
        raise PermissionError("no")

    with pytest.raises(PermissionError):
        write_whole(tmp_path / "a", b"new", finish=refuse)
    assert names(tmp_path) == []
