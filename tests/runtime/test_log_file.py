"""The log as a file: rotation by size, and lines as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from broker.runtime.log_file import LogFile
from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess

pytestmark = pytest.mark.shows("operation.log_files")

STAMP = re.compile(r"x\.log\.\d{4}(\.\d\d){5}\.\d{9}")


def write(handler: LogFile, first: int, count: int) -> None:
    for number in range(first, first + count):
        handler.emit(logging.LogRecord("test", logging.INFO, "", 0, f"line {number}", (), None))


@pytest.fixture(name="path")
def a_path(tmp_path: Path) -> Path:
    """Return the path of a new log file, beside a file with a name like a rotated one."""
    (tmp_path / "x.log.old").write_text("not ours")
    return tmp_path / "x.log"


def rotated(path: Path) -> list[Path]:
    return sorted(other for other in path.parent.iterdir() if STAMP.fullmatch(other.name))


def test_rotation_loses_no_line(path: Path) -> None:
    """Each file but the last exceeds the limit by one line; each line is in one of the files, in order."""
    handler = LogFile(str(path), 100, 0)
    write(handler, 0, 200)
    handler.close()
    files = [*rotated(path), path]
    assert len(files) > 10
    lines = [line for file in files for line in file.read_text().splitlines() if line.startswith("line ")]
    assert lines == [f"line {number}" for number in range(200)]
    assert all(100 < file.stat().st_size <= 100 + len("line 199\n") or "Rotated" in file.read_text()
               for file in files[:-1])
    assert 'Rotated log, backup saved as "' in path.read_text()


def test_the_oldest_are_deleted(path: Path) -> None:
    """``max_num`` files are kept, the current one included; other files in the directory are not touched."""
    handler = LogFile(str(path), 50, 3)
    write(handler, 0, 100)
    handler.close()
    assert len(rotated(path)) == 2
    assert (path.parent / "x.log.old").read_text() == "not ours"
    assert 'Purged log file "x.log.' in path.read_text() + "".join(file.read_text() for file in rotated(path))


def test_without_a_limit_it_grows(path: Path) -> None:
    handler = LogFile(str(path), 0, 3)
    write(handler, 0, 1000)
    handler.close()
    assert rotated(path) == []
    assert len(path.read_text().splitlines()) == 1000


@pytest.mark.parametrize("process", [BrokerProcess, NatsServerProcess], ids=["jetblock", "nats-server"])
async def test_rotation_of_a_broker(process: type[ServerProcess], path: Path) -> None:
    """Both rename the full file to a name of the same form."""
    server = process("-l", str(path), "-c", str(path.with_suffix(".conf")), "--log_size_limit", "300")
    path.with_suffix(".conf").write_text("log_max_num: 2")
    try:
        await server.start(ready=False)
        async with asyncio.timeout(30):
            while len(rotated(path)) != 1:  # noqa: ASYNC110 (a directory is what changes)
                await asyncio.sleep(0.01)
        assert await server.stop() == 0
        assert len(rotated(path)) == 1
    finally:
        await server.close()


async def test_json_lines() -> None:
    """Each line is one object with time, level and text."""
    async with BrokerProcess("--log-format", "json", "-D") as broker:
        lines = [json.loads(line) for line in broker.stderr]
    assert all(line.keys() == {"time", "level", "pid", "logger", "message"} for line in lines)
    assert lines[0]["message"].startswith("Starting jetblock ")
    assert {line["level"] for line in lines} >= {"INF"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", line["time"]) for line in lines)
    assert any(line["message"] == "Server is ready" for line in lines)
