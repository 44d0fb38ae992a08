"""The frame of commands: statuses, and one line on standard error."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from broker.base.command import run_command
from broker.base.progress import Progress
from broker.storage.objectstore import NotFound, StoreError, Transient


def ends(error: BaseException) -> Callable[[Progress], int]:
    def run(_progress: Progress) -> int:
        raise error
    return run


@pytest.mark.parametrize("error, status, said", [
    (NotFound("x\x1b[2J"), 2, "jetblock test: x\\x1b[2J\n"),
    (Transient("s3://b: timeout"), 2, "jetblock test: s3://b: timeout; the store does not answer: check that it is up, "
     "its address (AWS_ENDPOINT_URL) and the network\n"),
    (KeyboardInterrupt(), 130, "jetblock test: interrupted; run it again\n"),
    (SystemExit(2), 2, ""),
    (SystemExit(), 0, ""),
])
def test_errors_become_a_line_and_a_status(error: BaseException, status: int, said: str,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("test", ends(error), StoreError) == status
    assert capsys.readouterr() == ("", said)


def test_the_result_is_the_status() -> None:
    assert run_command("test", lambda _progress: 1, StoreError) == 1


def test_an_error_that_is_not_named_is_a_bug() -> None:
    with pytest.raises(RuntimeError):
        run_command("test", ends(RuntimeError("bug")), StoreError)


def test_a_wrong_command_line_has_argparse_s_words(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="jetblock test")
    assert run_command("test", lambda _progress: len(vars(parser.parse_args(["--x"])))) == 2
    assert "unrecognized arguments: --x" in capsys.readouterr().err
