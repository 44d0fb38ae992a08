"""The progress of a long command is one bar on a terminal, and a line from time to time elsewhere."""

from __future__ import annotations

import io
import os
import pty

import pytest

from broker.base.progress import Progress


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_where_there_is_no_terminal() -> None:
    """Without a terminal there is a line every five seconds, with rates."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock)
    for second in range(1, 12):
        clock.now = float(second)
        progress.objects(second * 10, 1000, second << 20, 100 << 20)
    progress.line("done: \x1b[31m")
    assert out.getvalue().splitlines() == [
        "50 of 1 000 objects, 5.00 MiB of 100 MiB, 1.00 MiB/s, 95 s left",
        "100 of 1 000 objects, 10.0 MiB of 100 MiB, 1.00 MiB/s, 90 s left",
        "done: \\x1b[31m"]


@pytest.mark.parametrize("of, shown", [(1000, "9 s left"), (10_000, "99 s left"), (13_000, "3 min left"),
                                       (1_000_000, "2 h 47 min left"), (100, ""), (0, ""), (50, "")])
def test_the_time_left(of: int, shown: str) -> None:
    """The time left follows from the rate so far; there is none at the end, and none without a total."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock)
    clock.now = 6.0
    progress._began = 5.0
    progress.show("S", 100, of)
    assert out.getvalue().rstrip().endswith(shown or "/s")


def test_more_than_was_expected() -> None:
    """A total that was estimated too low grows, so a line never has 66 of 64."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock)
    clock.now = 10.0
    progress.objects(66, 64, 2 << 20, 1 << 20)
    assert out.getvalue().startswith("66 of 66 objects, 2.00 MiB of 2.00 MiB, ")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar replaces the last one and is cut to the width; a line removes it; an unknown total has no bar."""
    monkeypatch.setenv("COLUMNS", "70")
    out, clock = Terminal(), Clock()
    progress = Progress(out, clock)
    clock.now = 1.0
    progress.show("S", 50, 100)
    progress.show("not yet due", 51, 100)
    clock.now = 2.0
    progress.show("\x1b" * 50, 50, 0)
    progress.line("done")
    first, second, last = out.getvalue().split("\r\x1b[K")[1:]
    assert first == "[############............]  50% S, 50 B of 100 B, 50 B/s, 1 s left"
    assert len(second) == 69
    assert "[" not in second
    assert last == "done\n"


def test_a_real_terminal() -> None:
    """A terminal of the kernel as standard error is recognised."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as out:
        clock = Clock()
        progress = Progress(out, clock)
        clock.now = 1.0
        progress.show("S", 1, 2)
    assert b"50%" in os.read(ours, 1000)
    os.close(ours)
