"""Errors as Spark gets them: the text, without the frames and causes below it."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.pipeline.errors import NoStream
from broker.pipeline.spark.errors import MissingModule, plainly, plainly_each


def deep(depth: int = 5) -> int:
    if depth:
        return deep(depth - 1)
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise NoStream("no stream 'A'") from error


def rows() -> Iterator[int]:
    yield 1
    yield deep()


def test_an_error_has_one_frame_and_no_cause() -> None:
    for call in (plainly(deep), lambda: list(plainly_each(rows()))):
        with pytest.raises(NoStream) as caught:
            call()
        text = "".join(traceback.format_exception(caught.value))
        assert "KeyError" not in text
        assert "in deep" not in text
        assert text.endswith("NoStream: no stream 'A'\n")


def test_rows_before_the_error_are_returned() -> None:
    each = plainly_each(rows())
    assert next(each) == 1
    with pytest.raises(NoStream):
        next(each)


def test_closing_closes_the_wrapped_generator() -> None:
    """Spark stops a task early for a LIMIT; threads that read ahead end with their generator."""
    closed = []

    def endless() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    each = plainly_each(endless())
    next(each)
    each.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_other_errors_are_left_alone() -> None:
    """An internal error keeps its frames, and a missing module that is no dependency gives no advice to install it."""
    def wrong() -> None:
        import no_such_module  # type: ignore[import-not-found]  # noqa: F401

    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        plainly(wrong)()
    with pytest.raises(ZeroDivisionError):
        plainly(lambda: 1 // 0)()


def test_a_missing_module_s_error_names_place_and_remedy(tmp_path: Path) -> None:
    """The process is like an executor whose image lacks obstore or numpy."""
    code = ("import sys; sys.modules['numpy'] = None\n"
            "from broker.pipeline.spark.source import JetblockSource\n"
            "JetblockSource({'store': 'file:///x', 'stream': 'A'}).reader(None)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
                          cwd=Path(__file__).resolve().parents[3])
    last = done.stderr.splitlines()[-1]
    assert MissingModule.__name__ in last
    assert "no module 'numpy'" in last
    assert "jetblock with its extra [spark]" in last
    assert sys.executable in last
