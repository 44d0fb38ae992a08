"""Commands write to a pipe without a reader, onto a full disk, and to a terminal in ASCII."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nats
import pytest

from broker.runtime.embedded import Broker
from tests.harness import ROOT

COMMANDS = ("--help", "fsck STORE", "inspect STORE --json", "adopt STORE")


async def made(tmp_path: Path) -> dict[str, str]:
    """Create a store with a stream whose name is not ASCII."""
    async with Broker(tmp_path / "store") as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="été", subjects=["s"])
        await client.close()
    return {"STORE": f"file://{tmp_path / 'store'}"}


def run(command: str, urls: dict[str, str], stdout: int, **environ: str) -> subprocess.CompletedProcess[str]:
    words = [urls.get(word, word) for word in command.split()]
    return subprocess.run([sys.executable, "-m", "broker", *words], stdout=stdout, stderr=subprocess.PIPE, text=True,
                          timeout=180, cwd=ROOT, env={**os.environ, **environ}, check=False)


@pytest.mark.parametrize("command", COMMANDS)
async def test_nobody_reads_it(command: str, tmp_path: Path) -> None:
    """Without a reader the status is that of SIGPIPE, with no further output; on a full disk there is one line."""
    urls = await made(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(command, urls, writer)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = run(command, urls, full)
    finally:
        os.close(full)
    assert (done.returncode, done.stderr) == (2, "jetblock: cannot write: No space left on device\n")


async def test_a_name_beyond_the_terminals_characters(tmp_path: Path) -> None:
    urls = await made(tmp_path)
    done = run("inspect STORE streams", urls, subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xe9t\xe9" in done.stdout
