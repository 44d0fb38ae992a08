"""The code that the console offers to copy runs as it is."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path

import nats
import pytest

from broker.console.pages.message import CODES
from tests.harness import BrokerProcess
from tests.real.jvm import spark_environ


async def run(code: str, **environ: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=environ or None)
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output.decode()


async def test_python(broker: BrokerProcess) -> None:
    client = await nats.connect(broker.url)
    await client.jetstream().add_stream(name="CODE", subjects=["code.>"])
    await client.jetstream().publish("code.1", b"what is read", headers={"A": "b"})
    assert await run(CODES["Python"](broker.url, "CODE", 1, "")) == "code.1 {'A': 'b'} b'what is read'\n"
    await client.jetstream().delete_stream("CODE")
    await client.close()


def test_the_command_is_safe_in_a_shell() -> None:
    """A stream's name can have what a shell would run."""
    words = shlex.split(CODES["nats CLI"]("nats://127.0.0.1:4222", "$(touch x)`y`;'z", 7, ""))
    assert words == ["nats", "--server", "nats://127.0.0.1:4222", "stream", "get", "$(touch x)`y`;'z", "7"]


@pytest.mark.soak
async def test_pyspark(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'store'}"
    async with BrokerProcess("--store", url) as broker:
        client = await nats.connect(broker.url)
        await client.jetstream().add_stream(name="CODE", subjects=["code.>"])
        for number in range(3):
            await client.jetstream().publish(f"code.{number}", b"%d" % number)
        await client.close()
        assert await broker.stop() == 0
    output = await run(CODES["PySpark"]("", "CODE", 2, url), **{**os.environ, **spark_environ(),
                                                          "PYSPARK_PYTHON": sys.executable})
    assert "|code.1 " in output
    assert "|code.0 " not in output
