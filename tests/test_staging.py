"""Files that are there complete or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dort_rewriter.staging import staged, write_whole


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
