"""What is shown of a first call: bars where somebody reads them, lines of log elsewhere."""

from __future__ import annotations

import io
import logging
import os
import select
import struct
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from dort_rewriter import OrtBackend, progress, to_onnx
from dort_rewriter.progress import shown
from dort_rewriter.trace import CompileTrace


class Terminal(io.StringIO):
    """A standard error that somebody reads."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    pytest.importorskip("tqdm")
    terminal = Terminal()
    # NOTE: pytest puts a standard error of its own in place between a fixture and its test.
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))
    return terminal


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines of log, as they come."""
    caplog.set_level(logging.INFO, "dort_rewriter.progress")
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    monkeypatch.setattr(progress.logger, "handlers", [handler])
    return said


def test_nothing_is_shown_unasked(terminal: Terminal, lines: list[str]) -> None:
    with shown("Graph 1: export", steps=3) as advance:
        advance()
    assert terminal.getvalue() == ""
    assert lines == []


@pytest.mark.parametrize("way", ["asked", "environment"])
def test_a_terminal_gets_a_bar(
    way: str, terminal: Terminal, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "environment":
        monkeypatch.setenv("DORT_PROGRESS", "1")
    with shown("Graph 1: export", steps=3, asked=way == "asked") as advance:
        assert "Graph 1: export:   0%" in terminal.getvalue()
        advance()
    assert "3/3" in terminal.getvalue()  # nodes that are not visited count, too
    assert lines == []


def test_an_exception_ends_the_bar_where_it_is(terminal: Terminal) -> None:
    with pytest.raises(KeyError), shown("Graph 1: export", steps=2, asked=True):
        raise KeyError
    assert "2/2" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\n")


def test_without_a_terminal_there_are_lines(lines: list[str]) -> None:
    with shown("Graph 1: export", asked=True):
        assert lines == ["Graph 1: export."]
    assert lines == ["Graph 1: export."]


def test_without_tqdm_there_are_lines(
    terminal: Terminal, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with shown("Graph 1: export", asked=True):
        pass
    assert lines == ["Graph 1: export."]
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("size", [(0, 0), (0, 100), (24, 100)])
def test_a_terminal_of_no_size_has_lines(
    size: tuple[int, int], lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bars were empty lines there."""
    pytest.importorskip("tqdm")
    openpty = pytest.importorskip("pty").openpty
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    reader, writer = openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    with open(writer, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=terminal))
        with shown("Graph 1: export", asked=True):
            pass
        written = b""
        # What is written to a terminal arrives in pieces.
        while all(size) and b"100%" not in written and select.select([reader], [], [], 5)[0]:
            written += os.read(reader, 4096)
    os.close(reader)
    assert (b"100%" in written) is all(size)
    assert lines == ([] if all(size) else ["Graph 1: export."])


def test_lines_that_were_asked_for_are_seen_where_no_logging_is_set_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = logging.Logger("alone")
    monkeypatch.setattr(progress, "logger", logger)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    for _ in range(2):
        with shown("Graph 1: export", asked=True):
            pass
    assert stream.getvalue() == "Graph 1: export.\n" * 2


def test_what_takes_long_is_said_unasked(
    lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown("Graph 1: session", since=progress.LONG + 2):
        assert lines == ["Graph 1: session, after 7 s."]
    clock = iter([0.0, 9.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    with shown("Graph 2: export"):
        pass
    assert lines[1:] == ["Graph 2: export took 9 s."]


@pytest.fixture
def pty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """A terminal of 24 rows and 40 columns as the standard error; what was written to it."""
    openpty = pytest.importorskip("pty").openpty
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    reader, writer = openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))

    def read() -> str:
        written, end = b"", time.monotonic() + 0.3
        while time.monotonic() < end and select.select([reader], [], [], 0.1)[0]:
            written += os.read(reader, 4096)
        return written.decode()

    with open(writer, "w", encoding="utf-8") as stderr:
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
        monkeypatch.setattr(progress, "_waits", progress._Waits())
        yield read
    os.close(reader)


def screen(written: str) -> str:
    """What a terminal shows in a line after some writing."""
    cells: list[str] = []
    at = 0
    for character in written:
        if character == "\r":
            at = 0
            continue
        cells[at : at + 1] = [character]
        at += 1
    return "".join(cells).rstrip()


def test_a_long_wait_has_a_line_in_a_terminal_while_it_lasts(
    pty: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of phases that follow on each other, each short, too; it is as wide as the terminal."""
    monkeypatch.setattr(progress, "LONG", 0.3)
    monkeypatch.setattr(progress, "REPEATED", 0.01)
    with shown("Graph 1: cut"):
        pass
    assert pty() == ""
    with shown("Graph 1: optimize", steps=3) as advance:
        advance()
        time.sleep(0.4)
        during = pty()
    assert "\rdort_rewriter: Graph 1: optimize, 1 of \r" in during  # 39 columns of 40
    assert "\n" not in during
    assert screen(during + pty()) == ""
    with shown("Graph 2: cut"):  # somebody waits still
        time.sleep(0.1)
        text = pty()
    assert "\rdort_rewriter: Graph 2: cut, " in text
    assert screen(text + pty()) == ""
    monkeypatch.setattr(progress, "_PAUSE", -1.0)
    with shown("Graph 3: cut"):  # another wait
        time.sleep(0.1)
        assert pty() == ""
        time.sleep(0.1)
        with shown("Graph 3: export"):  # inside of it
            time.sleep(0.1)
    assert "Graph 3: export" in pty()


@pytest.mark.parametrize("way", ["raises", "0", "1"])
def test_a_line_is_gone_after_an_error_and_can_be_left_out(
    way: str, pty: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LONG", 0.0)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    if way != "raises":
        monkeypatch.setenv("DORT_PROGRESS", way)

    def work() -> None:
        with shown("Graph 1: export"):
            time.sleep(0.1)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    written = pty()
    assert ("Graph 1: export" in written) is (way == "raises")
    assert screen(written) == ""


def test_a_trace_knows_which_graph_it_is_and_how_long_it_took(lines: list[str]) -> None:
    first, second = CompileTrace(verbose=True), CompileTrace(verbose=True)
    with first.phase("cut"), second.phase("cut"):
        pass
    with first.phase("export", 0):
        pass
    assert lines == [f"Graph {t.number}: cut." for t in (first, second)]
    assert second.number == first.number + 1
    assert set(first.timings) == {"cut", "export"}


def test_a_first_call_shows_its_phases(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DORT_PROGRESS", "1")
    compiled = torch.compile(torch.nn.Linear(3, 2), backend=OrtBackend())
    compiled(torch.ones(1, 3)).sum().backward()
    tracing, *graphs = lines
    assert tracing == "Tracing by AOTAutograd."
    forward, backward = {graph.partition(":")[0] for graph in graphs}
    phases = ("cut", "export", "optimize", "session")
    assert sorted(graphs) == sorted(f"{g}: {p}." for g in (forward, backward) for p in phases)


def test_a_bar_counts_the_nodes_of_a_first_call(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DORT_PROGRESS", "1")
    model = torch.nn.Linear(3, 2)
    with torch.no_grad():
        result = torch.compile(model, backend=OrtBackend())(torch.ones(1, 3))
        torch.testing.assert_close(result, model(torch.ones(1, 3)))
    assert ": export: 100%" in terminal.getvalue()
    assert ": session: 100%" in terminal.getvalue()


def test_an_export_shows_its_phases(lines: list[str]) -> None:
    to_onnx(torch.nn.Linear(3, 2), (torch.ones(1, 3),), verbose=1)
    assert [line.split(": ")[1] for line in lines] == ["capture.", "export.", "optimize."]
    lines.clear()
    to_onnx(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
    assert lines == []
