"""``jetblock pipeline``: its output and exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker import cli
from broker.pipeline.cli import main
from broker.storage.objectstore import open_store
from tests.pipeline.stores import Owner, Stream


async def filled(url: str) -> Stream:
    """Make a stream of three blocks: ``A.x`` in the first, ``A.y`` in the others; and one whose block has many
    subjects."""
    owner = Owner(open_store(url))
    await owner.start()
    stream = await owner.make("A")
    for subject in (b"A.x", b"A.y", b"A.y"):
        stream.append([(subject, b"", b"payload %d" % i) for i in range(10)])
        await owner.log.persisted()
    many = await owner.make("MANY")
    many.append([(b"MANY.%d" % i, b"", b"payload") for i in range(1000)])
    await owner.log.persisted()
    await owner.stop()
    return stream


@pytest.fixture
async def store(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    await filled(url)
    return url


def test_plan_as_json(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks that cannot match are not counted, and the options are those of the source."""
    assert main(["plan", store, "A", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["blocks"], whole["blocks_of"], whole["messages"], whole["partitions"]) == (3, 3, 30, 1)
    assert whole["frames_bytes"] > 0
    assert [(one["stream"], one["first_seq"], one["last_seq"]) for one in whole["streams"]] == [("A", 1, 30)]
    assert main(["plan", store, "A", "--subjects", "*.x", "--json"]) == 0
    some = json.loads(capsys.readouterr().out)
    assert (some["blocks"], some["messages"]) == (1, 10)
    assert main(["plan", store, "A", "--startSeq", "11", "--endSeq", "15", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 5


def test_plan_as_text(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", store, "A*", "--subjects", "A.y"]) == 0
    lines = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["streams"].strip() == "$G/A"
    assert lines["blocks"].strip() == "2 of 3"
    assert lines["messages"].strip() == "at most 20"
    assert lines["excluded"].strip() == "1 block, without reading anything of them"
    assert "undecided" not in lines


def test_a_subject_that_nothing_has(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Blocks excluded by the catalogue are shown apart from those that only an index can exclude, so that no plan looks
    unfiltered."""
    assert main(["plan", store, "A", "--subjects", "none.>"]) == 0
    shown = capsys.readouterr().out
    assert "0 of 3" in shown
    assert "3 blocks, without" in shown
    assert "undecided" not in shown
    assert main(["plan", store, "MANY"]) == 0
    assert "undecided" not in capsys.readouterr().out
    assert main(["plan", store, "MANY", "--subjects", "none.>"]) == 0  # excluded by the block's filter
    shown = capsys.readouterr().out
    assert "0 of 1" in shown
    assert "undecided" not in shown
    assert main(["plan", store, "MANY", "--subjects", "*.none"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 1" in shown
    assert "0 blocks, without" in shown
    assert "undecided:  1 block, of which only the index can tell whether they hold" in shown


@pytest.mark.parametrize(("arguments", "why"), [
    (["B"], "existing streams: 'A'"),
    (["A", "--subjects", "a..b"], "'a..b' is no NATS subject"),
    (["A", "--asOf", "yesterday"], "asOf"),
])
def test_wrong_plans(store: str, arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and one line on standard error, with nothing on standard output."""
    assert main(["plan", store, *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("jetblock pipeline: ")
    assert shown.err.count("\n") == 1
    assert why in shown.err


def test_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"file://{tmp_path}/none", "A"]) == 2
    assert f"{tmp_path}/none" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["plan"], ["zip"], ["plan", "file://x", "A", "--bogus", "1"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments give argparse's usage on standard error and status 2."""
    assert main(arguments) == 2
    assert "usage: jetblock pipeline" in capsys.readouterr().err


def test_it_is_a_command_of_jetblock(capsys: pytest.CaptureFixture[str]) -> None:
    """The broker's own command line runs it, and its help names it."""
    assert cli.run(["pipeline", "--help"]) == 0
    assert "plan" in capsys.readouterr().out
    assert cli.run(["--help"]) == 0
    assert "jetblock pipeline" in capsys.readouterr().out


def test_without_the_extra(store: str, tmp_path: Path) -> None:
    """The command names the extra to install if only the broker is installed."""
    block = ("import sys; sys.modules['numpy'] = sys.modules['pyarrow'] = None\n"
             f"from broker.pipeline.cli import main; sys.exit(main(['plan', {store!r}, 'A']))")
    root = str(Path(__file__).resolve().parents[2])
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=60, check=False,
                          cwd=tmp_path, env=os.environ | {"PYTHONPATH": root})
    assert done.returncode == 2
    assert "pip install '.[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
